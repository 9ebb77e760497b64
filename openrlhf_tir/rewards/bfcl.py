"""BFCL's AST check: 1 iff the calls are what the answer allows. Source: gorilla, bfcl_eval ast_checker.py
(Python categories).

The label is JSON: {"function": [descriptions], "possible_answer": [{name: {parameter: [allowed values]}}], "category":
"simple" | "multiple" | "parallel"}. "" among the allowed values: the parameter may be left out. Strings are compared
without space, ,./-_*^ and case; an integer may stand for a float, and True is no integer.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from ..errors import unknown
from ..types import RewardParts, Task, Trajectory
from .checking.answer_text import model_text
from .checking.call_text import Calls, json_call_arguments, python_calls
from .context import RewardContext
from .math_outcome import call_facts

TYPES: dict[str, type[Any]] = {
    "string": str,
    "integer": int,
    "float": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "any": str,
}
NOTATIONS = {"python": python_calls, "json": json_call_arguments}
_IGNORED = re.compile(r"[ ,./\-_*^]")


def check_calls(
    functions: list[dict], calls: Calls, answers: list[dict], category: str, *, underscores: bool = False
) -> str | None:
    """The official error type, None where the calls are right. `underscores`: the model writes a.b as a_b."""
    kind = (
        "parallel_function_checker_no_order"
        if "parallel" in category
        else "multiple_function_checker"
        if "multiple" in category
        else None
    )
    if len(calls) != len(answers):
        return f"{kind or 'simple_function_checker'}:wrong_count"
    if not answers:
        return None  # nothing was to be called, and nothing was
    described = {f["name"]: f for f in functions}
    if "parallel" not in category:
        return _check_call(described[next(iter(answers[0]))], calls[0], answers[0], underscores)
    left = list(calls)
    for answer in answers:
        function = described[next(iter(answer))]
        match = next(
            (i for i, call in enumerate(left) if _check_call(function, call, answer, underscores) is None), None
        )
        if match is None:
            return f"{kind}:cannot_find_match"
        del left[match]
    return None


def _check_call(function: dict, call: dict, answer: dict, underscores: bool) -> str | None:
    name = function["name"].replace(".", "_") if underscores else function["name"]
    allowed = next(iter(answer.values()))
    details = function["parameters"]["properties"]
    if name not in call:
        return "simple_function_checker:wrong_func_name"
    given = call[name]
    if not isinstance(given, dict):
        return "simple_function_checker:unexpected_param"  # the reference crashes
    if any(p not in given for p in function["parameters"]["required"]):
        return "simple_function_checker:missing_required"
    for parameter, value in given.items():
        if parameter not in details or parameter not in allowed:
            return "simple_function_checker:unexpected_param"
        if error := _check_value(value, allowed[parameter], details[parameter]):
            return error
    if any(p not in given and "" not in values for p, values in allowed.items()):
        return "simple_function_checker:missing_optional"
    return None


def _check_value(value: Any, allowed: list, description: dict) -> str | None:
    named = description["type"]
    expected = TYPES[named]
    inner = TYPES[description["items"]["type"]] if named in ("array", "tuple") else None
    if named == "tuple" and isinstance(value, tuple):
        value = list(value)
    elif named == "float" and type(value) is int:
        if abs(value) > sys.float_info.max:
            return "type_error:simple"  # the reference crashes
        value = float(value)
    of_answer = next((type(a) for a in allowed if a != ""), None)
    variable = of_answer is not None and of_answer is not expected  # the answer names a variable instead of a value
    if type(value) is not expected:
        if type(value) is not of_answer:
            return "type_error:simple"
        variable = True
    elif inner is not None and not any(_items_fit(value, a, inner) for a in allowed):
        return "type_error:nested"
    if variable:
        return None if value in allowed else "value_error:others"
    if expected is dict:
        return _check_dict(value, allowed)
    if inner is dict:
        return _check_dicts(value, allowed)
    if standard(value) in [[] if expected is list and a == "" else standard(a) for a in allowed]:
        return None
    errors: dict[type, str] = {str: "value_error:string", list: "value_error:list/tuple"}
    return errors.get(expected, "value_error:others")


def _items_fit(value: list, allowed: Any, inner: type) -> bool:
    if not isinstance(allowed, list):
        return True
    of_answer = next((type(a) for a in allowed if a != ""), None)
    return all(type(item) is inner or type(item) is of_answer for item in value)


def _check_dict(value: dict, allowed: list) -> str | None:
    error = "dict_checker:unclear"
    for answer in allowed:
        if answer == "":
            continue
        fault = next((e for key, v in value.items() if (e := _entry_error(v, answer.get(key)))), None)
        if any(key not in value and "" not in values for key, values in answer.items()):
            fault = "value_error:dict_key"
        if fault is None:
            return None
        error = fault
    return error


def _entry_error(value: Any, allowed: list | None) -> str | None:
    """What is wrong with an entry of a dict, whose lists are compared as they are; `allowed` None: no answer has it."""
    if allowed is None:
        return "value_error:dict_key"
    return None if _plain(value) in map(_plain, allowed) else "value_error:dict_value"


def _check_dicts(value: list, allowed: list) -> str | None:
    error: str | None = "list_dict_checker:unclear"
    for answer in allowed:
        if len(value) != len(answer):
            error = "value_error:list_dict_count"
            continue
        if not all(isinstance(v, dict) for v in value):
            return "type_error:nested"  # the reference crashes
        error = next((e for v, a in zip(value, answer, strict=True) if (e := _check_dict(v, [a]))), None)
        if error is None:
            return None
    return error


def standard(value: Any) -> Any:
    """A string, or the strings of a list, as they are compared."""
    return [_plain(v) for v in value] if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def bfcl(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """options: `notation`, "python" or "json" (ToolRL's). parts: correct, format_ok (calls), call facts."""
    if strange := set(context.options) - {"notation"}:
        raise unknown("reward.options key", min(strange), ["notation"], "This is the option of reward.name = 'bfcl'.")
    notation = str(context.options.get("notation", "python"))
    if notation not in NOTATIONS:
        raise unknown(
            "reward.options.notation", notation, NOTATIONS, "These are the notations of reward.name = 'bfcl'."
        )
    label = json.loads(task.label)
    try:
        calls = NOTATIONS[notation](model_text(trajectory))
    except ValueError:
        calls = []
    correct = check_calls(label["function"], calls, label["possible_answer"], label.get("category", "simple")) is None
    return RewardParts(
        float(correct), correct, {"correct": float(correct), "format_ok": float(bool(calls)), **call_facts(trajectory)}
    )
