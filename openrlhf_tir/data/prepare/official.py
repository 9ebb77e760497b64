"""Write a problem as a row as a method's own code publishes it: the inverse of data/schemas.py, one small function
each.

What a method's rows have no place for is lost: the name of an environment, and `meta` except its data source. A label
of another form than the method's is refused. `jsonl` is this project's own form and keeps everything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...config.paths import shown
from ...errors import DataError, unknown
from ...rewards import tooln1 as tooln1_reward
from ...rewards import toolrl as toolrl_reward
from ...rewards.checking.json_value import json_or_none
from ..fields import kind
from ..prompts import Problem
from ..schemas import DAPO_HEAD
from ..templates import SEARCHR1

TORL_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
DAPO = (
    DAPO_HEAD
    + " The last line of your response should be of the form Answer: $Answer (without quotes) where $Answer is the"
    ' answer to the problem.\n\n{}\n\nRemember to put your answer on its own line after "Answer:".'
)
"""What DAPO-Math-17k wraps around a problem."""


def jsonl(problem: Problem, i: int) -> dict[str, Any]:
    """Return the row as it is read here without a schema; the label stays text."""
    row: dict[str, Any] = {"prompt": problem.input, "label": problem.label}
    meta = dict(problem.meta)
    if "datasource" in meta:
        row["datasource"] = meta.pop("datasource")
    return row | ({"env": problem.env} if problem.env else {}) | ({"meta": meta} if meta else {})


def zerotir(problem: Problem, i: int) -> dict[str, Any]:
    """Return a row of ZeroTIR."""
    facts = {
        "uuid": str(i),
        "env_func": "math_tir_async",
        "gold_ans": answer_of(problem),
        "task": "math_tir",
        "template": "ZERO_TIR",
    }
    return {
        "prompt": text_of(problem),
        "query": text_of(problem),
        "label": json.dumps(facts, ensure_ascii=False),
        "task": "math_tir",
    }


def orz(problem: Problem, i: int) -> list[dict[str, Any]]:
    """Return a row of Open-Reasoner-Zero."""
    return [
        {"from": "human", "value": text_of(problem)},
        {"from": "assistant", "ground_truth": {"value": answer_of(problem)}},
    ]


def verl(problem: Problem, i: int) -> dict[str, Any]:
    """Return a row of verl."""
    messages = problem.input if isinstance(problem.input, list) else [{"role": "user", "content": problem.input}]
    return _verl(problem, i, messages, problem.label, str(problem.meta.get("datasource", "openrlhf_tir")), "MATH")


def dapo(problem: Problem, i: int) -> dict[str, Any]:
    """Return a row of DAPO-Math-17k."""
    return _verl(
        problem,
        i,
        [{"role": "user", "content": DAPO.replace("{}", text_of(problem))}],
        answer_of(problem),
        "math_dapo",
        "MATH",
    )


def torl(problem: Problem, i: int) -> dict[str, Any]:
    """Return a row of ToRL."""
    messages = [{"role": "system", "content": TORL_SYSTEM}, {"role": "user", "content": text_of(problem)}]
    row = _verl(problem, i, messages, answer_of(problem), str(problem.meta.get("datasource", "openrlhf_tir")), "other")
    return {**row, "reward_model": {"ground_truth": problem.label, "stype": "rule"}}  # "stype" is what its files say


def toolrl(problem: Problem, i: int) -> dict[str, Any]:
    """Return a row of ToolRL."""
    if not toolrl_reward.is_target(problem.label):
        raise _not_held(problem, "not ToolRL's target, a text with <think>, <tool_call> or <response>")
    return _verl(problem, i, chat_of(problem), problem.label, "rlla", "math")


def tooln1(problem: Problem, i: int) -> dict[str, Any]:
    """Return a row of Tool-N1."""
    try:
        tooln1_reward.gold_calls(problem.label)
    except ValueError:
        raise _not_held(problem, "not Tool-N1's list of calls") from None
    row = _verl(problem, i, chat_of(problem), problem.label, "toolcall", "toolcall")
    return {**row, "extra_info": {**row["extra_info"], "prompt_type": "qwen"}}


def _not_held(problem: Problem, what: str) -> DataError:
    return DataError(f"{problem.where}: the label {shown(problem.label, 60)} is {what}. Convert it to jsonl or verl.")


def searchr1(problem: Problem, i: int) -> dict[str, Any]:
    """Return a row of Search-R1, with its prompt around the question. A label may hold all gold answers, or is the
    only one.

    Raises:
        DataError: The gold answers are not texts.
    """
    label = json_or_none(problem.label)
    given = label["target"] if isinstance(label, dict) and "target" in label else answer_of(problem)
    target = [given] if isinstance(given, str) else given
    if not isinstance(target, list) or not all(isinstance(answer, str) for answer in target):
        raise DataError(
            f"{problem.where}: the gold answers are {kind(target)}, not a list of texts. Correct or remove the row."
        )
    row = _verl(
        problem,
        i,
        [{"role": "user", "content": SEARCHR1.replace("{input}", text_of(problem))}],
        target,
        str(problem.meta.get("datasource", "nq")),
        "fact-reasoning",
    )
    return {**row, "reward_model": {"style": "rule", "ground_truth": {"target": target}}}


OTHERS_TASKS = {
    "bfcl_multi_turn": "BFCL's multi-turn tasks",
    "rlla": "ToolRL's",
    "swe": "SWE-Gym's",
    "toolcall": "Tool-N1's",
}
"""Data sources whose label is not an answer."""


def answer_of(problem: Problem) -> str:
    """Return the label if it is one answer.

    Raises:
        DataError: Only another method's reward reads it: several gold answers, calls, an object.
    """
    label = json_or_none(problem.label)
    source = problem.meta.get("datasource")
    if isinstance(source, str) and source in OTHERS_TASKS:
        what = f"one of {OTHERS_TASKS[source]}"
    elif isinstance(label, dict) and "target" in label:
        what = "Search-R1's list of gold answers"
    elif toolrl_reward.is_target(problem.label):
        what = "ToolRL's target"
    elif isinstance(label, dict) or (isinstance(label, list) and any(isinstance(part, dict) for part in label)):
        what = "an object" if isinstance(label, dict) else "a list of objects"
    else:
        return problem.label
    raise _not_held(problem, f"{what}, where this schema holds one answer as text")


def _verl(problem: Problem, i: int, messages: list[Any], truth: Any, source: str, ability: str) -> dict[str, Any]:
    reward_model = {"style": "rule", "ground_truth": truth}
    return {
        "data_source": source,
        "prompt": messages,
        "ability": ability,
        "reward_model": reward_model,
        "extra_info": {"split": "train", "index": i},
    }


def text_of(problem: Problem) -> str:
    """Return the problem alone: the text, or the only user message of a chat. Raises DataError for a dialogue."""
    if isinstance(problem.input, str):
        return problem.input
    said = [m for m in problem.input if m.get("role") != "system"]
    if len(said) == 1 and said[0].get("role") == "user" and isinstance(said[0].get("content"), str):
        return str(said[0]["content"])
    raise DataError(
        f"{problem.where} is a dialogue of {len(said)} messages, which this schema cannot hold."
        " Convert it to jsonl, verl, toolrl or tooln1."
    )


def chat_of(problem: Problem) -> list[Any]:
    """Return the messages of a problem. Raises DataError if it is a text."""
    if isinstance(problem.input, list):
        return problem.input
    raise DataError(
        f"{problem.where}: the input {shown(problem.input, 60)} is text; this schema needs chat messages with the tools"
        " in them. Convert it to jsonl or verl."
    )


WRITERS: dict[str, Callable[[Problem, int], Any]] = {
    "dapo": dapo,
    "jsonl": jsonl,
    "orz": orz,
    "searchr1": searchr1,
    "tooln1": tooln1,
    "toolrl": toolrl,
    "torl": torl,
    "verl": verl,
    "zerotir": zerotir,
}


def writer(name: str) -> Callable[[Problem, int], Any]:
    """Return the writer of a schema. Raises ConfigError if it is not supported."""
    if name not in WRITERS:
        raise unknown("--to", name, WRITERS, "jsonl is what openrlhf-tir reads without being told a schema.")
    return WRITERS[name]
