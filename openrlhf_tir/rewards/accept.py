"""Check what a reward, group reward or filter returned. The error for a wrong result names file, line and value.

An exception, a value of the wrong type, NaN or infinity fails the whole group in training. It never becomes a
reward of 0.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError, InfraError, MethodError, VerifierError
from ..types import RewardParts, Verdict
from ..user_code import plugins
from ..user_code.failures import Overrun, Starved, described, is_outage, show, traceback_of, user_code_errors

REASON = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Reasons that a filter may give. A metric is named after the reason."""


class WrongResult(ValueError):
    """Raised when what a function returned has none of the forms that it may have. The message is the end of a
    sentence."""


class LoadedFunction(NamedTuple):
    """A function that a setting names, and how its failures are reported.

    Attributes:
        place: What kind of function it is.
        name: Its name in the configuration.
        function: The function.
        error: The class of the errors.
    """

    place: plugins.Place
    name: str
    function: Callable[..., Any]
    error: type[MethodError]

    @classmethod
    def load(cls, place: plugins.Place, name: str, error: type[MethodError]) -> LoadedFunction:
        """Load a function by its name. Raises ConfigError if it cannot be loaded."""
        return cls(place, name, plugins.load(place, name), error)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn an exception that the function raises in this block into `error`, with its line and traceback.

        A WrongResult becomes `error` too. The project's own errors pass unchanged. A service that does not answer the
        function, and a machine that has no core for it, are infrastructure.

        Raises:
            MethodError: The function raised an exception, or took too long.
            VerifierError: Infrastructure failed.
        """
        try:
            yield
        except (InfraError, ConfigError):
            raise
        except WrongResult as wrong:
            location = plugins.location(self.function)
            raise self.error(
                f"{self.place.setting} = {self.name!r}: {location}: {wrong}. {self.place.described}"
            ) from None
        except user_code_errors() as raised:
            file = plugins.source_file(self.function)
            location = plugins.raised_at(raised, file) or plugins.location(self.function)
            message = f"{self.place.setting} = {self.name!r}: {location}: {described(raised)}."
            if isinstance(raised, Exception) and is_outage(raised):
                raise VerifierError(f"{message} What it asks does not answer.") from raised
            if isinstance(raised, Starved):
                starved = VerifierError(f"{message} Give the machine more cores, or raise the deadline.")
                starved.out_of_time = True
                raise starved from raised
            remedy = "It is a bug in that line, or a row of the data that it does not expect."
            if isinstance(raised, Overrun):
                remedy = "Make it quicker, or raise that."
            failure = self.error(f"{message} {remedy}")
            failure.user_traceback = traceback_of(raised, file)
            failure.out_of_time = isinstance(raised, Overrun)
            raise failure from raised


def finite_number(value: Any) -> float | None:
    """Return a finite real number as a float, None for anything else. Booleans are numbers, arrays are not."""
    if not isinstance(value, numbers.Real | np.bool_):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer or a fraction beyond every float
        return None
    return number if math.isfinite(number) else None


def reward_parts(result: Any) -> RewardParts:
    """Return what a reward returned, as RewardParts.

    Args:
        result: (reward, correct, parts) with finite numbers, or one finite number, which is correct if above 0.

    Raises:
        WrongResult: It is something else.
    """
    reward, correct, parts = result if isinstance(result, tuple) and len(result) == 3 else (result, None, {})
    value = finite_number(reward)
    if value is None:
        fault = "not finite" if isinstance(reward, numbers.Real) else "not a number"
        raise WrongResult(f"the reward is {show(reward)}, {fault}")
    correct_value = float(value > 0) if correct is None else finite_number(correct)
    if correct_value is None:
        raise WrongResult(f"`correct` is {show(correct)}, not True or False")
    if not isinstance(parts, Mapping):
        raise WrongResult(f"`parts` is {show(parts)}, not a dict of numbers")
    part_values = {}
    for part, part_value in parts.items():
        if not isinstance(part, str) or (number := finite_number(part_value)) is None:
            raise WrongResult(f"parts[{part!r}] is {show(part_value)}, not a finite number")
        part_values[part] = number
    return RewardParts(value, bool(correct_value), part_values)


def group_rewards(result: Any, n: int) -> list[float]:
    """Return what a group reward returned: one finite number for each of the `n` valid trajectories.

    Raises:
        WrongResult: It is something else.
    """
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Sequence | np.ndarray):
        raise WrongResult(f"it returned {show(result)}, not a list of numbers")
    if len(result) != n:
        raise WrongResult(f"it returned {len(result)} rewards for {n} valid trajectories")
    values = []
    for index, reward in enumerate(result):
        if (value := finite_number(reward)) is None:
            raise WrongResult(f"the reward of trajectory {index} is {show(reward)}, not a finite number")
        values.append(value)
    return values


def verdict(result: Any) -> Verdict:
    """Return what a filter returned: (keep, reason), with a reason if the group is dropped.

    Raises:
        WrongResult: It is something else.
    """
    if not (
        isinstance(result, tuple)
        and len(result) == 2
        and isinstance(result[0], bool | np.bool_)
        and isinstance(result[1], str)
    ):
        raise WrongResult(f"it returned {show(result)}, not (keep, reason)")
    keep, reason = result
    if keep:
        return Verdict(True, "")
    if not reason:
        raise WrongResult("it drops a group without a reason, and the reason is the metric's name")
    check_reason(reason)
    return Verdict(False, reason)


def check_reason(reason: str) -> None:
    """Check that a metric can be named after a reason.

    Raises:
        WrongResult: It cannot.
    """
    if not REASON.fullmatch(reason):
        raise WrongResult(
            f"its reason is {show(reason)}, and a metric is named after it:"
            " use 1 to 64 letters (A-Z, a-z), digits, '_', '-' and '.'"
        )
