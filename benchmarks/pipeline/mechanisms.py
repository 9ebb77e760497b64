"""Measure what each optional mechanism of the pipeline brings: python -m benchmarks.pipeline.mechanisms

Every mechanism is simulated with and without, in the situations in which a user could gain from it, on the seed
workload and on `workload_tools.toml`, for three seeds (the kept rows: one or two) of the workload's lengths, latencies
and verdicts. Nothing is emulated on the wall clock, so a figure depends on the code and the seed alone.

    gain    (seconds of a step without) / (seconds of a step with) - 1, the mean over the seeds
    spread  sample standard deviation of the three gains, which are paired: both runs of a seed have the same work
    counts  the gain is more than twice the spread, so it is not one of the seeds alone; one seed counts for nothing

A mechanism earns its lines if a gain counts and is at least 10 % in one of its situations. `docs/design-decisions.md`
has the table with what speaks for a mechanism besides: reliability, a method's specification, or a user's OpenRLHF
script. Mechanisms that were removed cannot be measured any more: `--kept` prints all rows of
`benchmarks/results/mechanisms.json`, which says at which commit they were measured.

The last line is one JSON object.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.command import command_parser, output_file
from openrlhf_tir.pipeline.scheduler.depth import AutoDepth
from openrlhf_tir.simulation.run import Result, batch_rollout_s, configure, simulate
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Acceptance, Workload

from .workloads import TOOLS_WORKLOAD

RESULTS = Path(__file__).parents[1] / "results" / "mechanisms.json"
SEEDS = (20261120, 7, 11)
WARM_UP = 2
BAR = 0.10
"""The gain that a mechanism must bring."""
ADVISED = {"fast_lane": "auto", "early_accumulation": "on", "kv_after_push": "keep"}
"""What docs/rollout.md advises for a fast learner."""


@dataclass(frozen=True)
class Situation:
    """Where a user would be: a workload, how fast the learner is, how many groups the filters keep.

    Attributes:
        name: Shown in the table.
        path: The workload's file.
        ratio: Learner seconds over the rollout seconds of one batch; None for a learner as fast as saturated engines.
        settings: Settings of [pipeline].
        steps: Steps of a run; the first two are not counted.
        acceptance: "constant" (all groups are kept), "falling" (80 % to 10 %) or "jumping" (10 % to 50 %).
        kv_tokens: Size of an engine's KV cache; None for the workload's.
    """

    name: str
    path: Path = SEED_WORKLOAD
    ratio: float | None = 0.25
    settings: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 12
    acceptance: str = "constant"
    kv_tokens: int | None = None

    def workload(self, seed: int) -> Workload:
        """Return the workload with another seed."""
        workload = replace(Workload.read(self.path), seed=seed)
        if self.kv_tokens is None:
            return workload
        return replace(workload, engine=replace(workload.engine, kv_tokens=self.kv_tokens))

    def acceptance_of(self, workload: Workload) -> Acceptance:
        """Return the share of groups that the filters keep, step by step."""
        by_name = {
            "constant": workload.acceptance,
            "falling": replace(workload.late, steps=self.steps),
            "jumping": replace(workload.jump, steps=self.steps),
        }
        return by_name[self.acceptance]


FAST = Situation("learner 4x as fast, S = 4", settings={"max_staleness": 4})
FAST_ADVISED = Situation("learner 4x as fast, advised settings", settings={"max_staleness": 4, **ADVISED})
TOOLS = Situation("slow tools, learner 4x as fast, S = 4", path=TOOLS_WORKLOAD, settings={"max_staleness": 4})
TOOLS_ADVISED = replace(TOOLS, name="slow tools, advised settings", settings={"max_staleness": 4, **ADVISED})
EVEN = Situation("learner as fast as a rollout, S = 4", ratio=1.0, settings={"max_staleness": 4})
FALLING_2 = Situation("acceptance 80 % to 10 %, S = 2", ratio=None, settings={"max_staleness": 2}, steps=20,
                      acceptance="falling")  # fmt: skip
FALLING_4 = replace(FALLING_2, name="acceptance 80 % to 10 %, S = 4", settings={"max_staleness": 4})
JUMPING_2 = replace(FALLING_2, name="acceptance 10 % to 50 %, S = 2", acceptance="jumping")
SHORT_KV = replace(FAST, name="KV cache of a tenth, learner 4x as fast", kv_tokens=150_000)
DEPTH_SITUATIONS = (FAST, EVEN, FALLING_2, FALLING_4, JUMPING_2, SHORT_KV)


@dataclass(frozen=True)
class Way:
    """How a run is made.

    Attributes:
        settings: Settings of [pipeline] besides the situation's.
        depth: Depth in batches, "all" for what staleness allows; None for the mode's own.
        laws: Replaced attributes of AutoDepth.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    depth: str | None = None
    laws: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Mechanism:
    """A row of the table: what is compared, and where."""

    name: str
    with_it: Way
    without: Way
    situations: tuple[Situation, ...]


def without_law(**laws: Any) -> Way:
    """Return a run with other laws of AutoDepth."""
    return Way(laws=laws)


MECHANISMS = (
    Mechanism("fast lane", Way(), Way(settings={"fast_lane": "off"}), (FAST_ADVISED, TOOLS_ADVISED)),
    Mechanism("early accumulation", Way(), Way(settings={"early_accumulation": "off"}), (FAST_ADVISED, TOOLS_ADVISED)),
    Mechanism("KV kept at a push", Way(), Way(settings={"kv_after_push": "recompute"}), (FAST_ADVISED, TOOLS_ADVISED)),
    Mechanism("depth auto, beside the depth that staleness allows", Way(), Way(depth="all"), DEPTH_SITUATIONS),
    Mechanism(
        "auto: more groups than all accepted would leave room for (surplus)",
        Way(),
        without_law(max_accepted=lambda self, rolling: rolling),
        DEPTH_SITUATIONS,
    ),
    Mechanism(
        "auto: bound of demand",
        Way(),
        without_law(_demand=lambda self: float("inf")),
        DEPTH_SITUATIONS,
    ),
    Mechanism(
        "auto: bound of engines",
        Way(),
        without_law(_engines_are_full=lambda self, rolling: False),
        DEPTH_SITUATIONS,
    ),
    Mechanism(
        "auto: pause at the gate",
        Way(),
        without_law(paused_at_gate=lambda self, rolling, buffered: False),
        DEPTH_SITUATIONS,
    ),
    Mechanism("a push every second batch", Way(settings={"push_every": 2}), Way(), (FAST, EVEN)),
)


@contextmanager
def replaced(target: type, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Replace attributes of a class for a while."""
    before = {name: target.__dict__[name] for name in attributes}
    for name, value in attributes.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


class Runs:
    """Simulated runs: (way, situation, seed) -> result, each made once."""

    def __init__(self, steps: int | None) -> None:
        """Create an empty table of runs of `steps` steps; None for those of the situations."""
        self._steps = steps
        self._made: dict[tuple[int, str, int], tuple[float, float]] = {}
        self._rollout_s: dict[tuple[Path, int, int | None], float] = {}

    def step_and_age(self, way: Way, situation: Situation, seed: int) -> tuple[float, float]:
        """Return seconds of a counted step, and the mean age of trained tokens in policy versions."""
        plain = not (way.settings or way.depth or way.laws)
        key = (0 if plain else id(way), situation.name, seed)
        if key not in self._made:
            self._made[key] = self._run(way, situation, seed)
        return self._made[key]

    def _run(self, way: Way, situation: Situation, seed: int) -> tuple[float, float]:
        if self._steps is not None:
            situation = replace(situation, steps=self._steps)
        workload = situation.workload(seed)
        learner_s = self._learner_s(situation, workload, seed)
        settings = {"mode": "pipeline", **situation.settings, **way.settings}
        if way.depth is not None:
            settings["depth"] = (settings["max_staleness"] + 1) * workload.prompts
        config = configure(workload, **settings)
        # Steps behind the counted ones: at its end a run admits no more groups than it still needs.
        steps = situation.steps + config.pipeline.requested_staleness + 1
        config = config.model_copy(update={"train": config.train.model_copy(update={"max_steps": steps})})
        with replaced(AutoDepth, way.laws):
            result = simulate(
                workload,
                config,
                acceptance=situation.acceptance_of(workload),
                learner_s=learner_s,
                warm_up=WARM_UP,
            )
        return _step_seconds(result, situation.steps), result.staleness_mean

    def _learner_s(self, situation: Situation, workload: Workload, seed: int) -> float:
        if situation.ratio is None:
            return workload.prompts / workload.saturated_groups_per_s
        key = (situation.path, seed, situation.kv_tokens)
        if key not in self._rollout_s:
            self._rollout_s[key] = batch_rollout_s(workload)
        return situation.ratio * self._rollout_s[key]


def _step_seconds(result: Result, steps: int) -> float:
    times = result.rows["time"]
    return (times[steps - 1] - times[WARM_UP - 1]) / (steps - WARM_UP)


def measured(mechanism: Mechanism, situation: Situation, runs: Runs, seeds: Sequence[int]) -> dict[str, Any]:
    """Return one row of the table."""
    with_it = [runs.step_and_age(mechanism.with_it, situation, seed) for seed in seeds]
    without = [runs.step_and_age(mechanism.without, situation, seed) for seed in seeds]
    return row(mechanism.name, situation.name, with_it, without)


def row(
    mechanism: str, situation: str, with_it: Sequence[tuple[float, float]], without: Sequence[tuple[float, float]]
) -> dict[str, Any]:
    """Return one row of the table from the runs of each seed, in the same order of seeds.

    Args:
        mechanism: Name of the mechanism.
        situation: Name of the situation.
        with_it: Seconds of a step and mean age of trained tokens, of each run with the mechanism.
        without: The same of each run without.
    """
    gains = [slow / fast - 1 for (fast, _), (slow, _) in zip(with_it, without, strict=True)]
    gain = statistics.mean(gains)
    spread = statistics.stdev(gains) if len(gains) > 1 else 0.0
    counts = len(gains) > 1 and abs(gain) > 2 * spread and abs(gain) >= 0.0005
    return {
        "mechanism": mechanism,
        "situation": situation,
        "step_s_with": round(statistics.mean(step_s for step_s, _ in with_it), 2),
        "step_s_without": round(statistics.mean(step_s for step_s, _ in without), 2),
        "age_with": round(statistics.mean(age for _, age in with_it), 2),
        "age_without": round(statistics.mean(age for _, age in without), 2),
        "gains": [round(gain, 4) for gain in gains],
        "gain": round(gain, 4),
        "spread": round(spread, 4),
        "counts": counts,
        "earns": counts and gain >= BAR,
    }


def verdict(row: Mapping[str, Any]) -> str:
    """Return what a row says about its mechanism, by the step's time alone."""
    if row["earns"]:
        return "earns its lines"
    if len(row["gains"]) < 2:
        return "one seed: not judged"
    return "below the bar" if row["counts"] else "no effect"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a Markdown table."""
    lines = [
        "| mechanism | situation | with: step s, age | without: step s, age | gain | spread | seeds | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        spread = f"{row['spread']:.1%}" if len(row["gains"]) > 1 else ""
        lines.append(
            f"| {row['mechanism']} | {row['situation']} | {row['step_s_with']:.1f}, {row['age_with']:.2f}"
            f" | {row['step_s_without']:.1f}, {row['age_without']:.2f} | {row['gain']:+.1%} | {spread}"
            f" | {len(row['gains'])} | {verdict(row)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, six steps, one situation each: a smoke test")
    parser.add_argument("--only", metavar="TEXT", help="mechanisms whose name contains it")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="of the workload (default: %(default)s)")
    parser.add_argument("--out", type=output_file, metavar="JSON", help="write the rows there")
    parser.add_argument("--kept", action="store_true", help=f"measure nothing: print the rows of {RESULTS.name}")
    args = parser.parse_args()
    if args.kept:
        kept = json.loads(RESULTS.read_text())
        print(markdown(kept["rows"]))
        print(json.dumps({f"{row['mechanism']} | {row['situation']}": row["gain"] for row in kept["rows"]}))
        return
    seeds = tuple(args.seeds[:1] if args.quick else args.seeds)
    runs = Runs(6 if args.quick else None)
    rows: list[dict[str, Any]] = []
    for mechanism in MECHANISMS:
        if args.only and args.only not in mechanism.name:
            continue
        for situation in mechanism.situations[:1] if args.quick else mechanism.situations:
            began = time.monotonic()
            rows.append(measured(mechanism, situation, runs, seeds))
            print(f"{json.dumps(rows[-1])} # {time.monotonic() - began:.0f} s", flush=True)
            if args.out:
                args.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(markdown(rows))
    print(json.dumps({f"{row['mechanism']} | {row['situation']}": row["gain"] for row in rows}))


if __name__ == "__main__":
    main()
