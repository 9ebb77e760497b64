"""PuzzlesEnv: action = an answer or a move; the reward comes with the last reply. Task: {"puzzle": name, "seed": 3, "level": 0}.

`tries` (1): how many answers a puzzle takes; a wrong one before the last is told so. `asked` true: the question is in the row's prompt, so
that `reset` does not say it again. signals: score, tries, solved.
"""

from __future__ import annotations

from typing import Any

from env_servers.env import Env, Step

from .games import GAMES, Game
from .gym import Puzzle, make_puzzle

MAX_ILLEGAL = 20
"""Moves that a game cannot read before it ends: a policy that says nothing else must come to an end."""


def whole_number(task: dict[str, Any], name: str, default: int | None) -> int | None:
    """Raises ValueError for what is none: reset answers 422."""
    value = task.get(name, default)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise ValueError(f"task[{name!r}] is {value!r}. Send a whole number.")
    return value


class PuzzlesEnv(Env):
    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Raises ValueError, KeyError for a task that names no puzzle."""
        name, number = str(task["puzzle"]), whole_number(task, "seed", seed)
        level = whole_number(task, "level", None)
        self._tries = whole_number(task, "tries", 1) or 1
        self._used = self._illegal = 0
        self._over = False
        self._game: Game | None = None
        self._puzzle: Puzzle | None = None
        if name in GAMES:
            if not 0 <= (level or 0) <= 20:
                raise ValueError(f"level of a game is {level}. Send 0 to 20.")
            self._game = GAMES[name](number or 0, level or 0)
            question = self._game.opening
        else:
            self._puzzle = make_puzzle(name, number or 0, level, task.get("config"))
            question = self._puzzle.question
        return "" if task.get("asked") else question

    async def step(self, action: str, deadline_s: float) -> Step:
        self._used += 1
        if self._over:
            return Step("This is over.", done=True, outcome="model_error", signals={"score": 0.0, "tries": self._used, "solved": False})
        return self._move(action) if self._game else self._answer(action)

    def _answer(self, action: str) -> Step:
        assert self._puzzle is not None
        score = self._puzzle.score(action.strip())
        if score < 1.0 and self._used < self._tries:
            return Step("That is not right. Try again.", signals=self._signals(score))
        return self._end("Correct." if score == 1.0 else "That is not right.", score)

    def _move(self, action: str) -> Step:
        assert self._game is not None
        answer = self._game.move(action)
        if answer.score is not None:
            return self._end(answer.text, answer.score)
        self._illegal += not answer.legal
        if self._illegal >= MAX_ILLEGAL:
            return self._end(f"{self._illegal} moves could not be read: the game is over.", 0.0)
        return Step(answer.text, outcome="ok" if answer.legal else "model_error", signals=self._signals(0.0))

    def _end(self, text: str, score: float) -> Step:
        self._over = True
        return Step(text, reward=score, done=True, signals=self._signals(score))

    def _signals(self, score: float) -> dict[str, Any]:
        return {"score": score, "tries": self._used, "solved": score == 1.0}
