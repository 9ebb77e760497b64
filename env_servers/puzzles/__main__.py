"""python -m env_servers.puzzles: serve reasoning-gym's data sets and text games, with their own scores (`reward.name =
"env"`).

Puzzles are generated and answers are scored in sandboxed processes, as python_tir runs code, because the data sets'
scorers evaluate what a model wrote. Without reasoning-gym only the games are served.
"""

from __future__ import annotations

import argparse
import functools
import sys

from env_servers.flags import command_parser
from env_servers.launch import add_serving_flags, serve_env
from env_servers.processes import run_copies
from openrlhf_tir.protocol import NOT_NEEDED

from .env import PuzzlesEnv
from .games import GAMES
from .gym import MISSING, installed, names
from .start import add_room_flags, check_room_flags, start_room

EXAMPLE = """
example:
  python -m env_servers.puzzles --list
  python -m env_servers.puzzles.make_tasks --puzzles labyrinth mastermind --levels 0 2 --count 200 --out games.jsonl
  python -m env_servers.puzzles --port 8600 &
  curl -s localhost:8600/reset -H 'content-type: application/json' -d '{"session_id": "s1", "seed": 3,
      "task": {"puzzle": "labyrinth"}}'
  -> {"observation": "A maze of 3 x 3 rooms. ...", ...}
"""


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.puzzles", __doc__, EXAMPLE)
    add_serving_flags(p, workers=2)
    p.add_argument("--list", action="store_true", help="print the names of all games and puzzles, and exit")
    add_room_flags(p)
    return p


def main() -> None:
    """Start the server, or list the puzzles."""
    args = parser().parse_args()
    if args.list:
        print("\n".join([*GAMES, *(names() if installed() else [])]))
        if not installed():
            print(MISSING, file=sys.stderr)
        return
    check_room_flags(args)
    run_copies(args)
    if installed():
        room = start_room(args, args.workers)
    else:
        room = None
        print(f"WARNING: {MISSING}. Only {' and '.join(GAMES)} are served.", file=sys.stderr)
    serve_env(
        functools.partial(PuzzlesEnv, room),
        args,
        env="puzzles",
        action="an answer, or a move of a game",
        stateful=True,
        isolation=room.sandbox.isolation if room else NOT_NEEDED,
        on_stop=room.sandbox.close if room else None,
    )


if __name__ == "__main__":
    main()
