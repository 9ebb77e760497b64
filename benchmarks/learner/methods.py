"""python -m benchmarks.learner.methods: the toy job trained by each estimator, loss and kind of update, on the real
stack.

    for each seed: one base model -> RL by each method, on the same problems; held-out problems every so many batches

What is reported is how many optimiser updates a method took to a held-out accuracy of 85 %, and its accuracy at the
end: a check that each of them learns, not a race, since learning rates are not tuned for each. `--base RUN_DIR` of an
earlier quickstart (its seed) saves making a base model; runs that are already finished under `--out` are read again and
not repeated. The last line is one JSON object."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.command import command_parser
from openrlhf_tir.observability.report.summary import FILE as FINISHED
from openrlhf_tir.telemetry import metrics
from openrlhf_tir.telemetry.jsonl import read_rows

from ..quickstart_runs import add_run_flags, base_of, seed_of, train_from

GOAL = 0.85
BATCHES = 24  # the quickstart's
PROBLEMS = 128  # held out, four samples of each


class Method(NamedTuple):
    """`flags` in addition to the quickstart's; `updates` per rollout batch."""

    flags: tuple[str, ...] = ()
    updates: int = 1


METHODS = {
    "ppo_critic": Method(
        ("--algo.advantage.estimator", "gae", "--critic.learning_rate", "1e-3", "--critic.updates", "4")
    ),
    "reinforce_baseline": Method(),
    "grpo_kl": Method(
        (
            "--algo.advantage.estimator",
            "group_norm",
            "--algo.kl.init_coef",
            "0.001",
            "--algo.kl.use_loss",
            "--algo.kl.estimator",
            "k3",
        )
    ),
    "dr_grpo": Method(("--algo.advantage.estimator", "dr_grpo", "--actor.loss_agg_mode", "seq-mean-token-sum-norm")),
    "rloo": Method(("--algo.advantage.estimator", "rloo")),
    "cispo": Method(("--actor.policy_loss_type", "cispo", "--actor.eps_clip_low_high", "1.0", "4.0")),
    "gspo": Method(
        (
            *("--algo.advantage.estimator", "group_norm", "--actor.policy_loss_type", "gspo"),
            *("--actor.eps_clip_low_high", "0.01", "0.013"),  # a mean over a sequence: at PPO's .2 nothing is clipped
        )
    ),
    "four_updates": Method(
        ("--train.batch_size", "32", "--actor.learning_rate", "1.5e-4", "--pipeline.max_staleness", "7"), updates=4
    ),
    "lora": Method(("--ds.lora.rank", "16", "--ds.lora.alpha", "32", "--actor.learning_rate", "2e-3")),
}


class Curve(NamedTuple):
    """Held-out accuracy (0..1) after so many `updates`, and that of the last evaluation."""

    updates: list[int]
    accuracy: list[float]
    final: float

    @property
    def updates_to_goal(self) -> int | None:
        """The first evaluated update at GOAL or above; None if there is none."""
        return next((u for u, a in zip(self.updates, self.accuracy, strict=True) if a >= GOAL), None)


def curve_of(run_dir: Path) -> Curve:
    """From the metrics of a finished run."""
    evaluated = {
        row["step"]: row["eval/accuracy"] for row in read_rows(run_dir / metrics.FILE) if "eval/accuracy" in row
    }
    return Curve(list(evaluated), list(evaluated.values()), evaluated[max(evaluated)])


def train(name: str, seed: int, base: Path, out: Path, every: int, batches: int) -> Curve:
    """One method on one seed, or its earlier run."""
    run_dir, method = out / f"{name}-{seed}", METHODS[name]
    if not (run_dir / FINISHED).exists():
        of_updates = ("--train.max_steps", str(batches * method.updates), "--eval.steps", str(every * method.updates))
        train_from(base, run_dir, seed, *of_updates, "--eval.wait", "--eval.max_samples", str(PROBLEMS), *method.flags)
    return curve_of(run_dir)


def table_of(curves: dict[str, dict[int, Curve]]) -> Table:
    table = Table(
        "method", "updates per batch", f"updates to {GOAL:.0%}, by seed", "held-out accuracy at the end, by seed"
    )
    for name, by_seed in curves.items():
        reached = ", ".join(str(c.updates_to_goal or "-") for c in by_seed.values())
        table.add_row(
            name, str(METHODS[name].updates), reached, ", ".join(f"{100 * c.final:.1f} %" for c in by_seed.values())
        )
    return table


def plot(curves: dict[str, dict[int, Curve]], path: Path) -> None:
    """One panel a method, one line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(3, len(curves))
    figure, panels = plt.subplots(
        -(-len(curves) // columns),
        columns,
        sharey=True,
        squeeze=False,
        figsize=(3.6 * columns, 2.4 * -(-len(curves) // columns)),
    )
    for panel in panels.flat[len(curves) :]:
        panel.axis("off")
    for panel, (name, by_seed) in zip(panels.flat, curves.items(), strict=False):
        for seed, curve in by_seed.items():
            panel.plot(
                [u / METHODS[name].updates for u in curve.updates], curve.accuracy, marker=".", label=f"seed {seed}"
            )
        panel.axhline(GOAL, color="0.7", linewidth=0.8, zorder=0)
        panel.set(title=name, ylim=(0, 1), xlabel="rollout batches trained")
    panels[0][0].set_ylabel("held-out accuracy")
    panels[0][0].legend(fontsize="small", loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="NAME", help="(default: %(default)s)")
    add_run_flags(parser, "runs/methods")
    add("--batches", type=int, default=BATCHES, help="rollout batches of a run (default: %(default)s)")
    add("--every", type=int, default=4, help="batches between two evaluations (default: %(default)s)")
    args = parser.parse_args()
    given = {seed_of(path): path for path in args.base}
    curves: dict[str, dict[int, Curve]] = {name: {} for name in args.methods}
    for seed in args.seeds:
        base = base_of(seed, given, args.out)
        for name in args.methods:
            curve = curves[name][seed] = train(name, seed, base, args.out, args.every, args.batches)
            print(
                f"seed {seed} {name}: {curve.updates_to_goal} updates to {GOAL:.0%},"
                f" {100 * curve.final:.1f} % at the end",
                file=sys.stderr,
                flush=True,
            )
    plot(curves, args.out / "methods.png")
    Console().print(table_of(curves))
    print(f"plot: {args.out / 'methods.png'}")
    of_all = [c for by_seed in curves.values() for c in by_seed.values()]
    told = {
        n: {s: {"updates_to_goal": c.updates_to_goal, "final": round(c.final, 4)} for s, c in x.items()}
        for n, x in curves.items()
    }
    print(
        json.dumps(
            {
                "goal": GOAL,
                "reached": sum(c.updates_to_goal is not None for c in of_all),
                "runs": len(of_all),
                "methods": told,
            }
        )
    )


if __name__ == "__main__":
    main()
