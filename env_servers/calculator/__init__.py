"""An environment that computes one operation on two whole numbers a call. k operations need k calls: `reproduce
interaction_scaling`."""

from __future__ import annotations

import re

from env_servers.env import Env, Step

OPERATION = re.compile(r"\s*(-?[0-9]{1,15})\s*([-+*])\s*(-?[0-9]{1,15})\s*", re.ASCII)
"""15 digits are more than any result of the task's chains has."""
REFUSED = "one operation a call: A+B, A-B or A*B"


class CalculatorEnv(Env):
    """Returns the result of A+B, A-B or A*B. Everything else is refused, also two operations in one call."""

    action = "A+B, A-B or A*B"

    async def step(self, action: str, deadline_s: float) -> Step:
        """Compute the operation."""
        match = OPERATION.fullmatch(action)
        if match is None:
            return Step(f"{REFUSED}\n", outcome="model_error")
        a = int(match[1])
        b = int(match[3])
        results = {"+": a + b, "-": a - b, "*": a * b}
        return Step(f"{results[match[2]]}\n")
