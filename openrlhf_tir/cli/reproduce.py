"""The `reproduce` command: run every arm of a method's comparison in miniature, and write summary.json and a
verdict."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from ..config.numbers import real, whole

EXAMPLES = """examples:
  openrlhf-tir reproduce --list
  openrlhf-tir reproduce zerotir                      one seed; takes minutes on two cores, plus the base model
  openrlhf-tir reproduce otc --seeds 3                three seeds; repeat the command to continue after a stop
  openrlhf-tir reproduce torl --model smollm2         a real language model: an hour and more on two cores, minutes on
                                                      one GPU
RUNS/NAME/summary.json has the figures; index.html has the claim, the curves and the verdict. Each arm has its own run
directory. "Not seen" is a result with exit code 0; an arm that fails is an error that names its log."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="name of the method; --list shows all")
    add("--list", action="store_true", help="list the miniatures and their claims, and stop")
    add(
        "--model",
        choices=("toy", "smollm2"),
        default="toy",
        help="what is trained: the toy, or SmolLM2-135M-Instruct, which some of the methods have an arm for [toy]",
    )
    add("--seeds", type=whole(at_least=1, at_most=8), default=1, metavar="N", help="number of seeds: 42, 7, ... [1]")
    add(
        "--first-seed",
        type=whole(at_least=0),
        default=42,
        metavar="S",
        help="first seed, if the usual one gives no base; the others follow it [42]",
    )
    add("--out", type=Path, metavar="DIR", help="directory for runs and results [runs/reproduce/NAME, or NAME-smollm2]")
    add(
        "--bases",
        type=Path,
        default=Path("runs/reproduce/bases"),
        metavar="DIR",
        help="base models, made once per lesson and seed [runs/reproduce/bases]",
    )
    add(
        "--arm-timeout",
        type=real(),
        default=7200.0,
        metavar="S",
        help="deadline of one command of an arm, in seconds [7200]",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..errors import ConfigError
    from ..miniatures.reproduce import methods, twins

    if args.list:
        for name in methods.NAMES:
            miniature = methods.named(name)
            print(f"{name:20} {miniature.claim}\n{'':20} arms: {', '.join(miniature.arms)}")
        print("with --model smollm2:")
        for name, twin in twins.TWINS.items():
            print(f"{name:20} {twin.claim}\n{'':20} arms: {', '.join(twin.arms)}")
        return 0
    if not args.name:
        raise ConfigError(
            f"Name a miniature: {', '.join(methods.NAMES)}. `openrlhf-tir reproduce --list` describes them."
        )
    if args.model == twins.MODEL:
        miniature = twins.named(args.name)
        directory = f"{miniature.name}-{twins.MODEL}"
    else:
        miniature = methods.named(args.name)
        directory = miniature.name
    out = (args.out or Path("runs/reproduce") / directory).absolute()
    from ..cluster.run_lock import run_lock
    from ..miniatures.reproduce.commands import How
    from ..miniatures.reproduce.run import reproduce, seeds_from

    how = How(
        args.arm_timeout,
        say=lambda line: print(line, flush=True),
        lock=lambda directory: run_lock(directory, args.arm_timeout),
    )
    with run_lock(out):
        # SIGTERM raises KeyboardInterrupt, so that the running arm is stopped in good order.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        reproduce(miniature, seeds_from(args.first_seed, args.seeds), out, args.bases.absolute(), how)
    return 0
