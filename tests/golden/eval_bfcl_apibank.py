"""Rows of eval_bfcl_apibank: BFCL's AST check and decoding, API-Bank's match, ToolRL's BFCL handler.

Of text that is no call the rows give the exception of the reference's parser; ours is always ValueError.
"""

from __future__ import annotations

import json

from openrlhf_tir.rewards import apibank, bfcl
from openrlhf_tir.rewards.checking import call_text
from tests.unit.rewards.reward_fakes import in_run, says, task

from ._compare import mismatches

UNDERSCORE_MODEL = "u"


def check(row: dict, compat: bool) -> list[str] | None:
    kind = KINDS.get(row["kind"])
    return kind(row) if kind else None


def _ast(row: dict) -> list[str]:
    underscores = row["model_name"] == UNDERSCORE_MODEL
    error = bfcl.check_calls(
        row["function"], row["model_output"], row["possible_answer"], row["category"], underscores=underscores
    )
    return mismatches({"valid": error is None, "error_type": error}, row["expected"])


def _decode(row: dict) -> list[str]:
    try:
        got = {"decoded": call_text.python_calls(row["text"])}
    except ValueError:
        return [] if "raises" in row["expected"] else [f"raised, instead of {row['expected']}"]
    return mismatches(got, row["expected"])


def _json_call_sources(text: str) -> list[str]:
    """Return ToolRL's calls as Python source, for execution against a simulated API.

    An object without a name is a call of "", and one without parameters has none. Values that are not objects are left
    out.

    Raises:
        ValueError: A name is not text, or parameters are not an object. The reference's handler crashes there.
    """
    sources = []
    for call in call_text.json_lines(text) if "<tool_call>" in text else []:
        if not isinstance(call, dict):
            continue
        named = {"name": "", "parameters": {}} | call
        if not isinstance(named["name"], str):
            raise ValueError(f"the name {named['name']!r} is not text")
        if named["name"].strip().lower() == "none":  # the model declines
            continue
        if not isinstance(named["parameters"], dict):
            raise ValueError(f"the parameters of {named['name']!r} are not an object")
        arguments = ", ".join(f"{key}={value!r}" for key, value in named["parameters"].items())
        sources.append(f"{named['name']}({arguments})")
    return sources


def _toolrl(row: dict) -> list[str]:
    text = row["text"]
    return mismatches(
        {"decode_ast": call_text.json_call_arguments(text), "decode_execute": _json_call_sources(text)},
        row["expected"],
    )


def _apibank(row: dict) -> list[str]:
    label = json.dumps(row["gold"])
    score = apibank.apibank(says(row["response"]), task(label), in_run(name="apibank")).reward
    return mismatches({"score": int(score)}, row["expected"])


KINDS = {
    "apibank_response": _apibank,
    "bfcl_ast": _ast,
    "bfcl_decode": _decode,
    "apibank_toolrl": lambda row: mismatches(
        {"score": int(apibank.matches(row["tool_calls"], row["gold"]))}, row["expected"]
    ),
    "toolrl_bfcl_decode": _toolrl,
}
