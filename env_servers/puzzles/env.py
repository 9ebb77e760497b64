"""PuzzlesEnv: action = an answer or a move; the reward comes with the last reply. Task: {"puzzle": name, "seed": 3,
"level": 0, "config": {}}.

`tries` (1): how many answers a puzzle takes; a wrong one before the last is told so. `asked` true: the question is in
the row's prompt, so that `reset` does not say it again; `digest`, of the question that is in the prompt, then proves
that it is this puzzle's. signals: score, tries, solved, error_type (why a text could not be scored: room.Verdict).
"""

from __future__ import annotations

import hashlib
from typing import Any

from env_servers.env import Env, Step

from .games import GAMES, Game
from .gym import MISSING, Task
from .room import Made, Room, Verdict

MAX_ILLEGAL = 20
"""Moves that a game cannot read before it ends: a policy that says nothing else must come to an end."""
MAX_GAME_LEVEL = 20


def whole_number(task: dict[str, Any], name: str, default: int | None) -> int | None:
    """Raises ValueError for what is none: reset answers 422."""
    value = task.get(name, default)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"task[{name!r}] is {value!r}. Send a whole number.")
    return value


def digest_of(question: str) -> str:
    return hashlib.sha256(question.strip().encode()).hexdigest()[:16]


class PuzzlesEnv(Env):
    def __init__(self, room: Room | None) -> None:
        """`room` None: there are only games."""
        self._room = room

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Raises ValueError, KeyError for a task that names no puzzle."""
        name = str(task["puzzle"])
        number = whole_number(task, "seed", seed) or 0
        level = whole_number(task, "level", None)
        self._tries = whole_number(task, "tries", 1) or 1
        self._used = 0
        self._illegal = 0
        self._over = False
        self._game: Game | None = None
        self._made: Made | None = None
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
                " Make the rows again with this version of reasoning-gym."
            )
        return "" if task.get("asked") else question

    async def _make(self, task: Task) -> str:
        if self._room is None:
            raise ValueError(MISSING)
        if not isinstance(task.config, dict):
            raise ValueError(f'task["config"] is {task.config!r}. Send an object with settings of the data set.')
        self._task = task
        self._made = await self._room.make(task)
        return self._made.question

    async def step(self, action: str, deadline_s: float) -> Step:
        if self._over:
            return Step("This is over.", done=True, outcome="model_error", signals=self._signals(Verdict(0.0, "over")))
        if self._game is not None:
            self._used += 1
            return self._move(self._game, action)
        assert self._room is not None and self._made is not None, "reset comes first"
        verdict = await self._room.score(self._task, self._made.entry, action.strip())
        self._used += 1
        solved = verdict.score == 1.0
        if not solved and self._used < self._tries:
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
            "tries": self._used,
            "solved": verdict.score == 1.0,
            "error_type": verdict.error,
        }
