"""python -m benchmarks.real_model --seeds N [--task NAME] [--arms tool,no_tool] [--minutes M] [-- FLAGS]: a real
language model learns to use a tool.

Runs `bash train_scripts/quickstart.sh --model smollm2 --task NAME` end to end for every arm and seed, one after the
other. Seeds follow from the hash of the resolved settings; --seed-list takes yours. Every attempt is kept as JSON in
benchmarks/results/real_model; one that is there already, with the same settings and seed, is not run again. A task with
a cold start is also evaluated without it.

    tool       the task as it is
    no_tool    only of numbers: the same RL without a call; the prompt asks for the number

The last line is one JSON object.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from benchmarks.command import command_parser, end_as_at_ctrl_c
from miniatures.seeds import seeds
from miniatures.tasks import NUMBERS, TASKS

from .attempt import ARMS, REPO, TOOL, Attempt, digest, make, path_of, stored, write
from .summary import BARS, RESULTS, summarise, summarise_with_cold_start


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each arm, seeds from the settings [%(default)s]")
    parser.add_argument("--seed-list", type=int, nargs="+", metavar="SEED", help="these seeds instead")
    parser.add_argument("--task", choices=TASKS, default=NUMBERS, help="[%(default)s]")
    parser.add_argument("--arms", default="tool", help=f"some of {','.join(ARMS)} [%(default)s]")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes; what is left out is said")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory of the attempts [%(default)s]")
    parser.add_argument("--runs", type=Path, default=REPO / "runs" / "real_model", help="run directories [%(default)s]")
    parser.add_argument("--keep", action="store_true", help="keep the run directories, 1 to 4 GB each")
    parser.add_argument("flags", nargs="*", help="after --: flags of the quickstart, for all arms, name and value")
    args = parser.parse_args()
    arms = args.arms.split(",")
    for arm in arms:
        if arm not in ARMS:
            parser.error(f"--arms {arm}: known arms are {', '.join(ARMS)}")
        if arm != TOOL and args.task != NUMBERS:
            parser.error(f"--arms {arm}: --task {args.task} has the arm {TOOL} only")
    if len(args.flags) % 2 or any(not name.startswith("--") for name in args.flags[::2]):
        parser.error("flags after -- are pairs of a name and a value")

    end_as_at_ctrl_c()
    started = time.monotonic()
    flags = tuple(args.flags)
    attempts: list[Attempt] = []
    left_out: list[str] = []
    for arm in arms:
        settings = digest(arm, flags, args.task)
        for seed in args.seed_list or seeds(settings, args.seeds):
            path = path_of(args.results, arm, seed, settings, args.task)
            attempt = stored(path)
            made = f", stored, of commit {attempt.commit}" if attempt else ""
            if attempt is None and args.minutes is not None and time.monotonic() - started > 60 * args.minutes:
                left_out.append(f"{arm} seed {seed}")
                continue
            if attempt is None:
                run_dir = args.runs / path.stem
                print(f"{arm} seed {seed}: running; its output is {run_dir}.log", flush=True)
                attempt = make(arm, seed, settings, flags, run_dir, args.task)
                write(attempt, path)
                if attempt.complete and not args.keep:
                    shutil.rmtree(run_dir, ignore_errors=True)
            print(f"{arm} seed {seed}{made}: {_line(attempt)}", flush=True)
            attempts.append(attempt)
    if left_out:
        print(f"not run, --minutes {args.minutes:g} are over: {', '.join(left_out)}")
    prompts = args.results / "prompts.json"
    if args.task == NUMBERS:
        found = summarise(attempts, json.loads(prompts.read_text()) if prompts.is_file() else None)
    else:
        found = summarise_with_cold_start(attempts)
    for name, (bar, sense) in BARS[args.task].items():
        if found[name] is not None:
            reached = found[name] <= bar if sense == "<=" else found[name] >= bar
            print(f"  {name:20s}{found[name]:8.3f}   {sense} {bar}   {'reached' if reached else 'missed'}")
    print(json.dumps(found))


def _line(attempt: Attempt) -> str:
    """One attempt in words."""
    figures = [attempt.before, attempt.after]
    if not attempt.complete or any(None in at[name].values() for at in figures for name in ("sampled", "greedy")):
        return "; ".join(attempt.errors) or "it was not evaluated"
    parts = [
        f"{figure} {attempt.before[figure]['trained_kinds']:.2f} -> {attempt.after[figure]['trained_kinds']:.2f}"
        f" (never trained {attempt.after[figure]['unseen_kinds']:.2f})"
        for figure in ("sampled", "greedy")
    ]
    return f"{', '.join(parts)}, {attempt.minutes:.1f} min, {attempt.peak_pss_gb:.1f} GB"


if __name__ == "__main__":
    main()
