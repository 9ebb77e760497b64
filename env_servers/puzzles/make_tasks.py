"""python -m env_servers.puzzles.make_tasks: rows of puzzles, with the question in the prompt and, of a puzzle, a
solution as label.

Puzzles are made as the server makes them, in its sandbox; a row holds a digest of its question, and a server that would
ask another refuses it."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from env_servers.flags import file_to_write, whole

from .env import MAX_GAME_LEVEL, digest_of
from .games import GAMES
from .gym import Task, installed, names
from .room import Room
from .start import add_room_flags, check_room_flags, start_room

HOW = "Put your answer inside <answer></answer>."
HOW_TO_MOVE = "Put each move inside <answer></answer>, and wait for the reply."
AT_ONCE = 2


@dataclass(frozen=True)
class Rows:
    """What all rows share. `how`: the sentence that says how to answer; None: HOW, of games HOW_TO_MOVE."""

    tries: int = 1
    config: dict[str, Any] = field(default_factory=dict)
    how: str | None = None
    env: str = "puzzles"


async def row(room: Room | None, name: str, seed: int, level: int | None, of: Rows = Rows()) -> dict[str, Any]:
    """Raises ValueError for a puzzle, a level or a setting that is not there."""
    meta: dict[str, Any] = {"puzzle": name, "seed": seed, "asked": True, "tries": of.tries}
    if level is not None:
        meta["level"] = level
    if name in GAMES:
        if not 0 <= (level or 0) <= MAX_GAME_LEVEL:
            raise ValueError(f"level of a game is {level}. Use 0 to {MAX_GAME_LEVEL}.")
        game = GAMES[name](seed, level or 0)
        question = game.opening
        how = HOW_TO_MOVE
        label = " ".join(game.solution())
    else:
        assert room is not None, "games alone need none"
        meta |= {"config": of.config} if of.config else {}
        made = await room.make(Task(name, seed, level, of.config), solve=True)
        question = made.question
        how = HOW
        label = made.solution
    prompt = f"{question.strip()}\n{how if of.how is None else of.how}".strip()
    return {"prompt": prompt, "label": label, "env": of.env, "meta": {**meta, "digest": digest_of(question)}}


def settings(text: str) -> dict[str, Any]:
    found = json.loads(text)  # argparse makes a usage error of a ValueError
    if not isinstance(found, dict):
        raise ValueError(text)
    return found


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m env_servers.puzzles.make_tasks", description=__doc__)
    p.add_argument(
        "--puzzles",
        nargs="+",
        default=["all"],
        metavar="NAME",
        help="names (python -m env_servers.puzzles --list), or all (default)",
    )
    p.add_argument("--count", type=whole(1), default=100, help="rows; the puzzles take turns (default: %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="of the first row; row i has seed + i (default: %(default)s)")
    p.add_argument(
        "--levels",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="of the curriculum, taking turns (default: the data set's own settings)",
    )
    p.add_argument("--tries", type=whole(1), default=1, help="answers that a puzzle takes (default: %(default)s)")
    p.add_argument(
        "--config",
        type=settings,
        default={},
        metavar="JSON",
        help="settings of the data sets, e.g. '{\"max_n\": 15}' (default: their own)",
    )
    p.add_argument(
        "--how",
        metavar="TEXT",
        help="the sentence behind each question (default: that answers stand inside <answer></answer>)",
    )
    p.add_argument("--env", default="puzzles", metavar="NAME", help="the rows' environment (default: %(default)s)")
    p.add_argument("--out", type=file_to_write, required=True, metavar="FILE.jsonl")
    add_room_flags(p)
    return p


async def make_rows(room: Room | None, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Raises ValueError for a puzzle or a level that is not there."""
    chosen = [*GAMES, *(names() if installed() else [])] if args.puzzles == ["all"] else args.puzzles
    low, high = args.levels or (0, 0)
    common = Rows(args.tries, args.config, args.how, args.env)
    turns = asyncio.Semaphore(AT_ONCE)
    levels = range(low, high + 1)

    async def one(i: int) -> dict[str, Any]:
        level = levels[i // len(chosen) % len(levels)] if args.levels else None
        async with turns:
            return await row(room, chosen[i % len(chosen)], args.seed + i, level, common)

    try:
        return await asyncio.gather(*map(one, range(args.count)))
    finally:
        if room is not None:
            await room.sandbox.close()


def main() -> None:
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
    args.out.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    print(f"{args.out}: {len(rows)} rows")


if __name__ == "__main__":
    main()
