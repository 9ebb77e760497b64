"""python -m benchmarks.envs.swe: how long a session of `swe` takes to start and a patch to be judged, and hostile work
against it.

    session start    open (files, git directory) to the first command's turn, one after another: median, ms
    evaluation       a gold patch applied to a fresh copy, the hidden tests of `lru` (17) and `matrix` (37): median, s
    hostile          the tests' suite (tests/contract/swe_hostile.py), two at a time: contained of total

The sandbox is the server's own, without HTTP. The last line is JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import json
import statistics
import time
from typing import Any

from benchmarks.command import command_parser
from env_servers.swe.backend import Local
from env_servers.swe.env import LIMITS, Shared, SweEnv
from env_servers.swe.sources import bundled
from env_servers.swe.start import new_sandbox, shared

SUITE = "tests.contract.swe_hostile"
EVALUATIONS = 2
COMMENT = b"diff --git a/README.md b/README.md\n--- a/README.md\n+++ b/README.md\n@@ -1 +1,2 @@\n # NAME\n+A line.\n"
"""Harmless: the repository as it should be, judged after a patch."""


async def sessions(ours: Shared, rounds: int) -> float:
    """Milliseconds of `reset`, the median."""
    times = []
    for _ in range(rounds + 1):
        env = SweEnv(ours)
        start = time.perf_counter()
        await env.reset({"repo": "roman"}, 0)
        times.append(1e3 * (time.perf_counter() - start))
        await env.close()
    return statistics.median(times[1:])  # the first starts the warm interpreter


async def evaluations(ours: Shared, rounds: int) -> float:
    """Seconds, the median."""
    assert isinstance(ours.backend, Local)
    times = []
    for i in range(rounds):
        source = bundled(("lru", "matrix")[i % 2])
        start = time.perf_counter()
        report = await ours.backend.grader.evaluate(
            source.tree, COMMENT.replace(b"NAME", source.name.encode()), source.suite
        )
        times.append(time.perf_counter() - start)
        if not report.resolved:
            raise RuntimeError(
                f"{source.name} as it should be is {report.reason}: {report.detail} {dict(report.failures)}"
            )
    return statistics.median(times)


async def hostile(ours: Shared, every: int) -> dict[str, Any]:
    """None where the tests are not there."""
    if importlib.util.find_spec(SUITE) is None:
        return {"swe_hostile_contained": None, "swe_hostile_total": None}
    suite = importlib.import_module(SUITE)
    world, attacks, free = suite.World(ours), suite.ATTACKS[::every], asyncio.Semaphore(EVALUATIONS)

    async def contained(attack: Any) -> bool:
        async with free:
            well = await attack.run(world)
        if not well:
            print(f"not contained (swe): {attack.name}", flush=True)
        return well

    return {
        "swe_hostile_contained": sum(await asyncio.gather(*map(contained, attacks))),
        "swe_hostile_total": len(attacks),
    }


async def measure(quick: bool) -> dict[str, Any]:
    sandbox = new_sandbox(LIMITS, evaluations=EVALUATIONS)
    ours = shared(
        sandbox,
        evaluations=EVALUATIONS,
        command_s=2.0,
        test_s=4.0,
        max_turns=50,
        mirror=None,
        sessions=16,
        memory=4 << 30,
    )
    try:
        start_ms, evaluate_s = await sessions(ours, 5 if quick else 40), await evaluations(ours, 4 if quick else 20)
        facts = {
            "swe_session_start_ms": round(start_ms, 1),
            "swe_evaluate_s": round(evaluate_s, 3),
            **await hostile(ours, 6 if quick else 1),
        }
    finally:
        await sandbox.close()
    contained = f"{facts['swe_hostile_contained']} of {facts['swe_hostile_total']} contained"
    print(
        f"swe: session start {start_ms:.0f} ms, a patch judged in {evaluate_s:.2f} s, hostile: {contained}", flush=True
    )
    return facts


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, every sixth attack")
    print(json.dumps(asyncio.run(measure(parser.parse_args().quick))))


if __name__ == "__main__":
    main()
