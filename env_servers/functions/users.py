"""Users: who answers the model's messages. A script, or a model behind an OpenAI-compatible URL that plays an
instruction.

A user ends the dialogue by returning None. A user's model that does not answer, or says nothing, raises
UserUnavailable: the step is `env_error`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

from env_servers.flags import seconds

from .task import FunctionTask, UserLine

STOP = "###STOP###"
GO_ON = "Please go on."
MAX_GO_ON = 3
"""How often a scripted user who has nothing to say asks to go on before leaving."""
TOKEN_ENV = "TIR_USER_TOKEN"
RULES = (
    "You are a user who talks to a help desk. Speak as this user, one short message at a time, and tell what you are"
    f" asked for, never more than you know. When your request is settled, or cannot be, write {STOP} and nothing"
    " else.\n\nWho you are and what you want: "
)


def add_user_flags(parser: argparse.ArgumentParser, url_help: str) -> None:
    """Add the flags that say which model plays the users.

    Args:
        parser: A server's.
        url_help: What the URL is for.
    """
    parser.add_argument("--user-url", metavar="URL", help=url_help)
    parser.add_argument(
        "--user-model", default="user", metavar="NAME", help="the model's name there (default: %(default)s)"
    )
    parser.add_argument(
        "--user-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds for one answer of the user's model (default: %(default)s)",
    )


class UserUnavailable(Exception):
    """The model that plays the user does not answer, or says nothing."""


class User(Protocol):
    async def answer(self, message: str) -> UserLine | None:
        """What the user says to the model's message; None ends the dialogue."""


class ScriptedUser:
    """Says the first line not yet said that fits the message: one whose words it holds, else one that needs none."""

    def __init__(self, lines: list[UserLine]) -> None:
        self._left = list(lines)
        self._waits = 0

    async def answer(self, message: str) -> UserLine | None:
        said = message.lower()
        fitting = [x for x in self._left if any(w.lower() in said for w in x.when)] or [
            x for x in self._left if not x.when
        ]
        if fitting:
            self._left.remove(fitting[0])
            return fitting[0]
        self._waits += 1
        return UserLine(text=GO_ON) if self._left and self._waits <= MAX_GO_ON else None


@dataclass
class ModelUser:
    """A chat model at `url` (`.../v1`) plays `instruction`; a bearer token comes from TIR_USER_TOKEN."""

    url: str
    model: str
    instruction: str
    timeout_s: float = 60.0
    _history: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, message: str) -> UserLine | None:
        heard = {"role": "user", "content": message}
        messages = [{"role": "system", "content": RULES + self.instruction}, *self._history, heard]
        body: dict[str, Any] = {"model": self.model, "messages": messages, "temperature": 0.0}
        headers = {"Authorization": f"Bearer {token}"} if (token := os.environ.get(TOKEN_ENV)) else {}
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(self.timeout_s)) as http:
                async with http.post(
                    f"{self.url.rstrip('/')}/chat/completions", json=body, headers=headers, allow_redirects=False
                ) as response:
                    response.raise_for_status()
                    text = str((await response.json())["choices"][0]["message"]["content"] or "")
        except (aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError) as e:
            raise UserUnavailable(
                f"The user's model at {self.url} does not answer: {type(e).__name__}: {e}."
                " Start it, or correct --user-url."
            ) from e
        if not text.strip():
            raise UserUnavailable(
                f"The user's model {self.model} at {self.url} answered nothing (content {text!r}). Give it room for an"
                " answer, which thoughts may use up, or another model with --user-model."
            )
        self._history += [heard, {"role": "assistant", "content": text}]
        return None if STOP in text else UserLine(text=text)


def user_of(task: FunctionTask, url: str | None, model: str, timeout_s: float) -> User:
    """The model where there is one and the task has an instruction for it, else the script. Raises ValueError for a
    script that ends before the gold does: no dialogue would come to the last turns, and nobody could pass them."""
    if url and task.instruction:
        return ModelUser(url, model, task.instruction, timeout_s)
    later = len(task.gold) - 1
    if task.check == "turns" and len(task.user) < later:
        raise ValueError(
            f"gold has {later + 1} turns, and user {len(task.user)} lines, which begin those after the first: nobody"
            f" could pass. Add {later - len(task.user)} to user."
        )
    return ScriptedUser(task.user)
