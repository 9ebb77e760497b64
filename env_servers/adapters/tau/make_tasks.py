"""python -m env_servers.adapters.tau.make_tasks: write rows of the installed package's tasks, in their order.

The policy is the system message, and the model's own chat template gets the functions (--env.protocol messages). The
user's first words are the first observation: a model plays the user, so they are in no row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from env_servers.flags import command_parser, file_to_write
from env_servers.task_rows import write_rows

from .package import DOMAINS, SPLITS, check_installed, desk


def rows(domain: str, split: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each task of the split; the label is its true calls."""
    first = desk(domain, split, 0)
    for index, task in enumerate(first.tasks):
        gold = [{"name": a.name, "arguments": a.kwargs} for a in task.actions]
        meta = {"tau_domain": domain, "split": split, "index": index, "chat_tools": first.tools_info, "kind": domain}
        yield {
            "prompt": [{"role": "system", "content": first.wiki}],
            "label": json.dumps(gold, ensure_ascii=False),
            "env": "tau",
            "meta": meta,
        }


def main() -> None:
    """Write the rows."""
    p = command_parser("env_servers.adapters.tau.make_tasks", __doc__)
    p.add_argument("--domain", choices=sorted(DOMAINS), default="retail", help="whose tasks (default: %(default)s)")
    p.add_argument("--split", default="test", help="test; retail has train and dev as well (default: %(default)s)")
    p.add_argument("--protocol", choices=["messages"], default="messages", help="how calls are written")
    p.add_argument("--out", type=file_to_write, required=True, metavar="FILE.jsonl")
    args = p.parse_args()
    if args.split not in SPLITS[args.domain]:
        p.error(f"--split {args.split}: {args.domain} has {', '.join(SPLITS[args.domain])}.")
    check_installed()
    task_rows = list(rows(args.domain, args.split))
    if not task_rows:
        sys.exit(f"tau makes no tasks: the package has none of {args.domain}, {args.split}.")
    write_rows(args.out, task_rows)


if __name__ == "__main__":
    main()
