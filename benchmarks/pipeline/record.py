"""Record: what a run of the benchmark tells, step by step, in emulated seconds. The pipeline's metrics and the
learner's histogram -> figures."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field

from openrlhf_tir.simulation.workload import Workload

from .parts import Plan

PHASES = ("replay_wait_s", "gate_wait_s", "drain_s", "accumulate_s", "step_s", "push_s")


@dataclass(slots=True)
class ModeFigures:
    """One run, of its counted steps. Seconds are emulated, but for cpu and lag."""

    name: str
    step_s: float
    """Mean wall-clock of a step."""
    steps_s: list[float]
    """Wall-clock of each counted step."""
    trained_tokens_per_s: float
    split: dict[str, float]
    """Mean seconds of a step by phase; `other` is the controller's own."""
    learner_idle: float
    engine_idle: float
    """Share of the engines' time in which nothing was running on them."""
    engine_use: float
    """Tokens decoded over what saturated engines would have decoded."""
    staleness: dict[int, float]
    """Updates of age -> share of trained tokens."""
    trained_groups: int
    filtered_groups: int
    discarded_groups: int
    """Rolled for nothing, by fault or age or because there were too many: all that was issued again or given up."""
    surplus_groups: int
    controller_cpu_s_per_step: float
    """Process time of the controller, real seconds."""
    machine_busy: float
    """Share of both cores in use: near 1 the emulation itself was too slow."""
    rolling: float
    buffered: float

    @property
    def staleness_mean(self) -> float:
        return sum(age * share for age, share in self.staleness.items())

    @property
    def staleness_max(self) -> int:
        return max(self.staleness, default=0)

    def as_json(self) -> dict:
        return asdict(self) | {"staleness_mean": self.staleness_mean, "staleness_max": self.staleness_max}


@dataclass(slots=True)
class Row:
    at: float
    facts: Mapping[str, float]
    engines: Mapping[str, float]
    cpu_s: float
    jiffies: tuple[float, float]


@dataclass(slots=True)
class Record:
    """The pipeline's metrics, trace and progress sinks in one. `ended` is set when `steps` rows were logged."""

    steps: int
    rows: list[Row] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    engines: Mapping[str, float] = field(default_factory=dict)

    def log(self, step: int, row: Mapping[str, float]) -> None:
        if len(self.rows) < self.steps:
            self.rows.append(Row(time.monotonic(), dict(row), dict(self.engines), time.process_time(), cpu_jiffies()))
        if len(self.rows) >= self.steps:
            self.ended.set()

    def totals(self, engines: Mapping[str, float]) -> None:
        """The engines' counters, as of the push that ends a step."""
        self.engines = engines

    def truncate_after(self, step: int, evaluated: bool = True) -> None: ...
    def add(self, *args, **kwargs) -> None: ...
    def update(self, *args) -> None: ...
    def evaluated(self, *args) -> None: ...
    def group(self, *args) -> None: ...
    def notice(self, *args) -> None: ...
    @contextmanager
    def span(self, *args):
        yield

    def figures(self, plan: Plan, w: Workload, ages: Mapping[int, Counter[int]]) -> ModeFigures:
        """`ages`: per step, trained tokens by age. Counted time begins when the last warm-up step has ended."""
        warmup, scale = plan.warmup, plan.scale
        saturated = w.engine.count * w.engine.saturated_tokens_per_s
        first, counted = self.rows[warmup - 1], self.rows[warmup:]
        last = counted[-1]
        wall = (last.at - first.at) / scale
        n = len(counted)
        walls = [(b.at - a.at) / scale for a, b in zip([first, *counted], counted, strict=False)]
        split = {p.removesuffix("_s"): sum(r.facts.get(p, 0.0) for r in counted) / n / scale for p in PHASES}
        split["other"] = wall / n - sum(split.values())
        histogram: Counter[int] = Counter()
        for step in range(warmup, warmup + n):
            histogram.update(ages.get(step, {}))
        tokens = sum(histogram.values()) or 1
        ends = Counter({k: sum(r.facts.get(k, 0.0) for r in counted) for k in {k for r in counted for k in r.facts}})
        total, busy = (last.jiffies[i] - first.jiffies[i] for i in (0, 1))
        decoded = last.engines.get("tokens", 0.0) - first.engines.get("tokens", 0.0)
        return ModeFigures(
            name=plan.name,
            step_s=wall / n,
            steps_s=walls,
            trained_tokens_per_s=sum(r.facts["trained_tokens"] for r in counted) / wall,
            split=split,
            learner_idle=1 - (split["accumulate"] + split["step"]) * n / wall,
            engine_idle=1 - (last.engines.get("busy_s", 0.0) - first.engines.get("busy_s", 0.0)) / wall,
            engine_use=decoded / wall / saturated,
            staleness={age: histogram[age] / tokens for age in sorted(histogram)},
            trained_groups=int(sum(r.facts.get("trained_groups", 0) for r in counted)),
            filtered_groups=int(sum(v for k, v in ends.items() if k.startswith("drops/"))),
            discarded_groups=int(sum(v for k, v in ends.items() if k.startswith(("failed/", "requeued/")))),
            surplus_groups=int(ends["requeued/surplus"]),
            controller_cpu_s_per_step=(last.cpu_s - first.cpu_s) / n,
            machine_busy=busy / total if total else 0.0,
            rolling=statistics.mean(r.facts.get("rolling", 0.0) for r in counted),
            buffered=statistics.mean(r.facts.get("buffered", 0.0) for r in counted),
        )


def cpu_jiffies() -> tuple[float, float]:
    """(all, busy) ticks of the machine since its start."""
    with open("/proc/stat") as f:
        ticks = [float(x) for x in f.readline().split()[1:9]]
    return sum(ticks), sum(ticks) - ticks[3] - ticks[4]
