"""Rehearsal: play whole episodes through the run's environments, rewards and filters before a model is loaded.

    first rows -> scripts (what a model might write) -> ScriptedEngine -> GroupRunner, as in a run -> rewards, filters
               -> estimator and policy loss on the result

`train --check-only` ends with it. All of the user's code is called with a right answer, a wrong one, none, calls, calls
that cannot be read and a response that is cut, so that its mistakes are reported with file and line.
"""

from __future__ import annotations

from .play import rehearse
from .result import Fault, Rehearsal

__all__ = ["Fault", "Rehearsal", "rehearse"]
