"""The `eval` command: measure a model on a data set, or on named suites and sweeps.

A data set gives accuracy, code ratio and greedy accuracy; suites give items, figures with intervals, and plots.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config import Config
from ..config.flags import add_config_flags
from ..config.paths import check_new_file, local_path
from ..config.problems import Problems
from ..errors import ConfigError
from .configuration import add_model, config_of

FIRST = (
    "eval.dataset",
    "eval.n_samples_per_prompt",
    "eval.temperature",
    "env.name",
    "env.max_calls",
    "env.protocol",
    "reward.name",
    "rollout.max_new_tokens",
    "run_dir",
)
"""The settings that its help lists."""
ENGINES = "engines"
"""Directory below that of the items which takes the place of the run directory: logs and endpoints of the engines."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    add_model(parser)
    add = parser.add_argument
    add("--out", type=Path, metavar="FILE", help="also write the figures as JSON")
    add(
        "--suite",
        nargs="+",
        default=[],
        metavar="NAME[=FILE]",
        help="published sets, from your files, or built-in tasks; see --list-suites and docs/evaluation.md",
    )
    add("--suites-dir", default="data/eval", metavar="DIR", help="directory of suites without =FILE [data/eval]")
    add(
        "--items",
        metavar="DIR",
        help="directory for one JSONL row per problem; problems that it has are not sampled again [RUN_DIR/eval]",
    )
    add(
        "--sweep",
        metavar="KEY=V,V",
        help="several values of env.max_calls, eval.temperature, eval.top_p or eval.n_samples_per_prompt, with a plot",
    )
    add(
        "--list-suites",
        action="store_true",
        help="list the suites, where to get each and in which form, and stop",
    )
    add_config_flags(parser, first=FIRST)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if args.list_suites:
        return list_suites()
    check_new_file(args.out, "--out")
    cfg = config_of(args)
    items = local_path(args.items, "--items") if args.items else cfg.run_dir / "eval"
    # The recipe's run directory may belong to a running run, whose logs and endpoints the engines would overwrite.
    cfg = cfg.model_copy(update={"run_dir": items / ENGINES})
    if args.suite or args.items or args.sweep:
        _suites(args, cfg, items)
    else:
        _held_out(cfg, items, args.out)
    return 0


def _held_out(cfg: Config, items: Path, out: Path | None) -> None:
    """Evaluate on the recipe's own rows, sampled and greedily."""
    from ..cluster.run_lock import run_lock
    from .preflight import check

    problems = Problems()
    if not cfg.eval.dataset:
        problems.add("eval.dataset is not set. Give the held-out problems, e.g. --eval.dataset data/test.jsonl.")
    check(cfg, training=False, data=bool(cfg.eval.dataset), problems=problems)
    with run_lock(items):  # Two commands would write the same logs.
        from ..cluster.jobs.main import evaluate

        evaluate(cfg, out=out)


def _suites(args: argparse.Namespace, cfg: Config, items: Path) -> None:
    """Evaluate suites, rows with items, or a sweep."""
    from ..cluster.run_lock import run_lock
    from ..evaluation.plan import plan
    from .preflight import check

    if cfg.by_agent and (args.sweep or "").startswith("env.max_calls"):
        raise ConfigError(
            "--sweep env.max_calls has no effect if an agent decides what it calls. Sweep another setting."
        )
    with run_lock(items):  # Two commands would sample and append the same problems.
        if args.suite and "eval.dataset" not in args.overrides:
            # What a recipe evaluates during its run is not asked for here.
            cfg = cfg.model_copy(update={"eval": cfg.eval.model_copy(update={"dataset": None})})
        planned = plan(cfg, args.suite, args.suites_dir, items, args.sweep)
        check(planned.cfg, training=False, data=not args.suite)
        from ..cluster.jobs.main import evaluate_suites

        evaluate_suites(planned, out=args.out)


def list_suites() -> int:
    """Print every suite with its source, its form and its rewards."""
    from ..evaluation.suites import SUITES

    for suite in SUITES.values():
        print(
            f"{suite.name:28} {suite.rows or 'your':>5} rows  {suite.title}\n    from {suite.source}\n"
            f"    form: {suite.shape}\n    graded by: {', '.join(suite.rewards)}"
        )
    return 0
