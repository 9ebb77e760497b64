"""The `train` command: recipe and flags, checks (preflight), then cluster.jobs.main.train."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..config import Config
from ..config.flags import add_config_flags, config_from
from ..config.problems import Problems
from .configuration import print_facts, run_directory
from .exit_codes import DONE, NO, status_of
from .parent import add_die_with_parent, apply_die_with_parent
from .restarts import run_with_restarts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.add_argument(
        "--check-only",
        action="store_true",
        help="check everything, play scripted episodes through environments, rewards and filters, then stop",
    )
    add_die_with_parent(parser)
    add_config_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from ..pipeline.checkpoints.lineage import checkpoints_of
    from .preflight import check

    apply_die_with_parent(args)
    problems = Problems()
    cfg = config_from(args, problems)
    lines = (
        f"--{name} has no effect on a run of RL. Fine-tune with `openrlhf-tir sft`, or leave it out."
        for name in args.overrides
        if name.startswith("sft.")
    )
    problems.add(lines, code="no_effect")
    print_facts(*check(cfg, problems=problems))
    if args.check_only:
        return _rehearsed(cfg)
    if cfg.train.max_restarts:
        return status_of(run_with_restarts(sys.argv[1:], cfg.train, cfg.run_dir / cfg.ckpt.path / "latest"))
    with run_directory(cfg):
        # Cleared now: if this process dies before its first checkpoint, a restart must not resume an earlier run.
        if not cfg.train.resume:
            checkpoints_of(cfg).clear()
        from ..cluster.jobs.main import train

        train(cfg)
    return 0


def _rehearsed(cfg: Config) -> int:
    """Play episodes without a model, print what was seen, and return the exit code: NO if user code was not tried.

    Raises:
        MethodBroken: User code failed.
        Unavailable: An episode could not be played for another reason.
    """
    from ..errors import MethodBroken, Unavailable
    from ..pipeline.checkpoints.lineage import checkpoints_of, resumable
    from .rehearsal import rehearse
    from .rehearsal.show import fault_lines, lines_of

    if cfg.train.resume and Path(cfg.actor.model_name_or_path).expanduser().is_dir():
        from ..cluster.jobs.chat_tools import with_tools
        from ..cluster.jobs.inputs import load_inputs

        # Also checks that the data are those of the run that is resumed. `check` has printed what it says without them.
        known = resumable(cfg, checkpoints_of(cfg))[1]
        messages = resumable(cfg, checkpoints_of(cfg), load_inputs(with_tools(cfg)).prompts.tasks)[1]
        print_facts(*(message for message in messages if message not in known))
    result = rehearse(cfg, print_facts)
    for line in lines_of(result):
        print(line, flush=True)
    for line in fault_lines(result.faults):
        print(line, flush=True)
    bugs = [fault for fault in result.faults if fault.in_user_code]
    if bugs:
        raise MethodBroken(f"{len(bugs)} error(s) in your code; the first: {bugs[0].words}")
    if result.faults:
        raise Unavailable(f"Not all episodes could be played: {result.faults[0].words}")
    if result.untried:
        print("all other checks passed, but your code was not tried, for the reason given above")
        return NO
    if result.episodes:
        print(f"all checks passed ({result.episodes} episodes played)")
    else:
        print("all other checks passed: no episode was played")
    return DONE
