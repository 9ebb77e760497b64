"""Crash matrix: every process of a training run is killed or frozen at random moments. Does the run recover, and is the
result the same?

    undisturbed     the toy job once: Ray, learner on two ZeRO-3 ranks, rollout actor, sandbox server, S = 0, the
                    deterministic engine
    trial           the same job; at random moments of its training a process is killed by `kill -9`, or frozen for
                    longer than every deadline of whoever waits for it: the controller, a rollout actor, a learner rank,
                    or the environment server. Nobody helps: `--train.max_restarts` may start it again; only if that
                    ends, with a named error, `--resume` is given. With `--per-trial 5` one run loses all five, in a
                    random order; one that is due while another recovers is not put off.

Passed: exit code 0, every prompt has exactly one end in the ledger (`audit`), every step has one row of metrics, and
the final weights are those of the undisturbed run, bit for bit. With `--engine vllm` batching moves last bits and with
`--mode pipeline` timing decides which version samples what: then the held-out accuracies are shown side by side (with a
model that can be right, `--model`), weights are not compared.

    python -m benchmarks.crash_matrix --trials 10 --seed 0      a trial: a minute or two on two cores, mostly imports
    python -m benchmarks.crash_matrix --trials 10 --per-trial 5 --steps 20
    python -m benchmarks.crash_matrix --trials 10 --faults kill freeze
    python -m benchmarks.crash_matrix --quick                   3 trials
    python -m benchmarks.crash_matrix --model runs/quickstart/base --engine vllm --mode pipeline --steps 30

Without `--model` the policy has random weights, calls no tool, and the reward is the parity of its tokens: every
process works, quickly.

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.command import command_parser, end_as_at_ctrl_c
from miniatures.toy.model import save_model
from miniatures.toy.task import write_data

from .crash_trial import TARGETS, Fault, Job, kill_runs_at_an_error, trial, undisturbed


def planned(args: argparse.Namespace, rng: random.Random) -> Iterator[list[Fault]]:
    """The faults of each trial, in the order in which they are due. Targets and kinds of fault take turns where a trial
    has only one."""
    if args.quick:
        targets = [["controller"], ["learner-1"], ["env"]]
    else:
        targets = [
            [TARGETS[i % len(TARGETS)]] if args.per_trial == 1 else rng.sample(TARGETS, args.per_trial)
            for i in range(args.trials)
        ]
    for i, wanted in enumerate(targets):
        moments = sorted(rng.uniform(0, args.steps) for _ in wanted)
        yield [
            Fault(target, round(due, 2), args.faults[(i // len(TARGETS) + j) % len(args.faults)])
            for j, (target, due) in enumerate(zip(wanted, moments, strict=True))
        ]


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument(
        "--per-trial",
        type=int,
        default=1,
        choices=range(1, len(TARGETS) + 1),
        help="faults in each trial, of different processes",
    )
    parser.add_argument(
        "--faults",
        nargs="+",
        choices=("kill", "freeze"),
        default=["kill"],
        help="they take turns, a round of targets each",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="3 trials")
    parser.add_argument("--engine", choices=("torch", "vllm"), default="torch")
    parser.add_argument("--mode", choices=("sync", "pipeline"), default="sync")
    parser.add_argument(
        "--model", type=Path, help="a cold-started base model, e.g. runs/quickstart/base; default: random weights"
    )
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument(
        "--keep",
        type=Path,
        help="an empty directory for the runs; default: a temporary one, removed unless something failed",
    )
    args = parser.parse_args()
    work = args.keep or Path(tempfile.mkdtemp(prefix="crash_matrix_"))
    work.mkdir(parents=True, exist_ok=True)
    save_model(work / "init", seed=0)
    write_data(work, seed=0, n_train=200)

    job = Job(work, args.model and args.model.absolute(), args.engine, args.mode, args.steps)
    end_as_at_ctrl_c()
    trials = []
    with kill_runs_at_an_error(work):
        digest, accuracy, seconds = undisturbed(work / "undisturbed", job)
        print(f"undisturbed: {seconds:.1f} s of training", flush=True)
        for i, faults in enumerate(planned(args, random.Random(args.seed))):
            trials.append(done := trial(work / f"trial_{i:02d}", job, faults, seconds / args.steps, digest))
            print(f"{i:3d} {json.dumps(asdict(done))}", flush=True)
    passed = [t for t in trials if t.passed]
    if len(passed) == len(trials) and not args.keep:
        shutil.rmtree(work)
    else:
        print(f"runs: {work}")
    struck = {
        what: Counter(f.target for t in trials for f in t.faults if f.at_step is not None and f.what == what)
        for what in ("kill", "freeze")
    }
    summary = {
        "trials": len(trials),
        "killed": struck["kill"].total(),
        "killed_by_target": dict(sorted(struck["kill"].items())),
        "frozen": struck["freeze"].total(),
        "frozen_by_target": dict(sorted(struck["freeze"].items())),
        "passed": len(passed),
        "recovered_alone": sum(t.recovered == "alone" for t in trials),
        "recovered_by_resume": sum(t.recovered == "resume" for t in trials),
        "audits_clean": sum(t.audit_clean for t in trials),
        "weights_equal": sum(bool(t.weights_equal) for t in trials) if job.exact else None,
        "accuracy_undisturbed": accuracy,
        "accuracies": [t.accuracy for t in trials] if accuracy is not None else None,
        "engine": args.engine,
        "mode": args.mode,
        "steps": args.steps,
        "seed": args.seed,
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
