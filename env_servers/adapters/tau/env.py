"""TauEnv: action = a JSON list of calls, or {"message": text} to the user; observation = results, or the user's answer.

    reset   a desk with fresh data; the user's first words
    step    calls -> the package's tools; a message -> the user, whom a model plays
            the user is done, or was handed over to a human -> the package's reward, done

What a tool says of a wrong call is its result, and trained (outcome model_error). A user's model that does not answer
is `env_error`, and no reward. signals of every step: turn, error_type. The last one has a reward of 1.0 or 0.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from env_servers.actions import BadAction, cut_to_reply, read_json
from env_servers.adapters.calls import read_calls
from env_servers.env import Env, Step
from env_servers.functions.users import User

from .package import RESPOND, SPLITS, action, opened

ACTION = 'a JSON list of calls, [{"name": ..., "arguments": {...}}, ...], or {"message": text} to the user'
GREETING = "Hi! How can I help you today?"
"""What the user hears first: the package's words."""
FAILED = "Error"
"""How the package's desk begins what it says of a call that a tool refused."""


class TauTask(BaseModel):
    """What a row tells the environment."""

    model_config = ConfigDict(extra="ignore")
    tau_domain: Literal["airline", "retail"]
    split: str = "test"
    index: int = Field(ge=0)


class TauEnv(Env):
    def __init__(self, make_user: Callable[[str], User]) -> None:
        """`make_user`: a task's instruction -> who plays it."""
        self._make_user = make_user

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Return the user's first words.

        Raises:
            ValueError: The task is malformed, or the package has none at its index.
            UserUnavailable: The user's model does not answer.
        """
        given = TauTask.model_validate(task)
        if given.split not in SPLITS[given.tau_domain]:
            known = ", ".join(SPLITS[given.tau_domain])
            raise ValueError(f"split is {given.split!r}. Tau-bench's {given.tau_domain} has {known}.")
        try:
            self._desk = await opened(given.tau_domain, given.split, given.index)
        except IndexError:
            raise ValueError(f"index {given.index}: tau-bench's {given.tau_domain} has fewer tasks.") from None
        self._user = self._make_user(self._desk.task.instruction)
        self._turn = 0
        self._over = False
        line = await self._user.answer(GREETING)
        return line.text if line is not None else ""

    async def step(self, action_text: str, deadline_s: float) -> Step:
        if self._over:
            return Step("The dialogue is over.", done=True, outcome="model_error", signals=self._signals("bad_call"))
        self._turn += 1
        try:
            said = read_json(action_text)
            if isinstance(said, dict) and isinstance(said.get("message"), str):
                return await self._message(said["message"])
            calls = read_calls(action_text)
        except BadAction as e:
            return Step(f"{e} Send {ACTION}.", outcome="model_error", signals=self._signals("bad_call"))
        texts: list[str] = []
        error: str | None = None
        for name, arguments in calls:
            response = await asyncio.to_thread(self._desk.step, action(name, arguments)) if name != RESPOND else None
            if response is None:  # a message is no call
                error = error or "bad_call"
                texts.append(f'{RESPOND} is no function. Send {{"message": text}}.')
                continue
            texts.append(str(response.observation))
            if name not in self._desk.tools_map:
                error = error or "unknown_function"
            elif texts[-1].startswith(FAILED):
                error = error or "refused"
            if response.done:
                return self._ended("\n".join(texts), float(response.reward), error)
        outcome: Literal["ok", "model_error"] = "model_error" if error else "ok"
        return Step(cut_to_reply("\n".join(texts)), outcome=outcome, signals=self._signals(error))

    async def _message(self, text: str) -> Step:
        """What the model says is kept for the outputs that the task asks for; the user answers or is done."""
        line = await self._user.answer(text)
        self._desk.actions.append(action(RESPOND, {"content": text}))
        if line is not None:
            return Step(line.text, signals=self._signals(None))
        graded = await asyncio.to_thread(self._desk.calculate_reward)
        return self._ended("", float(graded.reward), None)

    def _ended(self, text: str, reward: float, error: str | None) -> Step:
        self._over = True
        outcome: Literal["ok", "model_error"] = "model_error" if error else "ok"
        return Step(cut_to_reply(text), reward=reward, done=True, outcome=outcome, signals=self._signals(error))

    def _signals(self, error: str | None) -> dict[str, Any]:
        return {"turn": self._turn, "error_type": error}
