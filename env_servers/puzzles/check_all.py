"""python -m env_servers.puzzles.check_all: generate a puzzle of every data set and check that its own solution scores
1.

This is done as the server does it: in its sandbox, behind its guard. With --levels each data set is also tried at the
lowest level of its curriculum. The last line is JSON; the exit code is 1 if one fails.
"""

from __future__ import annotations

import asyncio
import json
import sys

from env_servers.flags import command_parser
from openrlhf_tir.errors import VerifierError

from .gym import Task, names
from .room import Room
from .start import add_room_flags, check_room_flags, start_room

AT_ONCE = 2
"""Puzzles that are checked at once."""


async def fault_of(room: Room, task: Task) -> str | None:
    """Return what is wrong with a puzzle; None if its solution scores 1."""
    try:
        puzzle = await room.make(task, solve=True)
        if not puzzle.solution:
            return "no solution is known"
        verdict = await room.score(task, puzzle.entry, puzzle.solution)
    except (ValueError, VerifierError) as e:
        return None if "has no curriculum" in str(e) else str(e)
    if verdict.score == 1.0:
        return None
    return f"its own solution {puzzle.solution[:60]!r} scores {verdict.score} ({verdict.error})"


async def check(room: Room, seeds: range, *, levels: bool) -> dict[str, str]:
    """Check all data sets and return what is wrong, by data set."""
    faults: dict[str, str] = {}
    limit = asyncio.Semaphore(AT_ONCE)

    async def check_one(task: Task) -> None:
        async with limit:
            fault = await fault_of(room, task)
        if fault is not None:
            faults[task.name] = f"seed {task.seed}, level {task.level}: {fault}"

    try:
        tasks = [
            Task(name, seed, level)
            for name in names()
            for seed in seeds
            for level in ((None, 0) if levels else (None,))
        ]
        await asyncio.gather(*map(check_one, tasks))
    finally:
        await room.sandbox.close()
    return faults


def main() -> None:
    """Check all data sets and exit with the verdict."""
    parser = command_parser("env_servers.puzzles.check_all", __doc__)
    parser.add_argument("--levels", action="store_true", help="check level 0 of each curriculum too")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="number of puzzles of each data set (default: %(default)s)"
    )
    add_room_flags(parser)
    args = parser.parse_args()
    check_room_flags(args)
    seeds = range(args.seed, args.seed + args.seeds)
    faults = asyncio.run(check(start_room(args, AT_ONCE), seeds, levels=args.levels))
    for name, fault in sorted(faults.items()):
        print(f"{name}: {fault}")
    total = len(names())
    print(json.dumps({"puzzle_sets": total, "puzzle_sets_ok": total - len(faults)}))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
