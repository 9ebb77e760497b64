"""python -m benchmarks.peers [--model smollm2]: the toy task, or the real model's, trained by ours and by others, one
after the other, on equal work.

    ours             openrlhf-tir train, the CPU quickstart's recipe
    ours_one_rank    the same with one learner rank instead of two, which leaves the engine a core of its own
    ours_on_policy   so too, and no overlap: every batch is of the newest weights, as TRL's
    ours_engine_ratio   one rank, with overlap, and PPO's ratio to the engine's log-probs (smollm2)
    ours_dr_grpo     one rank, with overlap, and advantages that are not whitened, as TRL's
    trl, trl_tools   TRL's GRPOTrainer without tools, and with the sandbox by its rollout_func; in a venv of its own
    plain            a plain PyTorch loop in one process, a reference
    openrlhf_sync, openrlhf_async   OpenRLHF's own trainer loop, as far as it runs on a CPU

Alike are: the base model, problems, prompts, reward function, responses a batch (16 x 8, or 8 x 8 with smollm2), tokens
of a response, learning rate and its schedule, updates, and the evaluator. Only ours drops groups whose samples all
agree and rolls others for them, as its recipe does: it samples more for as many trained.

With smollm2, SmolLM2-135M-Instruct and numbers with Python, systems in one process have a thread for every core and
compute in bf16; updates of all but ours hold groups that move nothing, so samples are counted twice: all that an update
was computed on (`trained_samples_per_s`), and those of groups with variance (`varied_samples_per_s`). The last line has
ours over TRL (`trained_samples_per_s_over_trl`, `seconds_to_80_over_trl`, `peak_memory_over_trl`).

Seconds are of training: from the loaded model to the update, weights kept every --save-every updates included, start
and evaluation of nobody. One run says little of the seconds to the bar: near it an update brings a point, and the seed
of the training two. `--runs 5` trains each system that often, in turns, with seeds of its own, and tells medians. What
cannot be installed or does not run has a sentence and nulls. The last line is JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.command import command_parser, output_file
from miniatures import numbers
from miniatures.prepare import check_package
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError

from ..quickstart_runs import base_of, seed_of
from ..real_model.attempt import cpu_name
from .figures import Figures, as_json, figures, markdown, medians, over_trl
from .systems import RAN, SYSTEMS, Ran, end_session, environment, last_words, start
from .tasks import RECIPES
from .work import ACCURACY, BARS, SMOLLM2, TOY, WORK, Work, began, clear, evaluated, kept, steps_of

PRESETS = {
    TOY: {"threads": 1, "micro_batch": 64, "timeout": 900.0, "eval_samples": 4},
    SMOLLM2: {"threads": os.cpu_count() or 1, "micro_batch": 8, "timeout": 3600.0, "eval_samples": 2},
}
"""Model -> what flags are where they are not given."""
AT = "@"
"""Between a system and the learning rate that it is run with."""


def run(name: str, work: Work, args: argparse.Namespace, progress: Progress) -> Figures:
    """Trains one system, or takes what it has left, and evaluates the weights that it kept."""
    out = Path(work.out)
    bar = progress.add_task(out.name, total=work.steps)
    if args.evaluate:
        ran = Ran.read(out)
    else:
        system = SYSTEMS[name.partition(AT)[0]]
        ran = start(system, work, args.venvs, args.timeout, lambda done: progress.update(bar, completed=done))
    steps = steps_of(out)
    progress.update(bar, completed=len(steps))
    if args.no_eval or not kept(out):
        return figures(steps, {}, ran, began(out), work.bar)
    failure = evaluate(work, args.eval_samples)
    if failure is None:
        return figures(steps, evaluated(out), ran, began(out), work.bar)
    why = " ".join(sentence for sentence in (ran.why, failure) if sentence)
    return replace(figures(steps, {}, ran, began(out), work.bar), why=why, seconds_to_bar_by_run=())


def evaluate(work: Work, samples: int) -> str | None:
    """Evaluate the weights that a system kept, in a process of its own.

    Returns:
        A sentence if that failed, which costs the system its accuracy and the others nothing.
    """
    out = Path(work.out)
    (out / ACCURACY).unlink(missing_ok=True)
    log = out / "evaluation.log"
    words = [sys.executable, "-m", "benchmarks.peers.evaluate", str(out / WORK), str(samples)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, env=environment(work), start_new_session=True
        )
    try:
        code = process.wait()
    finally:
        end_session(process)
    return f"Its evaluation ended with {code}: {last_words(log)} (its output is {log})." if code else None


def planned(name: str, out: Path, base: Path, seed: int, args: argparse.Namespace) -> Work:
    name, _, lr = name.partition(AT)
    work = Work(
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
    if args.model == SMOLLM2:
        work = of_recipe(work)
    return replace(work, lr=float(lr)) if lr else work


def of_recipe(work: Work) -> Work:
    """`work` with the values of SmolLM2's recipe."""
    cfg = load(RECIPES[SMOLLM2])
    return replace(
        work,
        model=SMOLLM2,
        calls=cfg.env.max_calls,
        prompts=cfg.rollout.batch_size,
        samples=cfg.rollout.n_samples_per_prompt,
        max_new_tokens=cfg.rollout.max_new_tokens,
        temperature=cfg.rollout.temperature,
        env_workers=cfg.env.workers,
        lr=cfg.actor.learning_rate,
        betas=cfg.actor.adam_betas,
        clip=cfg.actor.eps_clip_low_high,
        max_norm=cfg.actor.max_norm,
    )


def smollm2_of(base: Path | None, seed: int, out: Path) -> Path:
    """A directory with the model, `base`, and the rows of a seed, `data`.

    Args:
        base: Directory that `openrlhf-tir model smollm2` has made. None: it is made here.
        seed: Seed of the training rows.
        out: Where the directory is made.
    """
    made = out / f"smollm2-{seed}"
    model = made / "base"
    if base is not None and not (base / "config.json").exists():
        sys.exit(f"--base {base} holds no model. Give a directory that `openrlhf-tir model smollm2 --out DIR` made.")
    if base is None and not (model / "config.json").exists():
        try:
            check_package(SMOLLM2)
        except ConfigError as error:
            sys.exit(str(error))
    numbers.write_rows(made / "data", seed)
    if base is not None:
        model.unlink(missing_ok=True) if model.is_symlink() else shutil.rmtree(model, ignore_errors=True)
        model.symlink_to(base.resolve())
    elif not (model / "config.json").exists():
        words = [sys.executable, "-m", "openrlhf_tir.cli", "model", "smollm2", "--out", str(model)]
        if code := subprocess.run(words, check=False).returncode:
            sys.exit(f"{' '.join(words)} ended with {code}; its error is above.")
    return made


def earlier(outs: Sequence[Path]) -> list[Work]:
    """The work of trainings that have ended, in whose directories `outs` all that --evaluate reads is."""
    if missing := [str(out / file) for out in outs for file in (WORK, RAN) if not (out / file).exists()]:
        sys.exit(
            f"--evaluate reads what an earlier run has left, and there is no {', no '.join(missing)}."
            " Train these systems first, or name the others with --only."
        )
    return [Work.read(out / WORK) for out in outs]


def names_of(only: list[str], rates: list[float]) -> list[str]:
    """The runs to make: a system of TRL's is run with each of `rates`, if there are any."""
    with_rates = [[f"{name}{AT}{rate:g}" for rate in rates] if name.startswith("trl") else [] for name in only]
    return [run for name, runs in zip(only, with_rates, strict=True) for run in runs or [name]]


def base_and_seed(args: argparse.Namespace) -> tuple[Path, int]:
    """The base model that all systems begin with, made if none is given, and the seed of the first run."""
    if args.model == SMOLLM2:
        return smollm2_of(args.base, args.seed, args.out), args.seed
    base = args.base or base_of(args.seed, {}, args.out)
    return base, seed_of(base)


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("--model", choices=list(BARS), default=TOY, help="which task (default: %(default)s)")
    add(
        "--only",
        nargs="+",
        choices=list(SYSTEMS),
        metavar="SYSTEM",
        help="of: %(choices)s (default: all that are set up for the model)",
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
        help="run directory of a quickstart or of `openrlhf-tir toy-model`; of smollm2 the directory that `openrlhf-tir"
        " model smollm2` made (default: one is made)",
    )
    add("--seed", type=int, default=42, help="of a base that is made, and of smollm2's rows (default: %(default)s)")
    add("--threads", type=int, help="of torch, in peers' one process (default: 1; with smollm2 one per core)")
    add(
        "--micro-batch",
        type=int,
        help="responses in a pass of the peers' update (default: 64, the toy's recipe's; 8 with smollm2)",
    )
    add(
        "--trl-lr",
        type=float,
        nargs="+",
        default=[],
        metavar="LR",
        help="run TRL once with each learning rate; what is told over TRL is of the best (default: the recipe's)",
    )
    add("--out", type=Path, default=Path("runs/peers"), help="(default: %(default)s)")
    add(
        "--venvs",
        type=Path,
        default=Path("runs/peers/venvs"),
        help="where peers' venvs are made, and kept (default: %(default)s)",
    )
    add("--timeout", type=float, metavar="S", help="of one system's training (default: 900; with smollm2 3600)")
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
        metavar="N",
        help="responses to each held-out problem (default: 4 to each of 256; with smollm2 2 to each of 144)",
    )
    add(
        "--evaluate",
        action="store_true",
        help="train nothing: evaluate what an earlier run with --no-eval has left in --out",
    )
    add("--markdown", type=output_file, metavar="PATH", help="write the table there")
    args = parser.parse_args()
    if min(args.steps, args.save_every, args.runs) < 1:
        parser.error(f"--steps {args.steps}, --save-every {args.save_every} and --runs {args.runs} must be at least 1.")
    for name, value in PRESETS[args.model].items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    set_up = [name for name, system in SYSTEMS.items() if args.model in system.models]
    if foreign := sorted({*(args.only or ())} - {*set_up}):
        parser.error(f"--only {' '.join(foreign)}: not set up for --model {args.model}. Known: {', '.join(set_up)}.")
    names = names_of(args.only or set_up, args.trl_lr)
    numbered = [*product(range(args.runs), names)]
    outs = [(args.out / (f"{name}-{number + 1}" if number else name)).resolve() for number, name in numbered]
    if args.evaluate:
        works = earlier(outs)
    else:
        base, seed = base_and_seed(args)
        works = [
            planned(name, out, base, seed + number, args) for (number, name), out in zip(numbered, outs, strict=True)
        ]
    # systems have sessions of their own, and are ended on the way out
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped by SIGTERM."))
    runs: dict[str, list[Figures]] = {name: [] for name in names}
    bar = BARS[args.model]
    columns = (TextColumn("{task.description:>15}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, disable=not os.isatty(1)) as progress:
        for (_, name), out, work in zip(numbered, outs, works, strict=True):
            if not args.evaluate:
                clear(out)
            runs[name].append(run(name, work, args, progress))
            print(markdown({out.name: runs[name][-1]}).splitlines()[2], flush=True)
    found = {name: medians(of_it) for name, of_it in runs.items()}
    table = markdown(found, bar)
    print(table)
    if args.markdown:
        args.markdown.write_text(table + "\n")
    last = as_json(found, bar) | {"cpu": cpu_name()}
    if args.model == SMOLLM2:
        last |= over_trl(found, bar)
    print(json.dumps(last))


if __name__ == "__main__":
    main()
