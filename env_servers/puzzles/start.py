"""The flags and the sandbox of a room, for the server and for the commands that write rows and check data sets."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys

from env_servers.python_tir.isolation.levels import strongest
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import SandboxError
from openrlhf_tir.errors import VerifierError

from .gym import MISSING, installed
from .room import IMPORTS, Room


def add_room_flags(p: argparse.ArgumentParser) -> None:
    """Add the flags of the sandbox."""
    p.add_argument(
        "--score-timeout",
        type=float,
        default=5.0,
        metavar="S",
        help="CPU seconds of one answer; an answer that uses them up scores 0 (default: %(default)s)",
    )
    p.add_argument(
        "--score-deadline",
        type=float,
        default=60.0,
        metavar="S",
        help="wall-clock seconds of one answer; one that exceeds them with CPU left is a fault, not a score"
        " (default: %(default)s)",
    )
    p.add_argument(
        "--memory-mib",
        type=int,
        default=1024,
        metavar="N",
        help="memory of one scoring; an answer that exceeds it scores 0 (default: %(default)s)",
    )
    p.add_argument(
        "--isolation",
        choices=["auto", "bwrap", "landlock", "none"],
        default="auto",
        help="as for python_tir: bwrap, landlock, auto (bwrap, else landlock with a warning) or none"
        " (default: %(default)s)",
    )
    p.add_argument(
        "--warm",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="score in forks of an interpreter that has reasoning-gym loaded;"
        " --no-warm loads it for each answer, 1.5 s (default: warm)",
    )


def check_room_flags(args: argparse.Namespace) -> None:
    """Exit if no answer could ever be scored within the limits."""
    if not 0 < args.score_timeout <= args.score_deadline:
        flags = f"--score-timeout {args.score_timeout:g}, --score-deadline {args.score_deadline:g}"
        sys.exit(f"puzzles does not start: {flags}. The first is above 0, and the second no less.")


def start_room(args: argparse.Namespace, workers: int) -> Room:
    """Return a room that has proved itself with one puzzle. Exits if reasoning-gym is missing, or nothing can be
    isolated or scored."""
    if not installed():
        sys.exit(f"puzzles does not start: {MISSING}")
    limits = dataclasses.replace(Limits(), code_timeout_s=args.score_deadline, memory_bytes=args.memory_mib << 20)
    try:
        room = Room(
            strongest(args.isolation, limits, warm=args.warm, workers=workers, imports=IMPORTS), args.score_timeout
        )
        asyncio.run(room.prove())
    except (SandboxError, VerifierError, ValueError) as e:
        sys.exit(f"puzzles does not start: {e}")
    return room
