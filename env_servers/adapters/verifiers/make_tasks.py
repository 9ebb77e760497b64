"""python -m env_servers.adapters.verifiers.make_tasks ENVIRONMENT --out FILE: write the rows of a verifiers
environment's data set, for a run.

A row holds what the environment needs to know of the example (`meta.verifiers`), so that the agent needs no data set of
its own. Its prompt is for the run's logs and for filters by length: the environment writes the messages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from env_servers.flags import command_parser, file_to_write
from env_servers.task_rows import write_rows
from openrlhf_tir.errors import ConfigError

from .load import add_environment_flags, load


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.adapters.verifiers.make_tasks", __doc__)
    add_environment_flags(p)
    p.add_argument("--out", type=file_to_write, required=True, metavar="FILE.jsonl", help="file for the rows")
    p.add_argument("--count", type=int, default=-1, metavar="N", help="the first N rows (default: all)")
    p.add_argument("--eval", action="store_true", help="rows of the evaluation data set")
    return p


def rows(environment: Any, count: int, *, evaluation: bool) -> Iterator[dict[str, Any]]:
    """Yield the first `count` rows of an environment's data set; -1: all."""
    data = environment.get_eval_dataset(n=count) if evaluation else environment.get_dataset(n=count)
    for example in data:
        fields = {name: value for name, value in example.items() if value is not None}
        yield {
            "prompt": prompt_text(fields["prompt"]),
            "label": str(fields.get("answer") or "-"),
            "meta": {"verifiers": fields},
        }


def prompt_text(prompt: Any) -> str:
    """Return the texts of the messages, one after another."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(message["content"] for message in prompt if isinstance(message.get("content"), str))


def main() -> None:
    """Write the rows."""
    args = parser().parse_args()
    try:
        environment = load(args)
        write_rows(args.out, rows(environment, args.count, evaluation=args.eval))
    except (ConfigError, TypeError, ValueError) as e:
        sys.exit(f"verifiers makes no tasks: {e}")


if __name__ == "__main__":
    main()
