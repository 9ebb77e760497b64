"""python -m benchmarks.peers: the toy task trained by ours and by others, one after the other, on equal work.

    ours             openrlhf-tir train, the CPU quickstart's recipe
    ours_one_rank    the same with one learner rank instead of two, which leaves the engine a core of its own
    ours_on_policy   so too, and no overlap: every batch is of the newest weights, as TRL's
    ours_dr_grpo     one rank, with overlap, and advantages that are not whitened, as TRL's
    trl, trl_tools   TRL's GRPOTrainer without tools, and with the sandbox by its rollout_func; in a venv of its own
    plain            a plain PyTorch loop in one process, a reference
    openrlhf_sync, openrlhf_async   OpenRLHF's own trainer loop, as far as it runs on a CPU

Alike are: the base model, problems, prompts, reward function, 16 x 8 responses a batch, tokens of a response, learning
rate and its schedule, updates, and the evaluator. Only ours drops groups whose samples all agree and rolls others for
them, as its recipe does: it samples more for as many trained.

Seconds are of training: from the loaded model to the update, weights kept every --save-every updates included, start
and evaluation of nobody. One run says little of the seconds to 85 %: near it an update brings a point, and the seed of
the training two. `--runs 5` trains each system that often, in turns, with seeds of its own, and tells medians. What
cannot be installed or does not run has a sentence and nulls. The last line is JSON."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..quickstart_runs import base_of, seed_of
from .figures import Figures, as_json, figures, markdown, medians
from .systems import SYSTEMS, Ran, environment, start
from .work import Work, began, clear, evaluated, kept, steps_of


def run(name: str, work: Work, args: argparse.Namespace, progress: Progress) -> Figures:
    """Trains one system, or takes what it has left, and evaluates the weights that it kept."""
    out = Path(work.out)
    bar = progress.add_task(out.name, total=work.steps)
    ran = (
        Ran.read(out)
        if args.evaluate
        else start(
            SYSTEMS[name], name, work, args.venvs, args.timeout, lambda done: progress.update(bar, completed=done)
        )
    )
    steps = steps_of(out)
    progress.update(bar, completed=len(steps))
    found: dict[int, float] = {}
    if kept(out) and not args.no_eval:
        with (out / "evaluation.log").open("wb") as log:
            words = [sys.executable, "-m", "benchmarks.peers.evaluate", str(out / "work.json"), str(args.eval_samples)]
            failed = subprocess.run(
                words, stdout=log, stderr=subprocess.STDOUT, env=environment(work), check=False
            ).returncode
        if failed:
            sys.exit(f"The evaluation of {name} ended with {failed}; its output is {out / 'evaluation.log'}.")
        found = evaluated(out)
    return figures(steps, found, ran, began(out))


def planned(name: str, out: Path, base: Path, seed: int, args: argparse.Namespace) -> Work:
    return Work(
        base=str((base / "base").resolve()),
        data=str((base / "data").resolve()),
        out=str(out),
        steps=args.steps,
        save_every=args.save_every,
        seed=seed,
        env_python=sys.executable,
        calls=Work.calls if SYSTEMS[name].calls else 0,
        threads=args.threads if SYSTEMS[name].threads else 1,
        micro_batch=args.micro_batch,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--only",
        nargs="+",
        choices=list(SYSTEMS),
        default=list(SYSTEMS),
        metavar="SYSTEM",
        help="of: %(choices)s (default: all)",
    )
    add("--steps", type=int, default=24, help="updates of each (default: %(default)s)")
    add(
        "--save-every",
        type=int,
        default=2,
        metavar="K",
        help="keep the weights every K updates; they are what is evaluated (default: %(default)s)",
    )
    add(
        "--base",
        type=Path,
        metavar="RUN",
        help="run directory of a quickstart or of `openrlhf-tir toy-model` (default: one is made)",
    )
    add("--seed", type=int, default=42, help="of a base that is made (default: %(default)s)")
    add("--threads", type=int, default=1, help="of torch, in peers' one process (default: %(default)s)")
    add(
        "--micro-batch",
        type=int,
        default=64,
        help="responses in a pass of the update (default: %(default)s, the recipe's)",
    )
    add("--out", type=Path, default=Path("runs/peers"), help="(default: %(default)s)")
    add(
        "--venvs",
        type=Path,
        default=Path("runs/peers/venvs"),
        help="where peers' venvs are made, and kept (default: %(default)s)",
    )
    add("--timeout", type=float, default=900.0, metavar="S", help="of one system's training (default: %(default)s)")
    add(
        "--runs",
        type=int,
        default=1,
        metavar="K",
        help="train each system K times, with the seed of the base, the next one, ...: medians (default: %(default)s)",
    )
    add("--no-eval", action="store_true", help="throughput and memory only")
    add(
        "--eval-samples",
        type=int,
        default=4,
        metavar="N",
        help="responses to each of the 256 held-out problems (default: %(default)s)",
    )
    add(
        "--evaluate",
        action="store_true",
        help="train nothing: evaluate what an earlier run with --no-eval has left in --out",
    )
    add("--markdown", type=Path, metavar="PATH", help="write the table there")
    args = parser.parse_args()
    if min(args.steps, args.save_every, args.runs) < 1:
        parser.error(f"--steps {args.steps}, --save-every {args.save_every} and --runs {args.runs} must be at least 1.")
    base = args.base or base_of(args.seed, {}, args.out)
    seed = seed_of(base)
    # systems have sessions of their own, and are ended on the way out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped by SIGTERM."))
    runs: dict[str, list[Figures]] = {name: [] for name in args.only}
    columns = (TextColumn("{task.description:>15}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not os.isatty(1)) as progress:
        for number, name in product(range(args.runs), args.only):
            out = (args.out / (f"{name}-{number + 1}" if number else name)).resolve()
            work = (
                Work.read(out / "work.json") if args.evaluate else planned(name, clear(out), base, seed + number, args)
            )
            runs[name].append(run(name, work, args, progress))
            print(markdown({out.name: runs[name][-1]}).splitlines()[2], flush=True)
    found = {name: medians(of_it) for name, of_it in runs.items()}
    table = markdown(found)
    print(table)
    if args.markdown:
        args.markdown.write_text(table + "\n")
    print(json.dumps(as_json(found)))


if __name__ == "__main__":
    main()
