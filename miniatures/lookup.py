"""Lookup: questions about an invented world that a search of its corpus answers, in one search or in two.

No model knows the answers, since every name is made up, so that whoever answers has searched. A question is of the
test split if a hash of the name that it asks about says so, and an entity only ever points at entities of its own
split: no passage that a test question needs answers a trained one. Two kinds of question are never trained. Standard
library only: world and rows are the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Literal

from openrlhf_tir.machine.files import replace_text

from .rows import Split, split_of

HELD_OUT_OF = 8
"""One entity in so many is of the test split."""
TOWNS, PEOPLE, COMPANIES = 600, 600, 300
"""Passages of each sort."""

_WORDS = {
    "given": "Anna Peter Maria John Laura Paul Emma David Sara Martin Julia Thomas Helen Robert Clara Simon",
    "trade": "painter baker doctor teacher sailor lawyer farmer tailor singer writer miller pilot nurse poet",
    "goods": "bells boats clocks lamps shoes pens ropes tiles soap paper glass chairs hats kites",
    "first": "ba be bo da de do ga go ka ke ko la le lo ma me mo na no pa po ra re ro sa se so ta te to va ve vo za",
    "last": "bar bel dan den dor gan gol ker lan len lor man mel mir nor pol ran ren rik ros san sel tan tor ven vik",
}
"""What the world is made of: words, and the syllables of names."""


@dataclass(frozen=True, slots=True)
class Town:
    """A town and the four facts that its passage states."""

    name: str
    land: str
    river: str
    founder: str
    year: int

    @property
    def text(self) -> str:
        """The passage below its title."""
        return (
            f"{self.name} is a town in {self.land}, on the river {self.river}. {self.founder} founded it in"
            f" {self.year}."
        )


@dataclass(frozen=True, slots=True)
class Person:
    """A person with a trade, who comes from a town of the same split."""

    name: str
    trade: str
    town: Town

    @property
    def text(self) -> str:
        """The passage below its title."""
        return f"{self.name} is a {self.trade} from the town of {self.town.name}."


@dataclass(frozen=True, slots=True)
class Company:
    """A company in a town, led by a person, both of the same split."""

    name: str
    goods: str
    town: Town
    head: Person

    @property
    def text(self) -> str:
        """The passage below its title."""
        where = f"{self.name} is a company in the town of {self.town.name}."
        return f"{where} It makes {self.goods}. {self.head.name} leads it."


Entity = Town | Person | Company


@dataclass(frozen=True, slots=True)
class World:
    """Everything that there is. The order is that of the corpus."""

    towns: tuple[Town, ...]
    people: tuple[Person, ...]
    companies: tuple[Company, ...]

    @property
    def entities(self) -> tuple[Entity, ...]:
        """All entities; each has one passage."""
        return (*self.towns, *self.people, *self.companies)


@cache
def world() -> World:
    """Return the one world that there is."""
    rng = Random("lookup/world")
    used: set[str] = set()
    words = {name: text.split() for name, text in _WORDS.items()}

    def word() -> str:
        """Return a name that nothing else has."""
        while True:
            name = (rng.choice(words["first"]) + rng.choice(words["first"]) + rng.choice(words["last"])).capitalize()
            if name not in used:
                used.add(name)
                return name

    def person_name() -> str:
        return f"{rng.choice(words['given'])} {word()}"

    lands = [word() for _ in range(40)]
    rivers = [word() for _ in range(60)]
    towns = [
        Town(word(), rng.choice(lands), rng.choice(rivers), person_name(), rng.randint(1100, 1899))
        for _ in range(TOWNS)
    ]
    towns_of = {split: [t for t in towns if split_of(t.name, HELD_OUT_OF) == split] for split in ("train", "test")}
    people: list[Person] = []
    for _ in range(PEOPLE):
        name = person_name()
        people.append(Person(name, rng.choice(words["trade"]), rng.choice(towns_of[split_of(name, HELD_OUT_OF)])))
    people_of = {split: [p for p in people if split_of(p.name, HELD_OUT_OF) == split] for split in ("train", "test")}
    companies: list[Company] = []
    for _ in range(COMPANIES):
        name = word()
        split = split_of(name, HELD_OUT_OF)
        companies.append(
            Company(name, rng.choice(words["goods"]), rng.choice(towns_of[split]), rng.choice(people_of[split]))
        )
    return World(tuple(towns), tuple(people), tuple(companies))


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its answer, and the entities whose passages lead to it.

    Attributes:
        text: The question, which ends with a question mark.
        answer: The only right answer.
        path: The entity that is asked about; for two hops also the one that its passage names and that has the answer.
    """

    text: str
    answer: str
    path: tuple[Entity, ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of question: which entities it asks about, and how.

    Attributes:
        of: Field of World with those entities.
        ask: Entity -> question.
    """

    of: Literal["towns", "people", "companies"]
    ask: Callable[[Any], Question]


TRAINED: dict[str, Kind] = {
    "town_land": Kind("towns", lambda t: Question(f"In which land is the town of {t.name}?", t.land, (t,))),
    "town_river": Kind("towns", lambda t: Question(f"On which river is the town of {t.name}?", t.river, (t,))),
    "town_founder": Kind("towns", lambda t: Question(f"Who founded the town of {t.name}?", t.founder, (t,))),
    "town_year": Kind(
        "towns", lambda t: Question(f"In which year was the town of {t.name} founded?", str(t.year), (t,))
    ),
    "person_town": Kind("people", lambda p: Question(f"From which town is {p.name}?", p.town.name, (p,))),
    "company_head": Kind("companies", lambda c: Question(f"Who leads the company {c.name}?", c.head.name, (c,))),
    "person_land": Kind(
        "people", lambda p: Question(f"In which land is the home town of {p.name}?", p.town.land, (p, p.town))
    ),
    "company_river": Kind(
        "companies",
        lambda c: Question(f"On which river is the home town of the company {c.name}?", c.town.river, (c, c.town)),
    ),
}
"""Kinds of question that are trained, each as often: six that take one search, two that take two."""
UNSEEN: dict[str, Kind] = {
    "person_trade": Kind("people", lambda p: Question(f"What is the trade of {p.name}?", p.trade, (p,))),
    "company_founder": Kind(
        "companies",
        lambda c: Question(f"Who founded the home town of the company {c.name}?", c.town.founder, (c, c.town)),
    ),
}
"""Kinds that are in the test split alone, one of each length."""
PER_KIND = 12
"""Test questions of each kind."""
ROWS = 2048
"""Training questions of a run, however long it is, so that a run can be made longer when it is resumed."""
DEMONSTRATIONS = 768
"""Conversations to fine-tune on. A cold start takes the first ones."""

SYSTEM = "Use search."
ASKED = (
    "Answer the question. Write <search> words </search> to search; what is found comes in <information>. At the end"
    " write <answer> answer </answer>. Question: {question}"
)
"""Search-R1's prompt in short: without its <think>, which costs more tokens than all the rest here."""
WITH_PASSAGES = ("Answer with a name or a number.", "{passages}\n{question}")
"""How the same is asked of a model that is given the passages and does not search: what it says, and the user."""


def questions(kind: str, split: Split) -> list[Question]:
    """Return all questions of a kind and a split, in the world's order."""
    made = (TRAINED | UNSEEN)[kind]
    return [made.ask(entity) for entity in getattr(world(), made.of) if split_of(entity.name, HELD_OUT_OF) == split]


def row(question: Question, kind: str, *, passages: bool = False) -> dict[str, Any]:
    """Return the data row of a question.

    Args:
        question: The question.
        kind: Its kind, by which an evaluation tells accuracy.
        passages: Put the passages that lead to the answer into the prompt, and ask for no search.
    """
    system, user = WITH_PASSAGES if passages else (SYSTEM, ASKED)
    shown = "\n".join(entity.text for entity in question.path)
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": user.format(question=question.text, passages=shown)},
    ]
    return {"prompt": messages, "label": question.answer, "meta": {"kind": kind}}


def training_rows(number: int, seed: int) -> list[dict[str, Any]]:
    """Return `number` rows of the trained kinds in random order, the same for the same arguments. No question twice."""
    rng = Random(f"lookup/train/{seed}")
    left = {kind: questions(kind, "train") for kind in TRAINED}
    for of_kind in left.values():
        rng.shuffle(of_kind)
    rows: list[dict[str, Any]] = []
    while len(rows) < number:
        kind = rng.choice([kind for kind, of_kind in left.items() if of_kind])
        rows.append(row(left[kind].pop(), kind))
    return rows


def held_out_rows(per_kind: int = PER_KIND, *, passages: bool = False) -> list[dict[str, Any]]:
    """Return `per_kind` rows of every kind, those that are never trained included. The same for every seed."""
    rng = Random("lookup/test")
    rows: list[dict[str, Any]] = []
    for kind in TRAINED | UNSEEN:
        rows += [row(question, kind, passages=passages) for question in rng.sample(questions(kind, "test"), per_kind)]
    return rows


def demonstration(question: Question) -> dict[str, Any]:
    """Return a conversation in which the question is searched for and answered as Search-R1's protocol shows it."""
    turns = [
        f"<search> {entity.name} </search>\n\n<information>Doc 1(Title: {entity.name}) {entity.text}</information>\n\n"
        for entity in question.path
    ]
    answered = {"role": "assistant", "content": f"{''.join(turns)}<answer> {question.answer} </answer>"}
    return {"messages": [*row(question, "")["prompt"], answered]}


def demonstrations(number: int = DEMONSTRATIONS) -> list[dict[str, Any]]:
    """Return `number` conversations about entities of the training split; the kinds take turns, so that the first ones
    hold each trained kind as often."""
    rng = Random("lookup/demonstrations")
    kinds = list(TRAINED)
    of_kinds = {kind: rng.sample(questions(kind, "train"), -(-number // len(kinds))) for kind in kinds}
    return [demonstration(of_kinds[kinds[i % len(kinds)]][i // len(kinds)]) for i in range(number)]


def corpus() -> list[dict[str, str]]:
    """Return the passages as Search-R1's corpora have them: a title in the first line of `contents`."""
    return [{"id": str(i), "contents": f"{entity.name}\n{entity.text}"} for i, entity in enumerate(world().entities)]


@dataclass(frozen=True, slots=True)
class Files:
    """Where the files of the task are.

    Attributes:
        train: Training questions.
        test: Held-out questions.
        passages: The same held-out questions with their passages in the prompt.
        corpus: What the search searches.
        demonstrations: Conversations to fine-tune on.
    """

    train: Path
    test: Path
    passages: Path
    corpus: Path
    demonstrations: Path


def write_files(directory: Path, seed: int) -> Files:
    """Write all files of the task to `directory`, which is made if it does not exist.

    A file that already has this text is left alone, since a search server may have the corpus open.

    Args:
        directory: Where the files go.
        seed: Seed of the training questions; nothing else depends on it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = Files(
        *(directory / f"{name}.jsonl" for name in ("train", "test", "test_with_passages", "corpus", "demonstrations"))
    )
    contents: list[tuple[Path, Sequence[dict[str, Any]]]] = [
        (files.train, training_rows(ROWS, seed)),
        (files.test, held_out_rows()),
        (files.passages, held_out_rows(passages=True)),
        (files.corpus, corpus()),
        (files.demonstrations, demonstrations()),
    ]
    for path, rows in contents:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            replace_text(path, text)
    return files
