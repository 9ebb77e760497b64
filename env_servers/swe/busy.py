"""A time limit says nothing of code on a machine that is too busy: measure whether it is, before a patch is blamed."""

from __future__ import annotations

from env_servers.python_tir.sandbox import SandboxError, Snippet
from env_servers.python_tir.warm.sandbox import WarmSandbox

TIME_LIMIT = "time_limit"
"""`Outcome.ended` and `Execution.killed` at a wall clock."""
LEAST_SHARE = 0.25
"""Share of a core below which a process is too slow to be judged by a wall clock."""
MEASURE_S = 20.0
"""Seconds that the measurement may take."""
MEASURE = """import time
wall, cpu = time.monotonic(), time.process_time()
while time.process_time() - cpu < 0.2:
    pass
print(0.2 / (time.monotonic() - wall))
"""


async def refuse_if_busy(sandbox: WarmSandbox) -> None:
    """Measure which share of a core a process gets. Call it when no code of the patch runs any more.

    Raises:
        SandboxError: It is less than LEAST_SHARE, or the sandbox failed.
    """
    execution = await sandbox.execute(Snippet(MEASURE), sandbox.limits.for_call(MEASURE_S, None, None))
    share = 0.0 if execution.killed else float(execution.stdout)
    if share < LEAST_SHARE:
        raise SandboxError(
            f"a time limit was reached while a process got {share:.2f} of a core, less than {LEAST_SHARE:g}: this"
            " machine is too busy to judge by the clock. Run fewer evaluations at once, or less beside this server."
        )
