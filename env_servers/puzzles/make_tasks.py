"""python -m env_servers.puzzles.make_tasks: write rows of puzzles, with the question in the prompt and a solution as
label.

Puzzles are generated as the server does it, in its sandbox. A row holds a digest of its question, and a server that
would ask another one refuses it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

from env_servers.flags import command_parser, file_to_write, json_object, whole
from env_servers.task_rows import write_rows

from .env import MAX_GAME_LEVEL, digest_of
from .games import GAMES
from .gym import Task, installed, names
from .room import Room
from .start import add_room_flags, check_room_flags, start_room

HOW = "Put your answer inside <answer></answer>."
"""Sentence after the question of a puzzle."""
HOW_TO_MOVE = "Put each move inside <answer></answer>, and wait for the reply."
"""Sentence after the question of a game."""
AT_ONCE = 2
"""Puzzles that are generated at once."""


@dataclass(frozen=True)
class RowOptions:
    """What all rows share.

    Attributes:
        tries: Answers that a puzzle takes.
        config: Settings of the data sets.
        instruction: Sentence that says how to answer; None: HOW, and HOW_TO_MOVE for games.
        env: Name of the environment.
    """

    tries: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    instruction: str | None = None
    env: str = "puzzles"


async def row(
    room: Room | None, name: str, seed: int, level: int | None, options: RowOptions = RowOptions()
) -> dict[str, Any]:
    """Return the row of one puzzle or game.

    Args:
        room: Makes the puzzle; None for a game.
        name: Name of the puzzle or game.
        seed: Its seed.
        level: Its level; None: the default.
        options: What all rows share.

    Raises:
        ValueError: There is no such puzzle, level or setting.
    """
    meta: dict[str, Any] = {"puzzle": name, "seed": seed, "asked": True, "tries": options.tries}
    if level is not None:
        meta["level"] = level
    if name in GAMES:
        if not 0 <= (level or 0) <= MAX_GAME_LEVEL:
            raise ValueError(f"level of a game is {level}. Use 0 to {MAX_GAME_LEVEL}.")
        game = GAMES[name](seed, level or 0)
        question = game.opening
        instruction = HOW_TO_MOVE
        label = " ".join(game.solution())
    else:
        assert room is not None, "only games need no room"
        if options.config:
            meta["config"] = options.config
        puzzle = await room.make(Task(name, seed, level, options.config), solve=True)
        question = puzzle.question
        instruction = HOW
        label = puzzle.solution
    if options.instruction is not None:
        instruction = options.instruction
    prompt = f"{question.strip()}\n{instruction}".strip()
    meta["digest"] = digest_of(question)
    return {"prompt": prompt, "label": label, "env": options.env, "meta": meta}


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.puzzles.make_tasks", __doc__)
    p.add_argument(
        "--puzzles",
        nargs="+",
        default=["all"],
        metavar="NAME",
        help="names (python -m env_servers.puzzles --list), or all (default)",
    )
    p.add_argument("--count", type=whole(1), default=100, help="rows; the puzzles take turns (default: %(default)s)")
    p.add_argument(
        "--seed", type=int, default=0, help="seed of the first row; row i has seed + i (default: %(default)s)"
    )
    p.add_argument(
        "--levels",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="levels of the curriculum, in turn (default: the data set's own settings)",
    )
    p.add_argument("--tries", type=whole(1), default=1, help="answers that a puzzle takes (default: %(default)s)")
    p.add_argument(
        "--config",
        type=json_object,
        default={},
        metavar="JSON",
        help="settings of the data sets, e.g. '{\"max_n\": 15}' (default: their own)",
    )
    p.add_argument(
        "--how",
        metavar="TEXT",
        help="sentence after each question (default: that answers stand inside <answer></answer>)",
    )
    p.add_argument("--env", default="puzzles", metavar="NAME", help="the rows' environment (default: %(default)s)")
    p.add_argument("--out", type=file_to_write, required=True, metavar="FILE.jsonl")
    add_room_flags(p)
    return p


async def make_rows(room: Room | None, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows that the flags describe. Raises ValueError for an unknown puzzle or level."""
    chosen = args.puzzles
    if chosen == ["all"]:
        chosen = [*GAMES, *(names() if installed() else [])]
    low, high = args.levels or (0, 0)
    options = RowOptions(args.tries, args.config, args.how, args.env)
    limit = asyncio.Semaphore(AT_ONCE)
    levels = range(low, high + 1)

    async def row_of(i: int) -> dict[str, Any]:
        level = levels[i // len(chosen) % len(levels)] if args.levels else None
        async with limit:
            return await row(room, chosen[i % len(chosen)], args.seed + i, level, options)

    try:
        return await asyncio.gather(*map(row_of, range(args.count)))
    finally:
        if room is not None:
            await room.sandbox.close()


def main() -> None:
    """Write the rows to a file."""
    args = parser().parse_args()
    check_room_flags(args)
    if args.levels and args.levels[0] > args.levels[1]:
        sys.exit(f"--levels {args.levels[0]} {args.levels[1]}: the first is the lower one.")
    games_only = set(args.puzzles) <= set(GAMES)
    room = None if games_only else start_room(args, AT_ONCE)
    try:
        rows = asyncio.run(make_rows(room, args))
    except ValueError as e:
        sys.exit(f"No rows were written: {e}")
    write_rows(args.out, rows)


if __name__ == "__main__":
    main()
