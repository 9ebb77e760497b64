"""Text games of many turns. A game is seeded, explains itself, and answers each move; its score in [0, 1] is the
reward.

maze        walk from S to E by north, south, east, west; a wall costs a move. Score: shortest path / moves made.
mastermind  find a code of digits; each guess is answered with the number of right digits, and of digits that are right
            elsewhere. Score: 1 when found.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a move.

    Attributes:
        text: What the model reads.
        score: The score of a finished game; None while it goes on.
        legal: False if the game could not read the move.
    """

    text: str
    score: float | None = None
    legal: bool = True


class Game(Protocol):
    """One game. `opening` explains it."""

    opening: str

    def move(self, text: str) -> Answer: ...

    def solution(self) -> list[str]:
        """Return moves that win with the best score, from the start."""


STEPS = {"north": (-1, 0), "south": (1, 0), "west": (0, -1), "east": (0, 1)}
"""Row and column that each direction adds."""


class Labyrinth:
    """A maze. Level 0 has 3 x 3 rooms, each level one more a side."""

    def __init__(self, seed: int, level: int) -> None:
        rng = random.Random(f"maze {seed} {level}")
        size = 3 + level
        self._open: dict[tuple[int, int], set[str]] = {(r, c): set() for r in range(size) for c in range(size)}
        visited = {(0, 0)}
        stack = [(0, 0)]
        while stack:  # depth first: exactly one path leads to every room
            room = stack[-1]
            exits = [
                (name, neighbour)
                for name, (dr, dc) in STEPS.items()
                if (neighbour := (room[0] + dr, room[1] + dc)) in self._open and neighbour not in visited
            ]
            if not exits:
                stack.pop()
                continue
            direction, neighbour = rng.choice(exits)
            back = next(name for name, (dr, dc) in STEPS.items() if (neighbour[0] + dr, neighbour[1] + dc) == room)
            self._open[room].add(direction)
            self._open[neighbour].add(back)
            visited.add(neighbour)
            stack.append(neighbour)
        self._at = (0, 0)
        self._end = (size - 1, size - 1)
        self._moves = 0
        self._limit = 4 * size * size
        self._shortest = self.solution()
        rules = (
            f"A maze of {size} x {size} rooms. You are in the north west corner; the way out is in the south east one."
            f" A move is one of {', '.join(STEPS)}."
        )
        self.opening = f"{rules}\n{self._view()}"

    def _view(self) -> str:
        return f"Open: {', '.join(d for d in STEPS if d in self._open[self._at])}."

    def move(self, text: str) -> Answer:
        """Walk one step."""
        direction = text.strip().lower()
        if direction not in STEPS:
            return Answer(f"{text.strip()[:40]!r} is no move: say one of {', '.join(STEPS)}.", legal=False)
        self._moves += 1
        walked = direction in self._open[self._at]
        if walked:
            self._at = (self._at[0] + STEPS[direction][0], self._at[1] + STEPS[direction][1])
        if self._at == self._end:
            return Answer(f"You are out after {self._moves} moves.", score=len(self._shortest) / self._moves)
        if self._moves >= self._limit:
            return Answer(f"{self._moves} moves are used up.", score=0.0)
        return Answer(f"{'' if walked else 'A wall. '}{self._view()}")

    def solution(self) -> list[str]:
        """Return the shortest path from the first room to the exit."""
        queue: deque[tuple[tuple[int, int], list[str]]] = deque([((0, 0), [])])
        visited = {(0, 0)}
        while queue:
            room, path = queue.popleft()
            if room == self._end:
                return path
            for direction in self._open[room]:
                neighbour = (room[0] + STEPS[direction][0], room[1] + STEPS[direction][1])
                if neighbour not in visited:
                    visited.add(neighbour)
                    queue.append((neighbour, [*path, direction]))
        raise AssertionError("a maze without a way out")


class Mastermind:
    """Find a code. Level 0 has two digits from 1 to 4; each level one more of both, at most six from 1 to 9. Ten
    guesses."""

    def __init__(self, seed: int, level: int) -> None:
        self._length = min(2 + level, 6)
        self._digits = min(4 + level, 9)
        rng = random.Random(f"mastermind {seed} {level}")
        self._code = "".join(str(rng.randint(1, self._digits)) for _ in range(self._length))
        self._guesses_left = 10
        self.opening = (
            f"A code of {self._length} digits from 1 to {self._digits}. You have {self._guesses_left} guesses."
        )

    def move(self, text: str) -> Answer:
        """Answer a guess."""
        guess = text.strip()
        if len(guess) != self._length or not guess.isascii() or not guess.isdigit():
            return Answer(f"{guess[:40]!r} is no guess: say {self._length} digits.", legal=False)
        self._guesses_left -= 1
        if guess == self._code:
            return Answer("Found.", score=1.0)
        if not self._guesses_left:
            return Answer("That was the last guess.", score=0.0)
        right = sum(a == b for a, b in zip(guess, self._code, strict=True))
        elsewhere = (Counter(guess) & Counter(self._code)).total() - right
        return Answer(f"{right} right, {elsewhere} right elsewhere. {self._guesses_left} guesses left.")

    def solution(self) -> list[str]:
        """Return the code."""
        return [self._code]


GAMES: dict[str, type[Labyrinth] | type[Mastermind]] = {"labyrinth": Labyrinth, "mastermind": Mastermind}
