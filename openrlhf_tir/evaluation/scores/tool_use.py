"""Figures of tool use in the sampled responses, as ratios of sums over problems. Lengths are tokens.

calls               calls per response                                                  OTC's TC (arXiv 2504.14870)
tool_productivity   right responses per call; None without a call                       OTC's TP
code_ratio          share of responses that used a tool                                 ZeroTIR (arXiv 2505.07773),
                                                                                        ToRL
code_in_correct     share of the right responses that used a tool                       ZeroTIR
                    Both are None if no call can be made.
accuracy_with_code  share of the responses with a tool that are right; accuracy_without_code: of the others
code_pass           share of the calls that ran without an error                        ToRL (arXiv 2503.23383)
                    code_pass_correct, code_pass_incorrect: in right, in wrong responses
calls_in_correct    calls per right response
response_tokens     tokens per response, those of tools included; also _correct and _incorrect
model_tokens        tokens per response that the model wrote
truncated           share of responses that a limit cut
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from ..items import Item
from .bootstrap import Ratio

Values = Callable[[Item], Sequence[float]]
"""Item -> one number for each of its samples."""


def tool_use(items: Sequence[Item], without_calls: Collection[str] = ()) -> dict[str, Ratio]:
    """Return the figures by name.

    Args:
        items: The items of one suite under one setting.
        without_calls: Environments in which no call can be made. If all items belong to these, code_ratio and
            code_in_correct have no value.
    """
    calls_possible = any(any(item.used_code) or item.env not in without_calls for item in items)

    def ratio(num: Values, den: Values) -> Ratio:
        return Ratio(
            np.array([sum(num(item)) for item in items], float), np.array([sum(den(item)) for item in items], float)
        )

    return {
        "calls": ratio(_calls, _all),
        "tool_productivity": ratio(_right, _calls),
        "code_ratio": ratio(_code, _all if calls_possible else _none),
        "code_in_correct": ratio(_product(_code, _right), _right if calls_possible else _none),
        "accuracy_with_code": ratio(_product(_code, _right), _code),
        "accuracy_without_code": ratio(_product(_no_code, _right), _no_code),
        "code_pass": ratio(_calls_ok, _calls),
        "code_pass_correct": ratio(_product(_calls_ok, _right), _product(_calls, _right)),
        "code_pass_incorrect": ratio(_product(_calls_ok, _wrong), _product(_calls, _wrong)),
        "calls_in_correct": ratio(_product(_calls, _right), _right),
        "response_tokens": ratio(_tokens, _all),
        "response_tokens_correct": ratio(_product(_tokens, _right), _right),
        "response_tokens_incorrect": ratio(_product(_tokens, _wrong), _wrong),
        "model_tokens": ratio(lambda item: item.model_tokens, _all),
        "truncated": ratio(lambda item: item.truncated, _all),
    }


def _all(item: Item) -> Sequence[float]:
    return [1.0] * item.n


def _none(item: Item) -> Sequence[float]:
    return [0.0] * item.n


def _right(item: Item) -> Sequence[float]:
    return item.correct


def _wrong(item: Item) -> Sequence[float]:
    return [not correct for correct in item.correct]


def _code(item: Item) -> Sequence[float]:
    return item.used_code


def _no_code(item: Item) -> Sequence[float]:
    return [not used for used in item.used_code]


def _calls(item: Item) -> Sequence[float]:
    return item.calls


def _calls_ok(item: Item) -> Sequence[float]:
    return item.calls_ok


def _tokens(item: Item) -> Sequence[float]:
    return item.response_tokens


def _product(first: Values, second: Values) -> Values:
    """Return the product of two numbers for each sample."""
    return lambda item: [a * b for a, b in zip(first(item), second(item), strict=True)]
