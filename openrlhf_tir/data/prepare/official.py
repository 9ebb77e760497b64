"""Official rows: a problem -> a row as a method's own code publishes it. The inverse of data/schemas.py, one small
function each.

What a method's rows have no place for is lost: an environment's name, and `meta` but for its data source. A label of
another form than a method's is translated (tool_dialogues.py) or refused. `jsonl` is this project's own and keeps all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...config.paths import shown
from ...errors import DataError, unknown
from .. import tool_n1
from ..fields import kind
from ..prompts import Problem
from ..schemas import DAPO_HEAD
from ..templates import SEARCHR1
from . import tool_dialogues

TORL_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
DAPO = (
    DAPO_HEAD
    + " The last line of your response should be of the form Answer: $Answer (without quotes) where $Answer is the"
    ' answer to the problem.\n\n{}\n\nRemember to put your answer on its own line after "Answer:".'
)
"""What DAPO-Math-17k wraps around a problem."""


def jsonl(p: Problem, i: int) -> dict[str, Any]:
    """As it is read here without a schema; the label stays text."""
    row: dict[str, Any] = {"prompt": p.input, "label": p.label}
    meta = dict(p.meta)
    if "datasource" in meta:
        row["datasource"] = meta.pop("datasource")
    return row | ({"env": p.env} if p.env else {}) | ({"meta": meta} if meta else {})


def zerotir(p: Problem, i: int) -> dict[str, Any]:
    facts = {
        "uuid": str(i),
        "env_func": "math_tir_async",
        "gold_ans": answer_of(p),
        "task": "math_tir",
        "template": "ZERO_TIR",
    }
    return {
        "prompt": text_of(p),
        "query": text_of(p),
        "label": json.dumps(facts, ensure_ascii=False),
        "task": "math_tir",
    }


def orz(p: Problem, i: int) -> list[dict[str, Any]]:
    return [{"from": "human", "value": text_of(p)}, {"from": "assistant", "ground_truth": {"value": answer_of(p)}}]


def verl(p: Problem, i: int) -> dict[str, Any]:
    messages = p.input if isinstance(p.input, list) else [{"role": "user", "content": p.input}]
    return _verl(p, i, messages, p.label, str(p.meta.get("datasource", "openrlhf_tir")), "MATH")


def dapo(p: Problem, i: int) -> dict[str, Any]:
    return _verl(p, i, [{"role": "user", "content": DAPO.replace("{}", text_of(p))}], answer_of(p), "math_dapo", "MATH")


def torl(p: Problem, i: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": TORL_SYSTEM}, {"role": "user", "content": text_of(p)}]
    row = _verl(p, i, messages, answer_of(p), str(p.meta.get("datasource", "openrlhf_tir")), "other")
    return {**row, "reward_model": {"ground_truth": p.label, "stype": "rule"}}  # "stype" is what its files say


def toolrl(p: Problem, i: int) -> dict[str, Any]:
    messages, target = chat_of(p), p.label
    if _form_of(p) == "tooln1":
        messages, target = tool_dialogues.to_toolrl(p.where, messages, target)
    return _verl(p, i, messages, target, "rlla", "math")


def tooln1(p: Problem, i: int) -> dict[str, Any]:
    messages, calls, raw = chat_of(p), p.label, {}
    if _form_of(p) == "toolrl":
        raw = tool_dialogues.to_tooln1(p.where, messages, calls)
        messages, calls = tool_n1.convert(p.where, raw)
    row = _verl(p, i, messages, calls, "toolcall", "toolcall")
    return {**row, "extra_info": {**row["extra_info"], "prompt_type": "qwen"}, **raw}


def _form_of(p: Problem) -> str:
    form = tool_dialogues.form_of(p.label)
    if form is None:
        raise DataError(
            f"{p.where}: the label {shown(p.label, 60)} is neither ToolRL's target nor Tool-N1's list of calls."
            " Convert it to jsonl or verl."
        )
    return form


def searchr1(p: Problem, i: int) -> dict[str, Any]:
    """Its prompt around the question. The label of our Search-R1 rows holds all gold answers; another is the one."""
    label = _json(p.label)
    given = label["target"] if isinstance(label, dict) and "target" in label else answer_of(p)
    target = [given] if isinstance(given, str) else given
    if not isinstance(target, list) or not all(isinstance(answer, str) for answer in target):
        raise DataError(
            f"{p.where}: the gold answers are {kind(target)}, not a list of texts. Correct or remove the row."
        )
    row = _verl(
        p,
        i,
        [{"role": "user", "content": SEARCHR1.replace("{input}", text_of(p))}],
        target,
        str(p.meta.get("datasource", "nq")),
        "fact-reasoning",
    )
    return {**row, "reward_model": {"style": "rule", "ground_truth": {"target": target}}}


OTHERS_TASKS = {
    "bfcl_multi_turn": "BFCL's multi-turn tasks",
    "rlla": "ToolRL's",
    "swe": "SWE-Gym's",
    "toolcall": "Tool-N1's",
}
"""Data sources whose label is no answer."""


def answer_of(p: Problem) -> str:
    """The label, where it is one answer. Raises DataError for what only another method's reward reads: several gold
    answers, calls, an object."""
    label, source = _json(p.label), p.meta.get("datasource")
    if isinstance(source, str) and source in OTHERS_TASKS:
        what = f"one of {OTHERS_TASKS[source]}"
    elif isinstance(label, dict) and "target" in label:
        what = "Search-R1's list of gold answers"
    elif tool_dialogues.form_of(p.label) == "toolrl":
        what = "ToolRL's target"
    elif isinstance(label, dict) or (isinstance(label, list) and any(isinstance(part, dict) for part in label)):
        what = "an object" if isinstance(label, dict) else "a list of objects"
    else:
        return p.label
    raise DataError(
        f"{p.where}: the label {shown(p.label, 60)} is {what}, where this schema holds one answer as text."
        " Convert it to jsonl or verl."
    )


def _json(text: str) -> Any:
    """None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _verl(p: Problem, i: int, messages: list[Any], truth: Any, source: str, ability: str) -> dict[str, Any]:
    reward_model = {"style": "rule", "ground_truth": truth}
    return {
        "data_source": source,
        "prompt": messages,
        "ability": ability,
        "reward_model": reward_model,
        "extra_info": {"split": "train", "index": i},
    }


def text_of(p: Problem) -> str:
    """The problem alone: the text, or the only user message of a chat. Raises DataError for a dialogue."""
    if isinstance(p.input, str):
        return p.input
    said = [m for m in p.input if m.get("role") != "system"]
    if len(said) == 1 and said[0].get("role") == "user" and isinstance(said[0].get("content"), str):
        return str(said[0]["content"])
    raise DataError(
        f"{p.where} is a dialogue of {len(said)} messages, which this schema cannot hold."
        " Convert it to jsonl, verl, toolrl or tooln1."
    )


def chat_of(p: Problem) -> list[Any]:
    if isinstance(p.input, list):
        return p.input
    raise DataError(
        f"{p.where}: the input {shown(p.input, 60)} is text; this schema needs chat messages with the tools in them."
        " Convert it to jsonl or verl."
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
    """Raises ConfigError for a schema that is not written."""
    if name not in WRITERS:
        raise unknown("--to", name, WRITERS, "jsonl is what openrlhf-tir reads without being told a schema.")
    return WRITERS[name]
