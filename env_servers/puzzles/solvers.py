"""Solvers for data sets that keep no solution: from an entry's metadata, an answer to which their scorers give 1.

They serve for labels and for `check_all`.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable
from typing import Any


def boxnet(metadata: dict[str, Any]) -> str:
    """Move one box after the other to a target of its colour, rows first. The plan is valid, but not the shortest."""
    cells = {key: list(items) for key, items in metadata["initial_state"].items()}
    plan: list[dict[str, str]] = []
    targets = [
        (item.removeprefix("target_"), *_place(key))
        for key, items in cells.items()
        for item in items
        if item.startswith("target_")
    ]
    boxes = [
        (item.removeprefix("box_"), *_place(key))
        for key, items in cells.items()
        for item in items
        if item.startswith("box_")
    ]
    for colour, row, column in boxes:
        target = next(target_cell for target_cell in targets if target_cell[0] == colour)
        targets.remove(target)
        while (row, column) != target[1:]:
            agent = f"Agent[{row}, {column}]"
            if row != target[1]:
                row += 1 if row < target[1] else -1
            else:
                column += 1 if column < target[2] else -1
            plan.append({agent: f"move(box_{colour}, square[{row}, {column}])"})
        plan.append({f"Agent[{row}, {column}]": f"move(box_{colour}, target_{colour})"})
    return json.dumps(plan)


def _place(key: str) -> tuple[float, float]:
    row, column = key.split("_")
    return float(row), float(column)


SIDE = 6
"""Side of rush_hour's board."""


def rush_hour(metadata: dict[str, Any]) -> str:
    """Search breadth first over the positions of the cars, one step of one car at a time.

    The answer names cars in turn, whatever the board calls them; A leaves.
    """
    board = metadata["board_config"]
    walls = {i for i, c in enumerate(board) if c == "x"}
    labels = sorted(set(re.findall("[A-Z]", board)))
    cells = [[i for i, c in enumerate(board) if c == label] for label in labels]
    sizes = [len(c) for c in cells]
    strides = [c[1] - c[0] for c in cells]
    start = tuple(c[0] for c in cells)
    goal = start[0] // SIDE * SIDE + SIDE - sizes[0]
    reached_from: dict[tuple[int, ...], tuple[tuple[int, ...], str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if state[0] == goal:
            return " ".join(_moves(reached_from, state))
        occupied = walls | {
            at + k * stride for at, size, stride in zip(state, sizes, strides, strict=True) for k in range(size)
        }
        for i, (at, size, stride) in enumerate(zip(state, sizes, strides, strict=True)):
            for sign in (1, -1):
                new = at + size * stride if sign == 1 else at - stride
                if new in occupied or not _beside(at if sign == -1 else at + (size - 1) * stride, new, stride):
                    continue
                after = (*state[:i], at + sign * stride, *state[i + 1 :])
                if after not in reached_from:
                    reached_from[after] = (state, f"{chr(ord('A') + i)}{'+' if sign == 1 else '-'}1")
                    queue.append(after)
    return ""


def _beside(end: int, new: int, stride: int) -> bool:
    """Return True if a cell is on the board, next to a car's end in the car's direction."""
    return 0 <= new < SIDE * SIDE and (stride == SIDE or new // SIDE == end // SIDE)


def _moves(
    reached_from: dict[tuple[int, ...], tuple[tuple[int, ...], str] | None], state: tuple[int, ...]
) -> list[str]:
    """Return the moves that led to a state."""
    moves = []
    while (step := reached_from[state]) is not None:
        state, move = step
        moves.append(move)
    return moves[::-1]


SOLVERS: dict[str, Callable[[dict[str, Any]], str]] = {"boxnet": boxnet, "rush_hour": rush_hour}
