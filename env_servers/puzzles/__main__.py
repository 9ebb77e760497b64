"""python -m env_servers.puzzles: reasoning-gym's data sets and text games, scored by themselves (`reward.name = "env"`)."""

from __future__ import annotations

import argparse

from env_servers.launch import add_serving_flags, serve, serving_config
from env_servers.processes import run_copies
from env_servers.serving import create_env_app

from .env import PuzzlesEnv
from .games import GAMES
from .gym import names

EXAMPLE = """
example:
  python -m env_servers.puzzles --list
  python -m env_servers.puzzles.make_tasks --puzzles labyrinth mastermind --levels 0 2 --count 200 --out games.jsonl
  python -m env_servers.puzzles --port 8600 &
  curl -s localhost:8600/reset -H 'content-type: application/json' -d '{"session_id": "s1", "seed": 3, "task": {"puzzle": "labyrinth"}}'
  -> {"observation": "A maze of 3 x 3 rooms. ...", ...}
"""


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m env_servers.puzzles", description=__doc__, epilog=EXAMPLE, formatter_class=raw)
    add_serving_flags(parser, workers=16)
    parser.add_argument("--list", action="store_true", help="name all puzzles and games, and end")
    args = parser.parse_args()
    if args.list:
        print("\n".join([*GAMES, *names()]))
        return
    run_copies(args)
    serve(create_env_app(PuzzlesEnv, serving_config(args, env="puzzles", action="an answer, or a move of a game", stateful=True)), args)


if __name__ == "__main__":
    main()
