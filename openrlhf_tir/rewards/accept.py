"""Accept: what a reward, group reward or filter returned -> what training can use, or an error that names file, line
and what is wrong.

Nothing is guessed and nothing becomes 0: a value of the wrong type, NaN, infinity and an exception all fail the sample
or the group."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import ConfigError, FilterError, InfraError, MethodError, RewardError, VerifierError
from ..types import Group, RewardParts, Verdict
from ..user_code import plugins
from ..user_code.failures import Overrun, Starved, described, is_outage, traceback_of, user_code_errors

REASON = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a filter may call its reason: it stands in metrics' names, behind a slash."""
SHOWN = 120
"""Characters of a wrong value that a message shows."""


@contextmanager
def named(place: plugins.Place, name: str, function: Callable[..., Any], error: type[MethodError]):
    """Turn whatever `function` raises in this block into `error`, with its line and traceback.

    What is no fault of its own passes: an error of ours. A service that it asks and that does not answer is a
    VerifierError, which is infrastructure, and so is a machine without a core for it.
    """
    try:
        yield
    except (InfraError, ConfigError):
        raise
    except user_code_errors() as e:
        file = plugins.source_file(function)
        at = plugins.raised_at(e, file) or plugins.location(function)
        message = f"{place.setting} = {name!r}: {at}: {described(e)}."
        if isinstance(e, Exception) and is_outage(e):
            raise VerifierError(f"{message} What it asks does not answer.") from e
        if isinstance(e, Starved):
            raise VerifierError(f"{message} Give the machine more cores, or raise the deadline.") from e
        remedy = "It is a bug in that line, or a row of the data that it does not expect."
        if isinstance(e, Overrun):
            remedy = "Make it quicker, or raise that."
        failure = error(f"{message} {remedy}")
        failure.user_traceback = traceback_of(e, file)
        raise failure from e


def wrong_result(
    place: plugins.Place, name: str, function: Callable[..., Any], what: str, error: type[MethodError]
) -> MethodError:
    """Return the error for a result that cannot be used, with the function's file and line."""
    return error(f"{place.setting} = {name!r}: {plugins.location(function)}: {what}. {place.described}")


def _number(value: Any) -> float | None:
    """A finite real number as a float; None for anything else. Booleans count, arrays do not."""
    if not isinstance(value, numbers.Real | np.bool_):
        return None
    return float(value) if math.isfinite(value) else None


def reward_parts(result: Any, place: plugins.Place, name: str, function: Callable[..., Any]) -> RewardParts:
    """Raises RewardError unless `result` is (reward, correct, parts) with finite numbers, or one finite number: then
    correct iff above 0."""

    def wrong(what: str) -> MethodError:
        return wrong_result(place, name, function, what, RewardError)

    if isinstance(result, tuple) and len(result) == 3:
        reward, correct, parts = result
    else:
        reward, correct, parts = result, None, {}
    value = _number(reward)
    if value is None:
        is_number = isinstance(reward, numbers.Real)
        raise wrong(f"the reward is {_show(reward)}" + (", not finite" if is_number else ", not a number"))
    truth = float(value > 0) if correct is None else _number(correct)
    if truth is None:
        raise wrong(f"`correct` is {_show(correct)}, not True or False")
    if not isinstance(parts, Mapping):
        raise wrong(f"`parts` is {_show(parts)}, not a dict of numbers")
    numbers_of = {}
    for part, fact in parts.items():
        if not isinstance(part, str) or (number := _number(fact)) is None:
            raise wrong(f"parts[{part!r}] is {_show(fact)}, not a finite number")
        numbers_of[part] = number
    return RewardParts(value, bool(truth), numbers_of)


def group_rewards(
    result: Any, group: Group, place: plugins.Place, name: str, function: Callable[..., Any]
) -> list[float]:
    """Raises RewardError unless `result` is one finite number per valid trajectory."""
    n = len(group.valid)
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Sequence | np.ndarray):
        raise wrong_result(place, name, function, f"it returned {_show(result)}, not a list of numbers", RewardError)
    if len(result) != n:
        raise wrong_result(
            place, name, function, f"it returned {len(result)} rewards for {n} valid trajectories", RewardError
        )
    values = []
    for i, given in enumerate(result):
        if (value := _number(given)) is None:
            raise wrong_result(
                place,
                name,
                function,
                f"the reward of trajectory {i} is {_show(given)}, not a finite number",
                RewardError,
            )
        values.append(value)
    return values


def verdict(result: Any, place: plugins.Place, name: str, function: Callable[..., Any]) -> Verdict:
    """Raises FilterError unless `result` is (keep, reason), with a reason where the group is dropped."""
    if not (
        isinstance(result, tuple)
        and len(result) == 2
        and isinstance(result[0], bool | np.bool_)
        and isinstance(result[1], str)
    ):
        raise wrong_result(place, name, function, f"it returned {_show(result)}, not (keep, reason)", FilterError)
    keep, reason = result
    if not keep and not reason:
        raise wrong_result(
            place, name, function, "it drops a group without a reason, and the reason is the metric's name", FilterError
        )
    if not keep:
        check_reason(reason, place, name, function)
    return Verdict(bool(keep), "" if keep else reason)


def check_reason(reason: str, place: plugins.Place, name: str, function: Callable[..., Any]) -> None:
    """Raises FilterError for a reason that can be no metric's name."""
    if not REASON.fullmatch(reason):
        said = (
            f"its reason is {_show(reason)}, and a metric is named after it:"
            " use 1 to 64 letters (A-Z, a-z), digits, '_', '-' and '.'"
        )
        raise wrong_result(place, name, function, said, FilterError)


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text[:SHOWN]}... ({type(value).__name__})" if len(text) > SHOWN else f"{text} ({type(value).__name__})"
