"""python -m benchmarks.pipeline.modes_real: the CPU quickstart, `pipeline` beside `sync`, on the real stack. Nothing is
emulated.

    for each seed: one base model -> RL in each mode, on the same problems, in an order that turns with the seed

Compared at equal work: seconds of training until a mode has trained as many tokens as the other also reached (a step's
tokens follow the policy, so the runs' totals differ), and the held-out accuracy at the end. On two cores engine and
learner share what they overlap on: the ratio is reported as it is. `--base RUN_DIR` of an earlier quickstart (its seed)
saves making a base model. The last line is one JSON object."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import NamedTuple

from benchmarks.command import command_parser
from openrlhf_tir.observability.report import summary
from openrlhf_tir.telemetry import metrics

from ..quickstart_runs import add_run_flags, base_of, seed_of, train_from

MODES = ("sync", "pipeline")


class Outcome(NamedTuple):
    """`seconds` and `tokens` are running totals over the steps."""

    seconds: list[float]
    tokens: list[float]
    accuracy: float
    overlap: float


def seconds_to(tokens: float, o: Outcome) -> float:
    """When the run had trained so many tokens: linear within the step that crosses."""
    before_s = before = 0.0
    for at_s, at in zip(o.seconds, o.tokens, strict=True):
        if at >= tokens:
            return before_s + (at_s - before_s) * (tokens - before) / (at - before)
        before_s, before = at_s, at
    raise ValueError(f"the run trained {before:.0f} tokens, not {tokens:.0f}")


def speedup(outcomes: dict[str, Outcome]) -> float:
    """sync / pipeline, seconds until the same trained tokens."""
    equal = min(o.tokens[-1] for o in outcomes.values())
    return seconds_to(equal, outcomes["sync"]) / seconds_to(equal, outcomes["pipeline"])


def outcome(run_dir: Path) -> Outcome:
    columns = metrics.read(run_dir)
    rows = [(s, t) for s, t in zip(columns["wall_s"], columns["trained_tokens"], strict=True) if t]
    seconds, tokens = ([sum(r[i] for r in rows[: k + 1]) for k in range(len(rows))] for i in (0, 1))
    said = summary.read(run_dir)
    if said is None or said.trained is None:
        raise ValueError(f"{run_dir} has no summary with an evaluation of the trained model: the run is not finished")
    return Outcome(seconds, tokens, said.trained.accuracy, said.overlap_ratio)


def compare(seed: int, base: Path, out: Path, flags: list[str]) -> dict[str, Outcome]:
    outcomes = {}
    for mode in MODES if seed % 2 else MODES[::-1]:
        run_dir = train_from(base, out / f"{mode}-{seed}", seed, "--pipeline.mode", mode, *flags)
        o = outcomes[mode] = outcome(run_dir)
        print(
            f"seed {seed} {mode}: {len(o.seconds)} steps, {o.tokens[-1]:,.0f} tokens in {o.seconds[-1]:.1f} s, accuracy"
            f" {100 * o.accuracy:.1f} %, overlap {100 * o.overlap:.0f} %",
            flush=True,
        )
    return outcomes


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add_run_flags(parser, "runs/modes_real")
    add("--steps", type=int, help="learner updates (default: the recipe's)")
    add(
        "--quick",
        action="store_true",
        help="a smoke test: one seed, 3 updates, a small evaluation; its ratio says nothing",
    )
    args = parser.parse_args()
    flags = ["--train.max_steps", str(args.steps or 3)] if args.steps or args.quick else []
    if args.quick:
        flags += ["--eval.max_samples", "32", "--eval.n_samples_per_prompt", "1"]
    given = {seed_of(path): path for path in args.base}
    by_seed = {
        seed: compare(seed, base_of(seed, given, args.out), args.out, flags)
        for seed in (args.seeds[:1] if args.quick else args.seeds)
    }
    ratios = {seed: speedup(o) for seed, o in by_seed.items()}
    accuracy = {mode: statistics.mean(o[mode].accuracy for o in by_seed.values()) for mode in MODES}
    print(
        json.dumps(
            {
                "pipeline_over_sync_speedup": round(statistics.median(ratios.values()), 3),
                "by_seed": {seed: round(r, 3) for seed, r in ratios.items()},
                "accuracy": {mode: round(a, 4) for mode, a in accuracy.items()},
                "accuracy_by_seed": {
                    seed: {m: round(x.accuracy, 4) for m, x in o.items()} for seed, o in by_seed.items()
                },
                "tokens": {seed: {m: x.tokens[-1] for m, x in o.items()} for seed, o in by_seed.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
