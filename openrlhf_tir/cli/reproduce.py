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
    add(
        "--seeds",
        type=whole(at_least=1, at_most=8),
        default=1,
        metavar="N",
        help="number of seeds: 42, 7, ... of the toy; with smollm2 they follow from the settings [1]",
    )
    add("--seed-list", type=whole(at_least=0), nargs="+", metavar="S", help="these seeds instead")
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
    from miniatures.reproduce import methods, twins

    from ..errors import ConfigError

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
    from miniatures.reproduce.commands import How
    from miniatures.reproduce.run import reproduce, seeds_of

    from ..cluster.run_lock import run_lock

    how = How(
        args.arm_timeout,
        say=lambda line: print(line, flush=True),
        lock=lambda directory: run_lock(directory, args.arm_timeout),
        check=check_words,
    )
    seeds = tuple(dict.fromkeys(args.seed_list)) if args.seed_list else seeds_of(miniature, args.seeds)
    with run_lock(out):
        # SIGTERM raises KeyboardInterrupt, so that the running arm is stopped in good order.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        reproduce(miniature, seeds, out, args.bases.absolute(), how)
    return 0


def check_words(words: list[str]) -> None:
    """Check a command of an arm: its settings, and of a run also what it needs of the machine.

    The models and rows that it names need not exist yet.

    Raises:
        ConfigError: It cannot work.
        DataError: Its rows cannot be used.
    """
    from ..config.fine_tuning import config_of as sft_config_of
    from ..config.problems import Problems
    from ..config.settings import to_toml
    from .command_line import build_parser
    from .configuration import config_of
    from .preflight import check
    from .quickstart import checked_plan

    args, args.unknown = build_parser(words[0]).parse_known_args(words)
    if words[0] == "quickstart":
        if not Path(args.overrides["actor.model_name_or_path"]).is_dir():
            del args.overrides["actor.model_name_or_path"]  # It is made of the package before the first arm.
        cfg = checked_plan(args).cfg
        # An evaluation of a later arm is by this file.
        cfg.run_dir.mkdir(parents=True)
        data = cfg.data.model_copy(update={"prompt_dataset": "train.jsonl"})
        (cfg.run_dir / "config.toml").write_text(to_toml(cfg.model_copy(update={"data": data})), encoding="utf-8")
    elif words[0] == "sft":
        problems = Problems()
        sft_config_of(args, problems)
        problems.raise_any()
    elif words[0] == "train":
        check(config_of(args), model=False, data=False)
    else:
        config_of(args)
