"""Who answers the model's messages: a script, or a model behind an OpenAI-compatible URL that plays an instruction.

A user ends the dialogue by returning None. If the user's model does not answer, or says nothing, UserUnavailable is
raised: the step is `env_error`.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from pydantic_core import from_json

from env_servers.flags import seconds

from .task import FunctionTask, UserLine

STOP = "###STOP###"
"""Text with which the user's model ends the dialogue."""
GO_ON = "Please go on."
"""What a scripted user says when no line fits the message."""
MAX_GO_ON = 3
"""How often a scripted user asks to go on before leaving."""
TOKEN_ENV = "TIR_USER_TOKEN"
"""Environment variable with the bearer token for the user's model."""
RULES = (
    "You are a user who talks to a help desk. Speak as this user, one short message at a time, and tell what you are"
    f" asked for, never more than you know. When your request is settled, or cannot be, write {STOP} and nothing"
    " else.\n\nWho you are and what you want: "
)
"""First part of the system message of the user's model."""


def add_user_flags(parser: argparse.ArgumentParser, url_help: str, *, required: bool = False) -> None:
    """Add the flags that say which model plays the users.

    Args:
        parser: The parser of a server.
        url_help: Help text of --user-url.
        required: True if the server has no scripted users, so that --user-url must be given.
    """
    parser.add_argument("--user-url", metavar="URL", required=required, help=url_help)
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
    """Raised when the model that plays the user does not answer, or says nothing."""


class User(Protocol):
    """A partner of the model's dialogue."""

    async def answer(self, message: str) -> UserLine | None:
        """Return what the user says to a message; None ends the dialogue."""


class ScriptedUser:
    """Says its lines once each.

    The next line is the first one left whose words the message holds; if there is none, the first one that needs no
    words.
    """

    def __init__(self, lines: list[UserLine]) -> None:
        self._lines_left = list(lines)
        self._go_on_count = 0

    async def answer(self, message: str) -> UserLine | None:
        """Return the next line, GO_ON if no line fits, and None if none is left."""
        text = message.lower()
        fitting = [line for line in self._lines_left if any(word.lower() in text for word in line.when)]
        if not fitting:
            fitting = [line for line in self._lines_left if not line.when]
        if fitting:
            self._lines_left.remove(fitting[0])
            return fitting[0]
        self._go_on_count += 1
        return UserLine(text=GO_ON) if self._lines_left and self._go_on_count <= MAX_GO_ON else None


@dataclass
class ModelUser:
    """A chat model at `url` (`.../v1`) that plays `instruction`."""

    url: str
    model: str
    instruction: str
    timeout_s: float = 60.0
    _history: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, message: str) -> UserLine | None:
        """Ask the model. Raises UserUnavailable."""
        question = {"role": "user", "content": message}
        messages = [{"role": "system", "content": RULES + self.instruction}, *self._history, question]
        body: dict[str, Any] = {"model": self.model, "messages": messages, "temperature": 0.0}
        headers = {"Authorization": f"Bearer {token}"} if (token := os.environ.get(TOKEN_ENV)) else {}
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(self.timeout_s)) as http:
                async with http.post(
                    f"{self.url.rstrip('/')}/chat/completions", json=body, headers=headers, allow_redirects=False
                ) as response:
                    response.raise_for_status()
                    text = str((await response.json(loads=from_json))["choices"][0]["message"]["content"] or "")
        except (aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError) as e:
            raise UserUnavailable(
                f"The user's model at {self.url} does not answer: {type(e).__name__}: {e}."
                " Start it, or correct --user-url."
            ) from e
        if not text.strip():
            raise UserUnavailable(
                f"The user's model {self.model} at {self.url} answered nothing (content {text!r}). Give it room for an"
                " answer, which its reasoning may use up, or choose another model with --user-model."
            )
        self._history += [question, {"role": "assistant", "content": text}]
        return None if STOP in text else UserLine(text=text)


def user_of(task: FunctionTask, url: str | None, model: str, timeout_s: float) -> User:
    """Return the user of a task: a model if there is one and the task has an instruction for it, else the script.

    Args:
        task: The task.
        url: URL of the model that plays users; None: there is none.
        model: Its name there.
        timeout_s: Seconds for one answer.

    Raises:
        ValueError: The script has fewer lines than the gold has later turns, so the last turns could not be reached.
    """
    if url and task.instruction:
        return ModelUser(url, model, task.instruction, timeout_s)
    later_turns = len(task.gold) - 1
    if task.check == "turns" and len(task.user) < later_turns:
        raise ValueError(
            f"gold has {later_turns + 1} turns, and user {len(task.user)} lines, which begin those after the first:"
            f" nobody could pass. Add {later_turns - len(task.user)} to user."
        )
    return ScriptedUser(task.user)
