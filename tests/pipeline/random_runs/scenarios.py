"""Random runs of the loop: a seed -> a configuration and a list of faults -> what broke. And the shortest list that
still breaks it.

    scenario(seed)      mode, S, B, push_every, early accumulation, checkpoints, evaluations, epochs, environments with
                        shares, a curriculum, length_balance, run counters, and up to ten events over up to four
                        processes ("lives")
    play(s, directory)  runs it, a resume after every life that ended early, then without faults to the end; ->
                        sentences about what is wrong
    shrink(s, fails)    delta debugging (Zeller and Hildebrandt, 2002) over the events: drop chunks for as long as it
                        still fails

Every life must complete or end by an error with a name. In the end no token is older than S, every prompt ended exactly
once, the ledger's audit is clean, every step has one row of metrics, every evaluation that was due is recorded once,
and the final weights' own record of what they were trained on is what the ledger says. Every group counts once in the
run's counters. Nothing new begins after a stop, a suspension alone ends no life, and without staleness the weights are
those of the same run without events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from openrlhf_tir.errors import Diverged, StallError, Stopped
from openrlhf_tir.pipeline.ledger.ledger import Audit, audit
from openrlhf_tir.simulation.virtual_loop import run

from ..fakes import MemoryMetrics, ends_of
from .world import NO_START, BlendedPrompts, LearnerGone, World, WorldLearner, live, pipeline_in

GRID_S = 1 / 16
NO_ENGINE = ("No rollout actor is left", NO_START)
FAULTLESS_LIVES = 3
"""After the last life with events: the first may still find broken what the one before left, a third has no excuse."""
LIFE_S = 50_000.0
"""Virtual: a life that takes longer hangs in a way that not even the watchdog sees."""
KINDS = {
    "kill": 3,
    "kill_all": 2,
    "hang": 3,
    "refuse": 2,
    "env_hang": 1,
    "no_start": 1,
    "learner_die": 1,
    "learner_hang": 1,
    "learner_nan": 2,
    "learner_mute": 1,
    "disk_copy": 1,
    "disk_full": 2,
    "disk_stuck": 1,
    "evaluation_fail": 2,
    "evaluation_hang": 1,
    "stop": 6,
    "crash": 4,
    "suspend": 2,
}
"""Event -> how often, relative to the others."""


@dataclass(frozen=True, slots=True)
class Event:
    """`at` virtual seconds after a life's start, after `hops` turns of the event loop: a place between two awaits."""

    life: int
    at: float
    hops: int
    kind: str
    arg: int


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    mode: str
    S: int
    B: int
    push_every: int
    save_steps: int
    eval_steps: int
    actors: int
    prompts: int
    episodes: int
    max_steps: int
    depth: str | None
    drop: float
    write_s: float
    early: str
    shares: bool
    curriculum: bool
    length_balance: bool
    counting: bool
    copy_s: float
    events: tuple[Event, ...]


def scenario(seed: int) -> Scenario:
    r = random.Random(seed)
    mode = r.choice(["sync", "one_step", "pipeline", "pipeline", "pipeline_drain"])
    S = {"sync": 0, "one_step": 1}.get(mode) if mode in ("sync", "one_step") else r.randint(1, 4)
    lives = r.randint(1, 4)
    events = [_event(r, lives) for _ in range(r.randint(0, 10))]
    B = r.randint(1, 3)
    # of a source of its own: the rest of a seed's scenario stays what it was
    early = random.Random(f"early {seed}").random() < 0.6 and mode == "pipeline"
    parts = random.Random(f"parts {seed}")
    return Scenario(
        seed,
        mode,
        S,
        B=3 * B if early else B,
        push_every=r.randint(1, S + 1),
        save_steps=r.choice([-1, 1, 2, 3]),
        eval_steps=r.choice([-1, -1, 2, 3]),
        actors=r.randint(1, 3),
        prompts=r.randint(6, 16),
        episodes=r.randint(1, 2),
        max_steps=r.choice([1000, 1000, 1000, 4]),
        depth=r.choice([None, "auto"]) if mode.startswith("pipeline") else None,
        drop=r.choice([0.0, 0.2, 0.6]),
        write_s=r.choice([0.0, 0.5, 3.0]),
        early="on" if early else "off",
        shares=parts.random() < 0.4,
        curriculum=parts.random() < 0.3,
        length_balance=(balance := parts.random() < 0.3),
        counting=balance or parts.random() < 0.5,
        copy_s=parts.choice([0.0625, 0.0625, 2.0]),
        events=tuple(sorted(events, key=lambda e: (e.life, e.at, e.hops))),
    )


def _event(r: random.Random, lives: int) -> Event:
    """In the first 20 s of a life, in which most of what it does happens."""
    (kind,) = r.choices(list(KINDS), list(KINDS.values()))
    return Event(
        r.randrange(lives), r.randrange(20 * 16) * GRID_S, r.choice([0, 0, 1, 2, 3, 5, 8, 13]), kind, r.randrange(4)
    )


class Life:
    """One process of the run, and what befalls it."""

    def __init__(self, s: Scenario, number: int, run_dir: Path, metrics: MemoryMetrics) -> None:
        """`metrics` is of all lives, as the file is."""
        self.s, self.number, self.metrics = s, number, metrics
        self.world = World(
            s.seed * 100 + number,
            actors=s.actors,
            latency=lambda r: r.choice([0.125, 1.0, 4.0]),
            drop=s.drop,
            run_seed=s.seed,
            counting=s.counting,
        )
        self.learner = WorldLearner(s.S, write_s=s.write_s, copy_s=s.copy_s)
        sections = {
            "rollout": {"batch_size": s.B},
            "pipeline": {
                "mode": s.mode,
                "max_staleness": s.S if s.mode.startswith("pipeline") else None,
                "push_every": s.push_every,
                "depth": s.depth,
                "early_accumulation": s.early,
            },
            "train": {"max_steps": s.max_steps},
            "ckpt": {"save_steps": s.save_steps},
            "eval": {"steps": s.eval_steps},
        }
        self.pipeline = pipeline_in(
            self.world,
            self.learner,
            run_dir,
            prompts=s.prompts,
            episodes=s.episodes,
            sections=sections,
            metrics=metrics,
            order=BlendedPrompts(s.prompts, s.episodes, s.seed, shares=s.shares, curriculum=s.curriculum)
            if s.shares or s.curriculum
            else None,
        )
        method = self.pipeline.scheduler.method
        method._balanced = dict.fromkeys([*method._balanced, "a", "b", "echo", ""], s.length_balance)
        self.crashed = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        main = asyncio.create_task(live(self.world, self.pipeline, resume=self.number > 0), name="main")

        def hop(event: Event, left: int) -> None:
            if main.done():
                return
            if left:
                loop.call_soon(hop, event, left - 1)
            else:
                self.strike(event, main)

        for event in self.s.events:
            if event.life == self.number:
                loop.call_later(event.at, hop, event, event.hops)
        try:
            async with asyncio.timeout(LIFE_S):
                await main
        except asyncio.CancelledError:
            if not self.crashed:
                raise

    def strike(self, event: Event, main: asyncio.Task) -> None:
        kind, n = event.kind, event.arg
        if kind == "crash":
            self.crashed = True
            main.cancel()
        elif kind == "stop":
            self.pipeline.stop.request("the scenario")
        elif kind == "suspend":
            # longer than every deadline of the run; every second time nobody but the waiters can notice
            asyncio.get_running_loop().suspend(5000.0, noticed=n % 2 == 0)
        elif kind == "env_hang":
            self.world.env_hangs = n
        elif kind == "no_start":
            self.world.failing_starts = n
        elif kind.startswith("evaluation_"):
            self.pipeline.evaluation.faults[kind.removeprefix("evaluation_")] += n
        elif kind.startswith(("learner_", "disk_")):
            self.learner.faults[kind.split("_")[1]] += 1
        else:
            getattr(self.world, kind)(n)

    def law(self) -> list[str]:
        """What must hold whenever a life ends."""
        scheduler = self.pipeline.scheduler
        wrong = []
        if self.learner.stale:
            wrong.append(f"trained beyond S = {self.s.S}: {', '.join(map(str, self.learner.stale))}")
        if self.pipeline.evaluation.mixed:
            wrong.append(f"evaluated with samples of another version: {self.pipeline.evaluation.mixed}")
        if self.learner.overlaps:
            wrong.append(f"the learner was at work when it was asked: {self.learner.overlaps}")
        if any(n > self.s.B for n in self.learner.sizes):
            wrong.append(f"steps on {self.learner.sizes} groups, B = {self.s.B}")
        if scheduler.ended.total() + scheduler.slots_taken != scheduler.dispatched:
            wrong.append(f"slots do not add up: {scheduler.ended}, {scheduler.slots_taken} of {scheduler.dispatched}")
        return wrong


def unnamed(error: BaseException) -> Iterator[BaseException]:
    """The errors in it that are not an end with a name."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from unnamed(inner)
    elif not isinstance(error, StallError | LearnerGone | Stopped | Diverged) and not any(
        said in str(error) for said in NO_ENGINE
    ):
        yield error


def play(s: Scenario, run_dir: Path) -> list[str]:
    last, metrics = max((e.life for e in s.events), default=0), MemoryMetrics()
    for number in range(last + 1 + FAULTLESS_LIVES):
        life = Life(s, number, run_dir, metrics)
        try:
            run(life.run())
            ended = not life.crashed
        except TimeoutError:
            return [f"life {number} hangs: {life.pipeline.observer.current_phase}"]
        except BaseException as e:
            ended = False
            if {event.kind for event in s.events if event.life == number} == {"suspend"}:
                return [f"life {number} was only suspended, and ended by {type(x).__name__}: {x}" for x in _all(e)]
            if strange := list(unnamed(e)):
                return [f"life {number} ended by {type(x).__name__}: {x}" for x in strange]
        if wrong := life.law():
            return [f"life {number}: {w}" for w in wrong]
        if ended:
            return _at_the_end(s, life, run_dir)
    return [f"{FAULTLESS_LIVES} lives without a fault do not bring the run to its end"]


def _all(error: BaseException) -> Iterator[BaseException]:
    """The errors of a task group's, or the one."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _all(inner)
    else:
        yield error


def _at_the_end(s: Scenario, life: Life, run_dir: Path) -> list[str]:
    report, wrong = audit(run_dir / "ledger.jsonl"), []
    wrong += map(str, report.errors)
    if s.counting:
        wrong += _counted(life, report)
    if s.S == 0 and s.events and not any(end.startswith("failed") for end in report.ended):
        wrong += _differs_from_undisturbed(s, life, run_dir)
    if report.open or not report.finished:
        wrong.append(f"finished {report.finished}, open {report.open}")
    if report.trained != life.learner.lineage:
        wrong.append(f"the ledger says {report.trained} was trained, the weights {life.learner.lineage}")
    if len(set(report.trained)) != len(report.trained):
        wrong.append(f"trained twice: {report.trained}")
    if s.max_steps == 1000 and not wrong and not s.shares and not s.curriculum:
        try:
            ends_of(report, s.prompts * s.episodes)
        except AssertionError as e:
            wrong.append(f"not every prompt ended once: {report.ended}, {str(e)[:100]}")
    if sorted(life.metrics.rows) != (steps := [*range(1, life.pipeline.version + 1)]):
        wrong.append(f"rows of metrics for {sorted(life.metrics.rows)}, steps {steps}")
    due = [*range(s.eval_steps, life.pipeline.version + 1, s.eval_steps)] if s.eval_steps > 0 else []
    if sorted(life.metrics.evaluated) != due:
        wrong.append(f"evaluations of {life.metrics.evaluated} are recorded, due are {due}")
    if life.pipeline.saver.last_snapshot and report.committed_trained != report.trained:
        wrong.append("trained, and not in a checkpoint")
    return wrong


def _counted(life: Life, report: Audit) -> list[str]:
    """Every group that was trained or filtered counts once, in whatever life it ended."""
    method = life.pipeline.scheduler.method
    method.batch_trained()  # what ended since the last batch
    ends = len(report.trained) + sum(n for end, n in report.ended.items() if end.startswith("filtered"))
    seen = sum(counters["seen"] for counters in method.counters.prompts.values())
    if (method.counters.run.get("groups", 0), seen) != (ends, ends):
        return [f"{ends} groups were trained or filtered, the counters say {method.counters.run}, {seen} by prompt"]
    return []


def _differs_from_undisturbed(s: Scenario, life: Life, run_dir: Path) -> list[str]:
    """Without staleness what is trained, in which order and with which counters is that of a run without events."""
    other = Life(replace(s, events=()), 0, run_dir / "undisturbed", MemoryMetrics())
    run(other.run())
    if life.learner.lineage != other.learner.lineage:
        return [f"trained {life.learner.lineage}, undisturbed {other.learner.lineage}"]
    ours, theirs = (one.pipeline.scheduler.method for one in (life, other))
    theirs.batch_trained()
    ours.batch_trained()
    if ours.counters.run != theirs.counters.run:
        return [f"counters {ours.counters.run}, undisturbed {theirs.counters.run}"]
    return []


def shrink(s: Scenario, fails: Callable[[Scenario], bool]) -> Scenario:
    """The same scenario with as few events as still make it fail."""
    events, chunks = list(s.events), 2
    while events:
        size = -(-len(events) // chunks)
        shorter = next(
            (
                rest
                for i in range(0, len(events), size)
                if fails(replace(s, events=tuple(rest := events[:i] + events[i + size :])))
            ),
            None,
        )
        if shorter is not None:
            events, chunks = shorter, max(2, chunks - 1)
        elif size == 1:
            break
        else:
            chunks = min(len(events), 2 * chunks)
    return replace(s, events=tuple(events))
