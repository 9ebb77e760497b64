"""Search-R1's reward: 1 iff the normalised last <answer> is a gold one. Source: verl/utils/reward_score/qa_em*.py.

The label is a JSON list of gold answers, {"target": [...]}, or one answer as it is. options (reward.options):
    substring         a gold answer inside of the answer is enough (qa_subem)
    format_score      of a wrong answer (0)
    structure_score, final_score, retrieval_score    qa_em_format's; any of them switches its rule on:

                      valid sequence                                     else
        right         1                                                  1 - structure
        wrong         structure (+ retrieval if a gold answer was found) final (0 without an answer)

    verl              grades as verl's port: more than 10 answer tags are worth a quarter
    official          grades the prompt as well, whose example answer "Beijing" then stands for a missing one; and text
                      of the tool
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Sequence

from ..errors import unknown
from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text
from .context import RewardContext
from .math_outcome import call_facts

OPTIONS = ("substring", "format_score", "structure_score", "final_score", "retrieval_score", "verl", "official")
MAX_TAGS = 10
STRUCTURE = ("structure_score", "final_score", "retrieval_score")

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_SHOWN = {
    False: re.compile(r"<information>(.*?)</information>", re.DOTALL),
    True: re.compile(r"<(information|document)>(.*?)</\1>", re.DOTALL),
}
"""Whether documents can be opened (`env.options.pages`) -> what the environment has shown; the last group is it."""
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
    """Lower case, without ASCII punctuation, articles and extra white space."""
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def last_answer(text: str, at_least: int = 1) -> str | None:
    """The last answer tag's; None with fewer than `at_least` of them. The reference wants 2, one its prompt's."""
    answers = _ANSWER.findall(text)
    return answers[-1].strip() if len(answers) >= at_least else None


def matches(answer: str, golds: str | Sequence[str], substring: bool = False) -> bool:
    """`golds`: the gold answers, or one as plain text."""
    golds = [golds] if isinstance(golds, str) else golds
    said = normalise(answer)
    return any(normalise(g) in said if substring else normalise(g) == said for g in golds)


def score(
    answer: str | None, golds: str | Sequence[str], *, substring: bool = False, format_score: float = 0.0
) -> float:
    """The reward of the reference's qa_em and qa_subem."""
    if answer is None:
        return 0.0
    return 1.0 if matches(answer, golds, substring) else format_score


def verl_score(response: str, golds: str | Sequence[str]) -> float:
    """Return the reward of qa_em as verl ported it, which grades the response alone."""
    return score(last_answer(response), golds) * verl_share(response)


def verl_share(response: str) -> float:
    """Return what an answer is worth in verl's port: a quarter among more than MAX_TAGS of its tags."""
    many = max(response.count("<answer>"), response.count("</answer>")) > MAX_TAGS
    return 0.25 if many else 1.0


def sequence_fault(response: str, pages: bool = False) -> str:
    """What is wrong with think (search information think)* answer and white space between; "" where nothing is. With
    `pages`, which are not in Search-R1, open and document may stand for search and information; without, these words
    are text as any other."""
    for tag in ("think", "search", "information", "answer"):
        opening, closing = response.count(f"<{tag}>"), response.count(f"</{tag}>")
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
    """`sequence_fault` of what follows the first assistant marker."""
    marker = _ASSISTANT.search(text)
    return sequence_fault(text[marker.end() :], pages) if marker else "Missing assistant marker"


def found(text: str, golds: str | Sequence[str], pages: bool = False) -> bool:
    """Whether a retrieved block holds a gold answer."""
    return any(matches(block[block.lastindex or 0], golds, substring=True) for block in _SHOWN[pages].finditer(text))


def structured_score(
    answer: str | None, right: bool, valid: bool, retrieved: bool, structure: float, final: float, retrieval: float
) -> float:
    """qa_em_format's table, see above."""
    if right:
        return 1.0 if valid else 1.0 - structure
    if valid:
        return structure + (retrieval if retrieved else 0.0)
    return 0.0 if answer is None else final


def golds_of(label: str) -> list[str]:
    try:
        value = json.loads(label)
    except (ValueError, RecursionError):
        return [label]
    value = value.get("target") if isinstance(value, dict) else value
    if isinstance(value, list):
        return [str(v) for v in value]
    return [value] if isinstance(value, str) else [label]


def searchr1(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """parts: correct, format_ok (the sequence is valid), retrieved (a gold answer was found) and `call_facts`."""
    options = dict(context.options)
    if strange := set(options) - set(OPTIONS):
        raise unknown("reward.options key", min(strange), OPTIONS, "These are the options of reward.name = 'searchr1'.")
    golds, text = golds_of(task.label), trajectory.text
    pages = any(s.source == "env" and s.text.lstrip().startswith("<document>") for s in trajectory.segments)
    if options.get("official"):
        text = task.prompt + text
        answer, fault = last_answer(text, at_least=2), transcript_fault(text, pages)
    else:  # an answer in what was retrieved, or in what the model made up as retrieved, is none
        answer, fault = last_answer(_SHOWN[True].sub("", model_text(trajectory))), sequence_fault(text, pages)
    right = answer is not None and matches(answer, golds, bool(options.get("substring")))
    retrieved = found(text, golds, pages)
    if any(k in options for k in STRUCTURE):
        reward = structured_score(answer, right, not fault, retrieved, *(float(options.get(k, 0.0)) for k in STRUCTURE))
    else:
        reward = score(
            answer,
            golds,
            substring=bool(options.get("substring")),
            format_score=float(options.get("format_score", 0.0)),
        )
    if options.get("verl"):
        reward *= verl_share(model_text(trajectory))
    parts = {
        "correct": float(right),
        "format_ok": float(not fault),
        "retrieved": float(retrieved),
        **call_facts(trajectory),
    }
    return RewardParts(reward, right, parts)
