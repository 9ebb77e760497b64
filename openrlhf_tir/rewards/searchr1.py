"""Compute Search-R1's reward: 1 if the last <answer> is a gold one.

Answers are normalised before they are compared. Source: verl/utils/reward_score/qa_em*.py.

The label is a JSON list of gold answers, {"target": [...]}, or one answer as plain text. Options:

    substring         it is enough that the answer contains a gold answer (qa_subem)
    format_score      reward of a wrong answer (0)
    structure_score, final_score, retrieval_score    those of qa_em_format. Any of them switches to its rule:

                      valid sequence                                       invalid sequence
        right         1                                                    1 - structure
        wrong         structure (+ retrieval if a gold answer was found)   final (0 without an answer)

    verl              grades like verl's port: a response with more than 10 answer tags gets a quarter
    official          grades the prompt and the tool's text as well. The prompt's example answer "Beijing" then takes
                      the place of a missing answer
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text
from .checking.json_value import json_or_none
from .context import RewardContext
from .parts import response_parts

MAX_TAGS = 10
STRUCTURE = ("structure_score", "final_score", "retrieval_score")
OPTIONS: dict[str, type] = {
    **dict.fromkeys(("substring", "verl", "official"), bool),
    **dict.fromkeys(("format_score", *STRUCTURE), float),
}

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_SHOWN = {
    False: re.compile(r"<information>(.*?)</information>", re.DOTALL),
    True: re.compile(r"<(information|document)>(.*?)</\1>", re.DOTALL),
}
"""Pattern of what the environment has shown, in its last group, by whether documents can be opened
(`env.options.pages`)."""
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ASSISTANT = re.compile(r"<\|im_start\|>assistant\s*")
_TAG = {
    False: re.compile(r"(</?(?:think|search|information|answer)>)"),
    True: re.compile(r"(</?(?:think|search|open|information|document|answer)>)"),
}
_NEXT = {
    ("start", "<think>"): "in_think",
    ("information", "<think>"): "in_think",
    ("in_think", "</think>"): "after_think",
    ("after_think", "<search>"): "in_search",
    ("in_search", "</search>"): "after_search",
    ("after_search", "<information>"): "in_information",
    ("in_information", "</information>"): "information",
    ("after_think", "<open>"): "in_open",
    ("in_open", "</open>"): "after_open",
    ("after_open", "<document>"): "in_document",
    ("in_document", "</document>"): "information",
    ("after_think", "<answer>"): "in_answer",
    ("in_answer", "</answer>"): "end",
}


def normalise(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation, articles and extra white space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def last_answer(text: str, at_least: int = 1) -> str | None:
    """Return the content of the last answer tag; None if there are fewer than `at_least`.

    The reference wants two of them, of which one is in its prompt.
    """
    answers = _ANSWER.findall(text)
    return answers[-1].strip() if len(answers) >= at_least else None


def matches(answer: str, golds: str | Sequence[str], substring: bool = False) -> bool:
    """Return True if an answer is one of the gold answers, or with `substring` contains one."""
    golds = [golds] if isinstance(golds, str) else golds
    normalised = normalise(answer)
    return any(normalise(gold) in normalised if substring else normalise(gold) == normalised for gold in golds)


def score(
    answer: str | None, golds: str | Sequence[str], *, substring: bool = False, format_score: float = 0.0
) -> float:
    """Return the reward of the reference's qa_em, and with `substring` of qa_subem."""
    if answer is None:
        return 0.0
    return 1.0 if matches(answer, golds, substring) else format_score


def verl_score(response: str, golds: str | Sequence[str]) -> float:
    """Return the reward of qa_em as verl ported it, which grades the response alone."""
    return score(last_answer(response), golds) * verl_share(response)


def verl_share(response: str) -> float:
    """Return the factor of verl's port: a quarter for a response with more than MAX_TAGS answer tags."""
    many = max(response.count("<answer>"), response.count("</answer>")) > MAX_TAGS
    return 0.25 if many else 1.0


def sequence_fault(response: str, pages: bool) -> str:
    """Return what is wrong with a sequence of tags; "" if nothing is.

    The right sequence is: think (search information think)* answer, with white space between them. With `pages`, which
    Search-R1 does not have, open and document may take the place of search and information. Without, these two words
    are ordinary text.
    """
    for tag in ("think", "search", "information", "answer"):
        opening = response.count(f"<{tag}>")
        closing = response.count(f"</{tag}>")
        if opening != closing:
            return f"Mismatch in {tag} tags: {opening} opening vs {closing} closing tags"
    state = "start"
    for part in _TAG[pages].split(response):
        if _TAG[pages].fullmatch(part):
            if (state, part) not in _NEXT:
                return f"Unexpected tag {part} in state {state}"
            state = _NEXT[state, part]
        elif part.strip() and state == "end":
            return "Unexpected content in state end"
        elif part.strip() and not state.startswith("in_"):
            return f"Unexpected content '{part.strip()}' between tags (state: {state})"
    return "" if state == "end" else f"Incomplete sequence, ended in state {state}"


def transcript_fault(text: str, pages: bool = False) -> str:
    """Return the `sequence_fault` of the text after the first assistant marker."""
    marker = _ASSISTANT.search(text)
    return sequence_fault(text[marker.end() :], pages) if marker else "Missing assistant marker"


def is_retrieved(text: str, golds: str | Sequence[str], pages: bool = False) -> bool:
    """Return True if a retrieved block contains a gold answer."""
    return any(matches(block[block.lastindex or 0], golds, substring=True) for block in _SHOWN[pages].finditer(text))


def structured_score(
    answer: str | None, right: bool, valid: bool, retrieved: bool, structure: float, final: float, retrieval: float
) -> float:
    """Return the reward of qa_em_format; the module's docstring has the table."""
    if right:
        return 1.0 if valid else 1.0 - structure
    if valid:
        return structure + (retrieval if retrieved else 0.0)
    return 0.0 if answer is None else final


def golds_of(label: str) -> list[str]:
    """Return the gold answers of a label."""
    value = json_or_none(label)
    value = value.get("target") if isinstance(value, dict) else value
    if isinstance(value, list):
        return [str(gold) for gold in value]
    return [value] if isinstance(value, str) else [label]


def searchr1(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    Returns:
        Its parts are correct, format_ok (1 if the sequence is valid), retrieved (1 if a gold answer was found) and
        those of `call_facts`.
    """
    options = dict(context.options)
    context.check_options(OPTIONS, "reward.name = 'searchr1'")
    golds = golds_of(task.label)
    text = trajectory.text
    pages = any(
        segment.source == "env" and segment.text.lstrip().startswith("<document>") for segment in trajectory.segments
    )
    if options.get("official"):
        text = task.prompt + text
        answer = last_answer(text, at_least=2)
        fault = transcript_fault(text, pages)
    else:
        # An answer in a retrieved block, or in one that the model made up, does not count.
        answer = last_answer(_SHOWN[True].sub("", model_text(trajectory)))
        fault = sequence_fault(text, pages)
    right = answer is not None and matches(answer, golds, bool(options.get("substring")))
    retrieved = is_retrieved(text, golds, pages)
    if any(name in options for name in STRUCTURE):
        scores = (float(options.get(name, 0.0)) for name in STRUCTURE)
        reward = structured_score(answer, right, not fault, retrieved, *scores)
    else:
        reward = score(
            answer,
            golds,
            substring=bool(options.get("substring")),
            format_score=float(options.get("format_score", 0.0)),
        )
    if options.get("verl"):
        reward *= verl_share(model_text(trajectory))
    parts = response_parts(trajectory, correct=right, format_ok=not fault)
    return RewardParts(reward, right, {**parts, "retrieved": float(retrieved)})
