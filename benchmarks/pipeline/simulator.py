"""What simulation costs, and what the real controller code in it costs: python -m benchmarks.pipeline.simulator
[--quick]

    wide        200 steps of 128 x 16 on 64 engines, seconds: at most  60
    long        10,000 steps of 16 x 8 on 8 engines, seconds: at most 300
    growth      resident memory gained over the last three quarters of a run of 2,000 and of the long one, MiB: flat
    controller  CPU seconds of loop, scheduler, gate, buffer, ledger, balancing and depth control per 2,048
                trajectories of 8k tokens (128 groups of 16, on four learner ranks), in a run whose rollout and learner
                are one timer each, so that nothing else is counted: at most 1.0

Nothing is emulated on the wall clock here: `benchmarks.pipeline` does that.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.command import command_parser
from openrlhf_tir.config import Config
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pipeline.loop import Pipeline
from openrlhf_tir.simulation.parts import EndlessPrompts, SimulatedLearner, SimulatedPublisher, StepRecorder
from openrlhf_tir.simulation.run import Result, configure, simulate
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload
from openrlhf_tir.types import KEEP, Group, GroupKey, GroupMeta, Task

LEARNER_S = 40.0
TOKENS = 8192


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


class Memory:
    """Resident memory, sampled twice a second; `growth` compares the first quarter's peak with the whole run's."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._stop = threading.Event()

    def __enter__(self) -> Memory:
        threading.Thread(target=self._sample, daemon=True).start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.5):
            self.samples.append(resident_mib())

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self.samples.append(resident_mib())

    @property
    def growth(self) -> float:
        return max(self.samples) - max(self.samples[: max(1, len(self.samples) // 4)])


def timed(workload: Workload) -> tuple[Result, float, float]:
    """A run with adaptive depth -> result, seconds, MiB of growth."""
    with Memory() as memory:
        start = time.perf_counter()
        result = simulate(workload, configure(workload, mode="pipeline", depth="auto"), learner_s=LEARNER_S)
        return result, time.perf_counter() - start, memory.growth


class OneTimer:
    """A rollout whose groups are one timer: what is left on the CPU is the controller."""

    version = 0

    def __init__(self, samples: int) -> None:
        self.samples = samples

    async def run_group(self, key: GroupKey, task: Task) -> tuple[GroupMeta, dict[int, int]]:
        await asyncio.sleep(1 + key.prompt % 7)
        n = self.samples
        lengths = [TOKENS - (key.prompt * 31 + i * 17) % 1000 for i in range(n)]
        tokens = {self.version: sum(lengths)}
        return (
            GroupMeta(
                key, KEEP, list(range(n)), [0.0] * n, [True] * n, [True] * n, lengths, lengths, 128, self.version
            ),
            tokens,
        )

    async def fetch(self, payloads: Sequence[Any]) -> list[Group]:
        return list(payloads)

    async def store(self, group: Group) -> Group:
        return group

    def where(self, key: GroupKey) -> str:
        return "nowhere"

    def engine_stats(self) -> dict[str, float]:
        return {
            "open": 8.0,
            "running": 2000.0,
            "waiting": 10.0,
            "placed": 0.0,
            "aside": 0.0,
            "width": 2048.0,
            "preemptions": 0.0,
        }

    def pause(self) -> None: ...
    def resume(self, version: int) -> None:
        self.version = version


def controller_cpu_s(steps: int) -> float:
    """Per step of 128 x 16, the means of batches, ledger lines and balancing included."""

    async def main(directory: Path) -> float:
        cfg = Config.model_validate(
            {
                "run_dir": directory,
                "actor": {"num_gpus_per_node": 4},
                "pipeline": {"mode": "pipeline", "depth": "auto"},
                "train": {"max_steps": steps},
                "ckpt": {"save_steps": -1},
            }
        )
        rollout = OneTimer(cfg.rollout.n_samples_per_prompt)
        pipeline = Pipeline(
            cfg,
            prompts=EndlessPrompts(),
            rollout=rollout,
            learner=SimulatedLearner(2.0),
            publisher=SimulatedPublisher(rollout, 0.1),
            ledger=Ledger(directory / "ledger.jsonl"),
            checkpoints=Checkpoints(directory / "ckpt", 1),
            observer=StepRecorder(),
        )
        start = time.process_time()
        await pipeline.run()
        return (time.process_time() - start) / steps

    with tempfile.TemporaryDirectory() as directory:
        return run(main(Path(directory)))


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="a twentieth of the steps")
    quick = parser.parse_args().quick
    seed = Workload.read(SEED_WORKLOAD)
    facts: dict[str, float] = {}
    for name, prompts, samples, engines, steps in (
        ("wide", 128, 16, 64, 200),
        ("flat", 16, 8, 8, 2_000),
        ("long", 16, 8, 8, 10_000),
    ):
        workload = replace(seed.with_batch(prompts, samples, engines=engines), steps=steps // 20 if quick else steps)
        result, seconds, growth = timed(workload)
        facts |= {f"{name}_s": round(seconds, 1), f"{name}_growth_mib": round(growth, 1)}
        print(
            f"{name}: {workload.steps} steps of {prompts} x {samples} on {engines} engines in {seconds:.1f} s;"
            f" {growth:.1f} MiB of growth; engines at {result.engine_use:.0%} of their decode rate, token age"
            f" {result.staleness_mean:.2f} (max {result.staleness_max})",
            flush=True,
        )
    facts["controller_cpu_s_per_step"] = round(controller_cpu_s(10 if quick else 50), 3)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
