"""python -m env_servers.puzzles.make_tasks: rows of puzzles, with the question in the prompt and, of a puzzle, its own solution as label."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .games import GAMES
from .gym import make_puzzle, names

HOW = "Put your answer inside <answer></answer>."
HOW_TO_MOVE = "Put each move inside <answer></answer>, and wait for the reply."


def row(name: str, seed: int, level: int | None, tries: int) -> dict[str, Any]:
    """Raises ValueError for a puzzle or a level that is not there."""
    meta: dict[str, Any] = {"puzzle": name, "seed": seed, "asked": True, "tries": tries}
    if level is not None:
        meta["level"] = level
    if name in GAMES:
        game = GAMES[name](seed, level or 0)
        return {"prompt": f"{game.opening}\n{HOW_TO_MOVE}", "label": " ".join(game.solution()), "env": "puzzles", "meta": meta}
    puzzle = make_puzzle(name, seed, level)
    return {"prompt": f"{puzzle.question.strip()}\n{HOW}", "label": puzzle.answer, "env": "puzzles", "meta": meta}


def main() -> None:
    p = argparse.ArgumentParser(prog="python -m env_servers.puzzles.make_tasks", description=__doc__)
    p.add_argument("--puzzles", nargs="+", default=["all"], metavar="NAME", help="names (python -m env_servers.puzzles --list), or all (default)")
    p.add_argument("--count", type=int, default=100, help="rows; the puzzles take turns (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="of the first row; row i has seed + i (default: %(default)s)")
    p.add_argument("--levels", type=int, nargs=2, metavar=("MIN", "MAX"), help="of the curriculum, taking turns (default: the data set's own settings)")
    p.add_argument("--tries", type=int, default=1, help="answers that a puzzle takes (default: %(default)s)")
    p.add_argument("--out", type=Path, required=True, metavar="FILE.jsonl")
    args = p.parse_args()
    chosen = [*GAMES, *names()] if args.puzzles == ["all"] else args.puzzles
    low, high = args.levels or (0, 0)
    with args.out.open("w", encoding="utf-8") as f:
        for i in range(args.count):
            level = low + i // len(chosen) % (high - low + 1) if args.levels else None
            f.write(json.dumps(row(chosen[i % len(chosen)], args.seed + i, level, args.tries), ensure_ascii=False) + "\n")
    print(f"{args.out}: {args.count} rows of {len(chosen)} puzzles")


if __name__ == "__main__":
    main()
