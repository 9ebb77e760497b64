"""reproduce: a method's name -> every arm of its comparison in miniature, summary.json and a page with the verdict."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

from ..config.numbers import real, whole

EXAMPLES = """examples:
  openrlhf-tir reproduce --list
  openrlhf-tir reproduce zerotir                      one seed; minutes on two cores, and the base model before it
  openrlhf-tir reproduce otc --seeds 3                three seeds; the same command goes on where it was interrupted
RUNS/NAME/summary.json has the figures, index.html the claim, the curves and the verdict; each arm is a run directory of
its own. "Not seen" is an answer, and exit code 0; an arm that fails is an error that names its log."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="which method; --list names all")
    add("--list", action="store_true", help="the miniatures and their claims; nothing else")
    add("--seeds", type=whole(at_least=1, at_most=8), default=1, metavar="N", help="how many: 42, 7, 11, ... [1]")
    add(
        "--first-seed",
        type=whole(at_least=0),
        default=42,
        metavar="S",
        help="the seed to begin with, where one gives no base; the others follow it [42]",
    )
    add("--out", type=Path, metavar="DIR", help="where it is run and written [runs/reproduce/NAME]")
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
    from ..errors import ConfigError
    from ..reproduce import methods

    if args.list:
        for name in methods.NAMES:
            miniature = methods.named(name)
            print(f"{name:20} {miniature.claim}\n{'':20} arms: {', '.join(miniature.arms)}")
        return 0
    if not args.name:
        raise ConfigError(f"Which miniature? Known: {', '.join(methods.NAMES)}. See `openrlhf-tir reproduce --list`.")
    miniature = methods.named(args.name)
    out = (args.out or Path("runs/reproduce") / miniature.name).absolute()
    from ..cluster.run_lock import run_lock
    from ..reproduce.commands import How
    from ..reproduce.run import reproduce, seeds_from

    how = How(
        args.arm_timeout,
        say=lambda line: print(line, flush=True),
        lock=lambda directory: run_lock(directory, args.arm_timeout),
    )
    with run_lock(out):
        # so that the running arm is told, and ends in good order
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        reproduce(miniature, seeds_from(args.first_seed, args.seeds), out, args.bases.absolute(), how)
    return 0
