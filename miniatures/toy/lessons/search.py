r"""Search-R1's: a question about a made-up country, a search of a corpus that knows it, an answer; or an answer at
once. Rows as FlashRAG's.

    prompt         User: What is the river of zolen?\nAssistant:
                   weight 0
    the model      <search>river of zolen</search>
                   1
    environment    \n\n<information>Doc 1(Title: zolen river) The river of zolen is marak.</information>\n\n
                   0
    the model      <answer>marak</answer>
                   1

A search is made one to three times over before its result is believed, as in the lesson `torl_calls`: the further ones
change nothing. The corpus has every fact of every country; training and test ask about different countries. Without a
search an answer is a guess among thousands of words."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any, NamedTuple

from openrlhf_tir.data.sft.tokens import SftRow
from openrlhf_tir.rollout.protocols.searchr1 import SearchR1

from ...rows import Split, split_of
from ..cold_start import Schedule, Stage
from ..traces import GUESS, prompt_of, trace_of
from . import Lesson

COUNTRIES = 500
ASPECTS = ("river", "king", "bread", "song")
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
AGAIN = "Check. "
"""What a further search begins with, as in torl."""
CALLS, WEIGHTS = (1, 2, 3), (2, 4, 4)
"""Searches of an answer that was searched for, and how often: 2.2 on average. With 1.7 the model, rewarded for answers
alone, came down to 1.2 by itself (seed 42): nothing was left to save."""


class Fact(NamedTuple):
    country: str
    aspect: str
    value: str

    @property
    def question(self) -> str:
        return f"What is the {self.aspect} of {self.country}?"

    @property
    def query(self) -> str:
        return f"{self.aspect} of {self.country}"

    @property
    def title(self) -> str:
        return f"{self.country} {self.aspect}"

    @property
    def text(self) -> str:
        return f"The {self.aspect} of {self.country} is {self.value}."

    @property
    def found(self) -> str:
        """What the search environment says of it alone."""
        return f"Doc 1(Title: {self.title}) {self.text}\n"

    @property
    def split(self) -> Split:
        return split_of(self.country)


def _word(rng: Random) -> str:
    return "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(2)) + rng.choice(CONSONANTS)


@cache
def facts() -> tuple[Fact, ...]:
    """The same for every seed: there is one corpus."""
    rng = Random("countries")
    names = sorted({_word(rng) for _ in range(2 * COUNTRIES)})
    rng.shuffle(names)
    return tuple(Fact(country, aspect, _word(rng)) for country in names[:COUNTRIES] for aspect in ASPECTS)


@cache
def of_split(split: Split) -> tuple[Fact, ...]:
    return tuple(fact for fact in facts() if fact.split == split)


def corpus() -> list[dict[str, Any]]:
    """Search-R1's passages."""
    return [{"id": str(i), "contents": f"{fact.title}\n{fact.text}"} for i, fact in enumerate(facts())]


def search_trace(fact: Fact, calls: int) -> SftRow:
    found = SearchR1(max_calls=1).insertion(fact.found)
    parts = [
        (prompt_of(fact.question), 0.0),
        *[
            part
            for i in range(calls)
            for part in ((f"{AGAIN * (i > 0)}<search>{fact.query}</search>", 1.0), (found, 0.0))
        ],
        (f"<answer>{fact.value}</answer>", 1.0),
    ]
    return trace_of(parts)


def text_trace(fact: Fact) -> SftRow:
    """The answer without a search: a word that cannot be known weighs little."""
    parts = [(prompt_of(fact.question), 0.0), ("<answer>", 1.0), (fact.value, GUESS), ("</answer>", 1.0)]
    return trace_of(parts)


def draw_trace(rng: Random, tool_ratio: float) -> SftRow:
    """A random training fact, searched for with probability `tool_ratio`."""
    fact = rng.choice(of_split("train"))
    if rng.random() >= tool_ratio:
        return text_trace(fact)
    (calls,) = rng.choices(CALLS, WEIGHTS)
    return search_trace(fact, calls)


def rows(n: int, split: Split, seed: int) -> list[dict[str, Any]]:
    rng = Random(f"{split}/{seed}")
    drawn = (rng.choice(of_split(split)) for _ in range(n))
    return [
        {"id": f"{split}_{i}", "question": fact.question, "golden_answers": [fact.value]}
        for i, fact in enumerate(drawn)
    ]


GATES = {"accuracy": (0.22, 0.42), "code_ratio": (0.25, 0.42), "code_correct": (0.85, 1.0)}
LESSON = Lesson(draw_trace, rows, GATES, Schedule(stages=(Stage(760, 0.85), Stage(120, 0.36))), corpus=corpus)
