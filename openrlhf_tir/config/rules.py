"""Check the rules between settings: what each section accepts by itself and does not work together.

A rule stands in the section of the setting that it is about (setting.py). All broken rules are reported at once, before
anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import Problem
from . import environments
from .sections.conditions import registered_estimator
from .setting import RULES

if TYPE_CHECKING:
    from .schema import Config


def violations(c: Config) -> Iterator[Problem]:
    """Yield a problem for every rule that a training run's configuration breaks.

    Rules that read the properties of the user's own estimator are left to `violations_of_own_estimator`.
    """
    yield from environments.violations(c)
    estimator_is_known = registered_estimator(c) is not None
    for rule in RULES:
        if "train" in rule.commands and (estimator_is_known or not rule.reads_estimator):
            yield from rule.problems(c)


def violations_of_own_estimator(c: Config) -> Iterator[Problem]:
    """Yield the same for the rules that `violations` leaves out, and nothing if there are none. The estimator is
    loaded.

    Raises:
        ConfigError: The estimator cannot be loaded.
    """
    if registered_estimator(c) is None:
        for rule in RULES:
            if rule.reads_estimator:
                yield from rule.problems(c)


def violations_of_fine_tuning(c: Config) -> Iterator[Problem]:
    """Yield a problem for every rule that the configuration of `openrlhf-tir sft` breaks."""
    for rule in RULES:
        if "sft" in rule.commands:
            yield from rule.problems(c)
