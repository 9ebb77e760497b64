"""An environment whose action is an answer to a puzzle or a move of a game. The reward comes with the last reply.

Task: {"puzzle": name, "seed": 3, "level": 0, "config": {}}, and

    tries    how many answers a puzzle takes (1); a wrong one before the last is answered with "Wrong."
    asked    true if the question is in the row's prompt, so that `reset` does not repeat it
    digest   of the question in the prompt; it proves that the question belongs to this puzzle

Signals: score, tries, solved, error_type (why a text could not be scored: room.Verdict).
"""

from __future__ import annotations

import hashlib
from typing import Any

from env_servers.env import Env, Step

from .games import GAMES, Game
from .gym import MISSING, Task
from .room import MadePuzzle, Room, Verdict

MAX_ILLEGAL = 20
"""Number of unreadable moves after which a game ends: a policy that sends nothing else must come to an end."""
MAX_GAME_LEVEL = 20
"""Highest level of a game."""


def whole_number(task: dict[str, Any], name: str, default: int | None) -> int | None:
    """Return a whole number of the task, or the default. Raises ValueError, which is HTTP 422."""
    value = task.get(name, default)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"task[{name!r}] is {value!r}. Send a whole number.")
    return value


def digest_of(question: str) -> str:
    """Return a short digest of a question."""
    return hashlib.sha256(question.strip().encode()).hexdigest()[:16]


class PuzzlesEnv(Env):
    """An episode of one puzzle or game."""

    def __init__(self, room: Room | None) -> None:
        """Create the environment. Without a room it has only games."""
        self._room = room

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Start a puzzle or a game. Raises ValueError or KeyError for a task that names none."""
        name = str(task["puzzle"])
        number = whole_number(task, "seed", seed) or 0
        level = whole_number(task, "level", None)
        self._tries = whole_number(task, "tries", 1) or 1
        self._tries_used = 0
        self._illegal = 0
        self._over = False
        self._game: Game | None = None
        self._puzzle: MadePuzzle | None = None
        if name in GAMES:
            if not 0 <= (level or 0) <= MAX_GAME_LEVEL:
                raise ValueError(f"level of a game is {level}. Send 0 to {MAX_GAME_LEVEL}.")
            self._game = GAMES[name](number, level or 0)
            question = self._game.opening
        else:
            question = await self._make(Task(name, number, level, task.get("config") or {}))
        if task.get("asked") and task.get("digest", digest_of(question)) != digest_of(question):
            raise ValueError(
                f"the question in the prompt is not that of {name} with seed {number}."
                " Generate the rows again with this version of reasoning-gym."
            )
        return "" if task.get("asked") else question

    async def _make(self, task: Task) -> str:
        if self._room is None:
            raise ValueError(MISSING)
        if not isinstance(task.config, dict):
            raise ValueError(f'task["config"] is {task.config!r}. Send an object with settings of the data set.')
        self._task = task
        self._puzzle = await self._room.make(task)
        return self._puzzle.question

    async def step(self, action: str, deadline_s: float) -> Step:
        """Score an answer, or make a move."""
        if self._over:
            return Step("This is over.", done=True, outcome="model_error", signals=self._signals(Verdict(0.0, "over")))
        if self._game is not None:
            self._tries_used += 1
            return self._move(self._game, action)
        assert self._room is not None and self._puzzle is not None, "reset comes first"
        verdict = await self._room.score(self._task, self._puzzle.entry, action.strip())
        self._tries_used += 1
        solved = verdict.score == 1.0
        if not solved and self._tries_used < self._tries:
            return Step("Wrong.", outcome="model_error" if verdict.error else "ok", signals=self._signals(verdict))
        return self._end("Correct." if solved else "Wrong.", verdict)

    def _move(self, game: Game, action: str) -> Step:
        answer = game.move(action)
        if answer.score is not None:
            return self._end(answer.text, Verdict(answer.score, None))
        self._illegal += not answer.legal
        if self._illegal >= MAX_ILLEGAL:
            return self._end(
                f"{self._illegal} moves could not be read: the game is over.", Verdict(0.0, "illegal_move")
            )
        error = None if answer.legal else "illegal_move"
        return Step(answer.text, outcome="model_error" if error else "ok", signals=self._signals(Verdict(0.0, error)))

    def _end(self, text: str, verdict: Verdict) -> Step:
        self._over = True
        return Step(
            text,
            reward=verdict.score,
            done=True,
            outcome="model_error" if verdict.error else "ok",
            signals=self._signals(verdict),
        )

    def _signals(self, verdict: Verdict) -> dict[str, Any]:
        return {
            "score": verdict.score,
            "tries": self._tries_used,
            "solved": verdict.score == 1.0,
            "error_type": verdict.error,
        }
