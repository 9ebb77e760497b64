"""calculator: one operation on two whole numbers a call. k operations need k calls: `reproduce interaction_scaling`."""

from __future__ import annotations

import re

from env_servers.env import Env, Step

OPERATION = re.compile(r"\s*(-?[0-9]{1,15})\s*([-+*])\s*(-?[0-9]{1,15})\s*", re.ASCII)
"""15 digits are more than any chain of the task comes to; a longer one is no calculator's mistake but the asker's."""
REFUSED = "one operation a call: A+B, A-B or A*B"


class CalculatorEnv(Env):
    """Says what A+B, A-B or A*B is. Anything else is refused, two operations in one call too."""

    action = "A+B, A-B or A*B"

    async def step(self, action: str, deadline_s: float) -> Step:
        if not (found := OPERATION.fullmatch(action)):
            return Step(f"{REFUSED}\n", outcome="model_error")
        a = int(found[1])
        operator = found[2]
        b = int(found[3])
        return Step(f"{a + b if operator == '+' else a - b if operator == '-' else a * b}\n")
