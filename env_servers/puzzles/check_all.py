"""python -m env_servers.puzzles.check_all: every data set is made, and its own solution scores 1. The last line is JSON; exit code 1 if one fails.

With --levels each is made at the lowest level of its curriculum, too. Data sets whose puzzles tell no solution are named: nothing but an
answer of one's own can be tried on them.
"""

from __future__ import annotations

import argparse
import json
import sys

from .gym import make_puzzle, names


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m env_servers.puzzles.check_all", description=__doc__)
    parser.add_argument("--levels", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    bad: dict[str, str] = {}
    untold: set[str] = set()
    every = names()
    for i, name in enumerate(every):
        print(f"\r{i + 1}/{len(every)} {name:40s}", end="", file=sys.stderr, flush=True)
        for level in (None, 0) if args.levels else (None,):
            try:
                puzzle = make_puzzle(name, args.seed, level)
            except ValueError as e:
                if "has no curriculum" not in str(e):
                    bad[name] = str(e)
                continue
            if not puzzle.answer:
                untold.add(name)
            elif (score := puzzle.score(puzzle.answer)) != 1.0:
                bad[name] = f"its own solution {puzzle.answer[:60]!r} scores {score}"
    print(file=sys.stderr)
    for name, why in bad.items():
        print(f"{name}: {why}")
    if untold:
        print(f"without a solution in the package: {', '.join(sorted(untold))}")
    print(json.dumps({"puzzle_sets": len(every), "puzzle_sets_ok": len(every) - len(bad | dict.fromkeys(untold, ""))}))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
