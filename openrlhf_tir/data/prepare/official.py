"""Official rows: a problem -> a row as a method's own code publishes it. The inverse of data/schemas.py, one small function each.

What a method's rows have no place for is lost: an environment's name, and `meta` but for its data source. `jsonl` is this project's own and keeps all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ...config.paths import shown
from ...errors import DataError, unknown
from ..prompts import Problem
from ..schemas import DAPO_HEAD
from ..templates import SEARCHR1

TORL_SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."
DAPO = (
    DAPO_HEAD + " The last line of your response should be of the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    '{}\n\nRemember to put your answer on its own line after "Answer:".'
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
    facts = {"uuid": str(i), "env_func": "math_tir_async", "gold_ans": p.label, "task": "math_tir", "template": "ZERO_TIR"}
    return {"prompt": text_of(p), "query": text_of(p), "label": json.dumps(facts, ensure_ascii=False), "task": "math_tir"}


def orz(p: Problem, i: int) -> list[dict[str, Any]]:
    return [{"from": "human", "value": text_of(p)}, {"from": "assistant", "ground_truth": {"value": p.label}}]


def verl(p: Problem, i: int) -> dict[str, Any]:
    messages = p.input if isinstance(p.input, list) else [{"role": "user", "content": p.input}]
    return _verl(p, i, messages, p.label, str(p.meta.get("datasource", "openrlhf_tir")), "MATH")


def dapo(p: Problem, i: int) -> dict[str, Any]:
    return _verl(p, i, [{"role": "user", "content": DAPO.replace("{}", text_of(p))}], p.label, "math_dapo", "MATH")


def torl(p: Problem, i: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": TORL_SYSTEM}, {"role": "user", "content": text_of(p)}]
    row = _verl(p, i, messages, p.label, str(p.meta.get("datasource", "openrlhf_tir")), "other")
    return {**row, "reward_model": {"ground_truth": p.label, "stype": "rule"}}  # "stype" is what its files say


def toolrl(p: Problem, i: int) -> dict[str, Any]:
    return _verl(p, i, chat_of(p), p.label, "rlla", "math")


def tooln1(p: Problem, i: int) -> dict[str, Any]:
    row = _verl(p, i, chat_of(p), p.label, "toolcall", "toolcall")
    return {**row, "extra_info": {**row["extra_info"], "prompt_type": "qwen"}}


def searchr1(p: Problem, i: int) -> dict[str, Any]:
    """Its prompt around the question. A label of this project's Search-R1 rows holds all gold answers; any other is the only one."""
    try:
        target = json.loads(p.label)["target"]
    except (ValueError, TypeError, KeyError):
        target = [p.label]
    row = _verl(p, i, [{"role": "user", "content": SEARCHR1.replace("{input}", text_of(p))}], target, str(p.meta.get("datasource", "nq")), "fact-reasoning")
    return {**row, "reward_model": {"style": "rule", "ground_truth": {"target": target}}}


def _verl(p: Problem, i: int, messages: list[Any], truth: Any, source: str, ability: str) -> dict[str, Any]:
    reward_model = {"style": "rule", "ground_truth": truth}
    return {"data_source": source, "prompt": messages, "ability": ability, "reward_model": reward_model, "extra_info": {"split": "train", "index": i}}


def text_of(p: Problem) -> str:
    """The problem alone: the text, or the only user message of a chat. Raises DataError for a dialogue."""
    if isinstance(p.input, str):
        return p.input
    said = [m for m in p.input if m.get("role") != "system"]
    if len(said) == 1 and said[0].get("role") == "user" and isinstance(said[0].get("content"), str):
        return str(said[0]["content"])
    raise DataError(f"{p.where} is a dialogue of {len(said)} messages, which this schema cannot hold. Convert it to jsonl, verl, toolrl or tooln1.")


def chat_of(p: Problem) -> list[Any]:
    if isinstance(p.input, list):
        return p.input
    raise DataError(f"{p.where}: the input {shown(p.input, 60)} is text; this schema needs chat messages with the tools in them. Convert it to jsonl or verl.")


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
