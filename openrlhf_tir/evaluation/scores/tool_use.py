"""Tool use of the sampled responses, each figure as a ratio of sums over problems. Lengths are tokens.

calls               calls per response                                                  OTC's TC (arXiv 2504.14870)
tool_productivity   right responses per call; None without a call                       OTC's TP
code_ratio          share of responses that used a tool                                 ZeroTIR (arXiv 2505.07773), ToRL
code_in_correct     share of the right responses that used one                          ZeroTIR
                    both are None where no call can be made
accuracy_with_code  share of the responses that used one that are right; accuracy_without_code: of the others
code_pass           share of the calls that ran without an error                        ToRL (arXiv 2503.23383)
                    _correct, _incorrect: in right, in wrong responses
calls_in_correct    calls per right response
response_tokens     of a response, with what tools said; _correct, _incorrect; model_tokens: what the model wrote
truncated           share of responses that a limit cut
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from ..items import Item
from .bootstrap import Ratio

Values = Callable[[Item], Sequence[float]]


def tool_use(items: Sequence[Item], without_calls: Collection[str] = ()) -> dict[str, Ratio]:
    """`without_calls`: environments in which a response makes no call; where all items are of these, nothing is said of
    how many did."""
    told = any(any(i.used_code) or i.env not in without_calls for i in items)

    def ratio(num: Values, den: Values) -> Ratio:
        return Ratio(np.array([sum(num(i)) for i in items], float), np.array([sum(den(i)) for i in items], float))

    return {
        "calls": ratio(_calls, _all),
        "tool_productivity": ratio(_right, _calls),
        "code_ratio": ratio(_code, _all if told else _none),
        "code_in_correct": ratio(_both(_code, _right), _right if told else _none),
        "accuracy_with_code": ratio(_both(_code, _right), _code),
        "accuracy_without_code": ratio(_both(_no_code, _right), _no_code),
        "code_pass": ratio(_ok, _calls),
        "code_pass_correct": ratio(_both(_ok, _right), _both(_calls, _right)),
        "code_pass_incorrect": ratio(_both(_ok, _wrong), _both(_calls, _wrong)),
        "calls_in_correct": ratio(_both(_calls, _right), _right),
        "response_tokens": ratio(_tokens, _all),
        "response_tokens_correct": ratio(_both(_tokens, _right), _right),
        "response_tokens_incorrect": ratio(_both(_tokens, _wrong), _wrong),
        "model_tokens": ratio(lambda i: i.model_tokens, _all),
        "truncated": ratio(lambda i: i.truncated, _all),
    }


def _all(i: Item) -> Sequence[float]:
    return [1.0] * i.n


def _none(i: Item) -> Sequence[float]:
    return [0.0] * i.n


def _right(i: Item) -> Sequence[float]:
    return i.correct


def _wrong(i: Item) -> Sequence[float]:
    return [not c for c in i.correct]


def _code(i: Item) -> Sequence[float]:
    return i.used_code


def _no_code(i: Item) -> Sequence[float]:
    return [not u for u in i.used_code]


def _calls(i: Item) -> Sequence[float]:
    return i.calls


def _ok(i: Item) -> Sequence[float]:
    return i.calls_ok


def _tokens(i: Item) -> Sequence[float]:
    return i.response_tokens


def _both(values: Values, which: Values) -> Values:
    """`values` of those responses that `which` says 1 of."""
    return lambda i: [v * w for v, w in zip(values(i), which(i), strict=True)]
