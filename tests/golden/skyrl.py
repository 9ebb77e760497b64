"""Rows of skyrl.jsonl: the function call that OpenHands' converter reads in a message, or none."""

from __future__ import annotations

from openrlhf_tir.rollout.protocols.calls.function import function_calls
from openrlhf_tir.rollout.protocols.calls.tool_call import ParsedCall

from ._compare import mismatches


def check(row: dict, compat: bool) -> list[str] | None:
    call = next((found for found in function_calls(row["text"]) if isinstance(found, ParsedCall)), None)
    got = None if call is None else {"name": call.name, "arguments": dict(call.arguments)}
    return mismatches({"call": got}, row["expected"])
