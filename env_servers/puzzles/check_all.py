"""python -m env_servers.puzzles.check_all: every data set is made, and its own solution scores 1. The last line is
JSON; exit code 1 if one fails.

As the server does it: in its sandbox, behind its guard. With --levels each is made at the lowest level of its
curriculum, too."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from openrlhf_tir.errors import VerifierError

from .gym import Task, names
from .room import Room
from .start import add_room_flags, check_room_flags, start_room

AT_ONCE = 2


async def complaint(room: Room, task: Task) -> str | None:
    """What is wrong with a puzzle; None: its solution scores 1."""
    try:
        made = await room.make(task, solve=True)
        if not made.solution:
            return "no solution is known"
        verdict = await room.score(task, made.entry, made.solution)
    except (ValueError, VerifierError) as e:
        return None if "has no curriculum" in str(e) else str(e)
    return (
        None
        if verdict.score == 1.0
        else f"its own solution {made.solution[:60]!r} scores {verdict.score} ({verdict.error})"
    )


async def check(room: Room, seeds: range, *, levels: bool) -> dict[str, str]:
    """Data set -> what is wrong, of all of them."""
    bad: dict[str, str] = {}
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(task: Task) -> None:
        async with turns:
            if (why := await complaint(room, task)) is not None:
                bad[task.name] = f"seed {task.seed}, level {task.level}: {why}"

    try:
        tasks = [
            Task(name, seed, level)
            for name in names()
            for seed in seeds
            for level in ((None, 0) if levels else (None,))
        ]
        await asyncio.gather(*map(one, tasks))
    finally:
        await room.sandbox.close()
    return bad


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m env_servers.puzzles.check_all", description=__doc__)
    parser.add_argument("--levels", action="store_true", help="each at level 0 of its curriculum, too")
    parser.add_argument("--seed", type=int, default=0, help="the first (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="so many puzzles of each (default: %(default)s)"
    )
    add_room_flags(parser)
    args = parser.parse_args()
    check_room_flags(args)
    bad = asyncio.run(check(start_room(args, AT_ONCE), range(args.seed, args.seed + args.seeds), levels=args.levels))
    for name, why in sorted(bad.items()):
        print(f"{name}: {why}")
    every = len(names())
    print(json.dumps({"puzzle_sets": every, "puzzle_sets_ok": every - len(bad)}))
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
