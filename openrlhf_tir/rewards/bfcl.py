"""BFCL's AST check: 1 if the calls are what the answer allows, else 0.

Source: gorilla, bfcl_eval ast_checker.py (Python categories). The label is JSON: {"function": [descriptions],
"possible_answer": [{name: {parameter: [allowed values]}}], "category": "simple" | "multiple" | "parallel"}. "" among
the allowed values means that the parameter may be left out. Strings are compared without space, ,./-_*^ and case; an
integer may stand for a float, and True is not an integer.
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
from .parts import response_parts
from .tooln1 import tooln1_calls

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
"""Python type of each type of a description."""
NOTATIONS = {"python": python_calls, "json": json_call_arguments, "tooln1": tooln1_calls}
"""Reader of each notation of calls."""
RELEVANCE = ("relevance", "live_relevance")
"""Categories in which any call is right."""
_IGNORED = re.compile(r"[ ,./\-_*^]")


def check_calls(
    functions: list[dict], calls: Calls, answers: list[dict], category: str, *, underscores: bool = False
) -> str | None:
    """Check calls and return the official error type; None if they are right.

    Args:
        functions: Descriptions of the functions.
        calls: The model's calls.
        answers: The allowed calls.
        category: BFCL's category.
        underscores: Whether the model writes a.b as a_b.
    """
    if category in RELEVANCE:
        return None if calls else "relevance:no_call"
    checker = "simple_function_checker"
    if "parallel" in category:
        checker = "parallel_function_checker_no_order"
    elif "multiple" in category:
        checker = "multiple_function_checker"
    if len(calls) != len(answers):
        return f"{checker}:wrong_count"
    if not answers:
        return None  # nothing should be called, and nothing was
    # Of two descriptions with one name the first counts.
    described = {function["name"]: function for function in reversed(functions)}
    if "parallel" not in category:
        return _check_call(described[next(iter(answers[0]))], calls[0], answers[0], underscores)
    unmatched = list(calls)
    for answer in answers:
        function = described[next(iter(answer))]
        match = next(
            (i for i, call in enumerate(unmatched) if _check_call(function, call, answer, underscores) is None), None
        )
        if match is None:
            return f"{checker}:cannot_find_match"
        del unmatched[match]
    return None


def _check_call(function: dict, call: dict, answer: dict, underscores: bool) -> str | None:
    """Return the error type of one call; None if it is right."""
    name = function["name"].replace(".", "_") if underscores else function["name"]
    allowed = next(iter(answer.values()))
    details = function["parameters"]["properties"]
    if name not in call:
        return "simple_function_checker:wrong_func_name"
    arguments = call[name]
    if not isinstance(arguments, dict):
        return "simple_function_checker:unexpected_param"  # the reference crashes
    if any(required not in arguments for required in function["parameters"]["required"]):
        return "simple_function_checker:missing_required"
    for parameter, value in arguments.items():
        if parameter not in details or parameter not in allowed:
            return "simple_function_checker:unexpected_param"
        if error := _check_value(value, allowed[parameter], details[parameter]):
            return error
    if any(optional not in arguments and "" not in values for optional, values in allowed.items()):
        return "simple_function_checker:missing_optional"
    return None


def _check_value(value: Any, allowed: list, description: dict) -> str | None:
    """Return the error type of an argument; None if it is right."""
    type_name = description["type"]
    expected = TYPES[type_name]
    inner = TYPES[description["items"]["type"]] if type_name in ("array", "tuple") else None
    if type_name == "tuple" and isinstance(value, tuple):
        value = list(value)
    elif type_name == "float" and type(value) is int:
        if abs(value) > sys.float_info.max:
            return "type_error:simple"  # the reference crashes
        value = float(value)
    answer_type = next((type(answer) for answer in allowed if answer != ""), None)
    is_variable = (
        answer_type is not None and answer_type is not expected
    )  # the answer names a variable instead of a value
    if type(value) is not expected:
        if type(value) is not answer_type:
            return "type_error:simple"
        is_variable = True
    elif inner is not None and not any(_items_fit(value, answer, inner) for answer in allowed):
        return "type_error:nested"
    if is_variable:
        return None if value in allowed else "value_error:others"
    if expected is dict:
        return _check_dict(value, allowed)
    if inner is dict:
        return _check_dicts(value, allowed)
    if standard(value) in [[] if expected is list and answer == "" else standard(answer) for answer in allowed]:
        return None
    errors: dict[type, str] = {str: "value_error:string", list: "value_error:list/tuple"}
    return errors.get(expected, "value_error:others")


def _items_fit(value: list, allowed: Any, inner: type) -> bool:
    """Return True if the items of a list have the type of the description, or that of the answer's items."""
    if not isinstance(allowed, list):
        return True
    answer_type = next((type(item) for item in allowed if item != ""), None)
    return all(type(item) is inner or type(item) is answer_type for item in value)


def _check_dict(value: dict, allowed: list) -> str | None:
    """Return the error type of a dict; None if one of the allowed ones matches."""
    error = "dict_checker:unclear"
    for answer in allowed:
        if answer == "":
            continue
        fault = next(
            (entry_error for key, entry in value.items() if (entry_error := _entry_error(entry, answer.get(key)))), None
        )
        if any(key not in value and "" not in values for key, values in answer.items()):
            fault = "value_error:dict_key"
        if fault is None:
            return None
        error = fault
    return error


def _entry_error(value: Any, allowed: list | None) -> str | None:
    """Return the error type of an entry of a dict, whose lists are compared as they are. `allowed` is None if no answer
    has it."""
    if allowed is None:
        return "value_error:dict_key"
    return None if _plain(value) in map(_plain, allowed) else "value_error:dict_value"


def _check_dicts(value: list, allowed: list) -> str | None:
    """Return the error type of a list of dicts; None if one of the allowed ones matches."""
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
    """Return a string, or the strings of a list, in the form in which they are compared."""
    return [_plain(v) for v in value] if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def bfcl(trajectory: Trajectory, task: Task, context: RewardContext) -> RewardParts:
    """Score one response.

    The option `notation` is "python", "json" (ToolRL's) or "tooln1". Parts: correct, format_ok (there are calls), and
    facts about the calls.
    """
    context.check_options(["notation"], "reward.name = 'bfcl'")
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
    return RewardParts(float(correct), correct, response_parts(trajectory, correct=correct, format_ok=bool(calls)))
