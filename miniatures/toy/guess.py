r"""The guessing game of `two_envs_cpu`: its turn protocol and its rows. The environment is env_servers/guess.

    User: Guess a number from 1 to 3.\nAssistant:      the prompt
    2                                                  the model's guess
     higher\n                                          the environment
    3 correct

The base model of the quickstart has never seen it: it begins with code, whose first digit counts as a guess.
"""

from __future__ import annotations

from typing import Any

from openrlhf_tir.rollout.protocols import Call, End
from openrlhf_tir.types import Completion

HIGH, TRIES = 3, 2
KIND = "guess"
"""`meta.kind` of a game, beside the kinds of task.py."""
PROMPTS = tuple(f"{ask} a number from 1 to {HIGH}." for ask in ("Guess", "Find", "Name", "Say"))


class Digits:
    """The first digit that the model writes is its guess; the environment says when the game is over."""

    def __init__(self, *, max_calls: int, budget_message: bool) -> None:
        self._left = max_calls

    @property
    def stops(self) -> tuple[str, ...]:
        return tuple("123456789")

    def advance(self, completion: Completion) -> Call | End:
        if self._left == 0 or completion.finish_reason != "stop" or completion.stop_reason not in self.stops:
            return End()
        self._left -= 1
        return Call(str(completion.stop_reason))

    def insertion(self, observation: str) -> str:
        return f" {observation}\n"

    def too_long(self) -> None:
        return None

    def after_insertion(self) -> str:
        return ""


def games(n: int, env: str) -> list[dict[str, Any]]:
    """Return `n` data rows for the environment `env`. Games of equal rows differ: each episode has its own seed."""
    meta = {"kind": KIND, "high": HIGH, "tries": TRIES}
    return [{"prompt": PROMPTS[i % len(PROMPTS)], "label": "-", "env": env, "meta": meta} for i in range(n)]
