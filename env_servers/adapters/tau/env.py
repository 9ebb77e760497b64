"""An environment whose action is a JSON list of calls, or {"message": text} to the user.

    reset   a desk with fresh data; the user's first words
    step    calls -> the package's tools; a message -> the user, whom a model plays
            the user is done, or was handed over to a human -> the package's reward, done

The observation is the results of the calls, or the user's answer. A tool's answer to a wrong call is its result, and
trained (outcome model_error). If the user's model does not answer, the outcome is `env_error` without a reward. Signals
of every step: turn, error_type. The last step has a reward of 1.0 or 0.0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from env_servers.actions import CALLS, BadAction, cut_to_reply, read_message_or_calls
from env_servers.env import Env, Step
from env_servers.functions.users import User

from .package import RESPOND, SPLITS, action, desk

ACTION = f'{CALLS}, or {{"message": text}} to the user'
GREETING = "Hi! How can I help you today?"
"""What the user hears first, in the package's words."""
FAILED = "Error"
"""Beginning of the package's answer to a call that a tool refused."""


class TauTask(BaseModel):
    """The task of a row."""

    model_config = ConfigDict(extra="ignore")
    tau_domain: Literal["airline", "retail"]
    split: str = "test"
    index: int = Field(ge=0)


class TauEnv(Env):
    """A dialogue with one user."""

    def __init__(self, make_user: Callable[[str], User]) -> None:
        """Create the environment. `make_user` returns the user of a task from its instruction."""
        self._make_user = make_user

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Return the user's first words.

        Raises:
            ValueError: The task is malformed, or the package has none at its index.
            UserUnavailable: The user's model does not answer.
        """
        tau_task = TauTask.model_validate(task)
        if tau_task.split not in SPLITS[tau_task.tau_domain]:
            splits = ", ".join(SPLITS[tau_task.tau_domain])
            raise ValueError(f"split is {tau_task.split!r}. Tau-bench's {tau_task.tau_domain} has {splits}.")
        try:
            self._desk = await asyncio.to_thread(desk, tau_task.tau_domain, tau_task.split, tau_task.index)
        except IndexError:
            raise ValueError(f"index {tau_task.index}: tau-bench's {tau_task.tau_domain} has fewer tasks.") from None
        self._user = self._make_user(self._desk.task.instruction)
        self._turn = 0
        self._over = False
        line = await self._user.answer(GREETING)
        return line.text if line is not None else ""

    async def step(self, action_text: str, deadline_s: float) -> Step:
        """Carry out calls, or send a message to the user."""
        if self._over:
            return Step("The dialogue is over.", done=True, outcome="model_error", signals=self._signals("bad_call"))
        self._turn += 1
        try:
            request = read_message_or_calls(action_text, ACTION)
        except BadAction as e:
            return Step(str(e), outcome="model_error", signals=self._signals("bad_call"))
        if isinstance(request, str):
            return await self._message(request)
        texts: list[str] = []
        error: str | None = None
        for name, arguments in request:
            if name == RESPOND:  # the package's name for a message
                error = error or "bad_call"
                texts.append(f'{RESPOND} is not a function. Send {{"message": text}}.')
                continue
            response = await asyncio.to_thread(self._desk.step, action(name, arguments))
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
        """Send a message to the user, who answers or is done. It is kept for the outputs that the task requires."""
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
