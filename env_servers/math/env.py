r"""An environment whose action is the answer (LaTeX, without its \boxed{}). One step: reward 1 or 0, done.

The gold answer is the task's "label". Signals: equal, how (exact | symbolic | timeout), seconds. A checker that fails
raises, which is outcome env_error and never a reward.
"""

from __future__ import annotations

from typing import Any

from env_servers.env import Env, Step

from .verifier import Verifier


class MathEnv(Env):
    """Checks one answer."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Read the gold answer. Raises ValueError."""
        label = task.get("label")
        if not isinstance(label, str) or not label.strip():
            raise ValueError(f'task["label"] is {label!r}. Send the gold answer there, as text.')
        self._gold = label
        return ""

    async def step(self, action: str, deadline_s: float) -> Step:
        """Check the answer."""
        verdict = await self._verifier.check(action, self._gold)
        return Step(
            "correct" if verdict.equal else "incorrect",
            reward=float(verdict.equal),
            done=True,
            signals=verdict._asdict(),
        )
