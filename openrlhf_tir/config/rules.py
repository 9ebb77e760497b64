"""Check the rules between settings: what each section accepts by itself and does not work together.

A rule stands in the section of the setting that it is about (setting.py). All broken rules are reported at once, before
anything is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import environments
from .setting import RULES

if TYPE_CHECKING:
    from .schema import Config


def violations(c: Config) -> Iterator[str]:
    """Yield fact, value and remedy for every rule that a training run's configuration breaks."""
    yield from environments.violations(c)
    for rule in RULES:
        yield from rule.check(c)
