"""The `sft` command: fine-tune a model on rows (recipe and flags, checks, rows as tokens,
cluster.jobs.sft.fine_tune)."""

from __future__ import annotations

import argparse

from ..config.fine_tuning import add_flags, config_of
from ..config.problems import Problems
from .configuration import print_facts, run_directory
from .parent import add_die_with_parent, apply_die_with_parent

EXAMPLES = """what is learned
  The columns of a row decide (docs/sft.md):
    messages, tools?    every message of the assistant, in the model's chat template; users' and tools' messages are
                        read, not learned
    prompt, segments    kept trajectories (openrlhf-tir distill): what the model wrote, not what a tool wrote
    prompt, response    the response and an end of text
    text                all of it
  Inside a message, what a tool wrote is masked too: --sft.mask_blocks '<interpreter>...</interpreter>' (the default,
  ReTool's).

examples
  openrlhf-tir sft --sft.dataset rows.jsonl --actor.model_name_or_path MODEL --check-only
      reads and tokenises everything, loads nothing
  openrlhf-tir sft --recipe retool_sft_32b
      ReTool's cold start on GPUs
  openrlhf-tir sft --recipe sft_cpu --sft.dataset correct.jsonl --actor.model_name_or_path runs/quickstart/base
  openrlhf-tir sft ... --run-dir runs/mine --resume
      continue from the last checkpoint
  openrlhf-tir sft --model.model_name_or_path MODEL --data.dataset rows.jsonl --adam.lr 5e-6
      OpenRLHF's train_sft names
The run directory holds metrics.jsonl, ckpt/, sft.json and model/, which `openrlhf-tir train --actor.model_name_or_path`
starts from."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to `parser`."""
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES.replace("%", "%%")
    parser.add_argument(
        "--check-only", action="store_true", help="stop after the checks that run before Ray or a model is loaded"
    )
    add_die_with_parent(parser)
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from .checks.sft import check_sft

    apply_die_with_parent(args)
    problems = Problems()
    cfg = config_of(args, problems)
    inputs, resume, facts = check_sft(cfg, problems)
    print_facts(*facts)
    if args.check_only:
        return 0
    with run_directory(cfg):
        from ..cluster.jobs.sft import fine_tune

        fine_tune(cfg, inputs, resume)
    return 0
