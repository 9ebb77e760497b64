"""A time limit says nothing of code on a machine that is too busy: measure whether it is, before a patch is blamed.

The sandbox itself judges by how long its processes waited for a core (`python_tir/isolation/core_wait.py`), but only
its own time limit, and only where the kernel counts that. Git has time limits of its own within a call, and nobody
recorded its waiting. So the share of a core is measured when a limit was reached.
"""

from __future__ import annotations

from env_servers.python_tir.isolation import core_wait
from env_servers.python_tir.sandbox import NoCore, Snippet
from env_servers.python_tir.warm.sandbox import WarmSandbox

TIME_LIMIT = "time_limit"
"""`Outcome.ended` and `Execution.killed` at a wall clock."""
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
        NoCore: It is less than core_wait.LEAST_SHARE.
        SandboxError: The sandbox failed.
    """
    execution = await sandbox.execute(Snippet(MEASURE), sandbox.limits.for_call(MEASURE_S, None, None))
    share = 0.0 if execution.killed else float(execution.stdout)
    if share < core_wait.LEAST_SHARE:
        raise NoCore(
            f"a time limit was reached while a process got {share:.2f} of a core, less than"
            f" {core_wait.LEAST_SHARE:g}: this machine is too busy to judge by the clock. Run fewer evaluations at"
            " once, or less beside this server."
        )
