"""The `distill` command: turn a run's kept trajectories into JSONL rows for `sft`.

It takes the correct responses, each once, and a few of each prompt.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from ..config.numbers import real, whole

EXAMPLES = """examples:
  openrlhf-tir train ... --logger.trajectories 1               a run that keeps what it samples, in RUN/trajectories
  openrlhf-tir distill runs/zerotir_7b --out correct.jsonl     correct responses, each once, at most 4 of a prompt
  openrlhf-tir distill runs/zerotir_7b --out best.jsonl --per-prompt 1 --min-reward 1.0
  openrlhf-tir sft --sft.dataset correct.jsonl --actor.model_name_or_path MODEL
Left out, and counted by reason: responses that failed, were masked by filter.sample or cut by a length limit, and
sessions of several chains. Groups that a filter dropped are taken: a prompt that every sample solved is useful here.
Text that a tool wrote stays marked as the tool's: `sft` reads it and does not learn it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="directory of a run with logger.trajectories; several are taken as one"
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="JSONL to write, '-' for standard output; an existing file needs --force",
    )
    parser.add_argument(
        "--per-prompt",
        type=whole(at_least=1),
        default=4,
        metavar="N",
        help="maximum number of responses of a prompt, those of the highest reward [4]",
    )
    parser.add_argument(
        "--min-reward", type=real(above=-math.inf), metavar="X", help="leave out responses of a lower reward [none]"
    )
    parser.add_argument(
        "--wrong-too", action="store_true", help="also take responses that are not correct; requires --min-reward"
    )
    parser.add_argument("--force", action="store_true", help="overwrite FILE")


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..data.prepare.files import check_target, write_rows
    from ..data.sft.distill import Selection, distill
    from ..errors import ConfigError, DataError
    from ..telemetry import trajectories
    from .data.rows import counting

    if args.wrong_too and args.min_reward is None:
        raise ConfigError(
            "--wrong-too takes responses by their reward alone. Give --min-reward too, e.g. --min-reward 0.5."
        )
    out = Path(args.out)
    if args.out != "-":
        if out.exists() and not args.force:
            raise ConfigError(f"--out {out} exists. Give another file, or --force to overwrite it.")
        check_target(out, (), suffixes=(".jsonl",))
    directories = [_checked(Path(name)) for name in args.runs]
    with counting("distill") as tick:

        def kept_rows():
            for directory in directories:
                for row in trajectories.read(directory):
                    tick()
                    yield row

        distilled = distill(kept_rows(), Selection(args.per_prompt, args.min_reward, args.wrong_too))
    left_out = (
        ", ".join(f"{reason} {count}" for reason, count in distilled.counts.most_common() if count and reason != "kept")
        or "nothing"
    )
    if not distilled.rows:
        raise DataError(
            f"{', '.join(args.runs)}: no response can be kept (left out: {left_out})."
            " Distill a run that solves some of its problems."
        )
    if args.out == "-":
        sys.stdout.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in distilled.rows))
    else:
        write_rows(out, distilled.rows)
    prompts = len({row["prompt"] for row in distilled.rows})
    print(f"{len(distilled.rows)} responses to {prompts} prompts; left out: {left_out}", file=sys.stderr)
    return 0


def _checked(run_dir: Path) -> Path:
    """Return the run directory if its trajectories can be distilled.

    Raises:
        ConfigError: The run kept no trajectories, or its prompts are not what the policy read.
    """
    from ..config.toml_file import read_toml
    from ..errors import ConfigError
    from ..telemetry.trajectories import DIRECTORY

    if not run_dir.is_dir():
        raise ConfigError(f"There is no run directory {run_dir}. Give the one of a training run, e.g. runs/zerotir_7b.")
    if not any((run_dir / DIRECTORY).glob("*.jsonl")):
        raise ConfigError(
            f"{run_dir} has no {DIRECTORY}/*.jsonl: the run kept nothing of what it sampled. Train with"
            " --logger.trajectories 1 (a share of groups)."
        )
    file = run_dir / "config.toml"
    table = read_toml(file, "Configuration") if file.is_file() else {}
    for section, name, neutral in (("rollout", "agent", "turns"), ("train", "agent_func_path", None)):
        value = table.get(section, {}).get(name, neutral)
        if value not in (neutral, "unset"):
            raise ConfigError(
                f"{run_dir} is a run with {section}.{name} = {value!r}: an agent wrote the prompts that the policy"
                " read, and the log holds those of the data. Distill runs whose responses were written in turns."
            )
    return run_dir
