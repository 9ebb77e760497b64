"""Roll out one row of a verifiers environment, and return how the session ends, as POST /sessions/{id}/reward takes it.

    {"reward": 1.0, "parts": {metric: value}}     the rubric's reward
    {"failed": reason}                            nothing of the session is trained

verifiers turns a reward function that raises, or returns no number, into 0. Here that is a failure, because a broken
judge says nothing about the model. An error that the environment recorded, and a rollout that the environment's own
clock has ended, are failures too.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from openrlhf_tir.errors import ConfigError

REASON_CHARS = 500
"""Characters of a reason that are kept."""
_raised: ContextVar[list[str]] = ContextVar("reward functions that raised in this rollout")


class Rollouts:
    """Rolls out rows of one environment."""

    def __init__(self, environment: Any, *, max_tokens: int | None = None) -> None:
        """Prepare an environment.

        Args:
            environment: The environment.
            max_tokens: Tokens of one answer; None: as many as the endpoint gives.

        Raises:
            ConfigError: Its rubric compares the rollouts of a group.
        """
        if environment.requires_group_rollouts:
            raise ConfigError(
                f"The rubric of {environment.env_id!r} compares the rollouts of a group (requires_group_rollouts:"
                " a reward function takes prompts, completions, states, ...), and each rollout runs by itself here."
                " Give it functions of one rollout."
            )
        self._environment = environment
        self._sampling = {} if max_tokens is None else {"max_tokens": max_tokens}
        for rubric in _rubrics(environment.rubric):
            rubric.funcs = [_recording_errors(function) for function in rubric.funcs]

    async def run(self, base_url: str, key: str, row: dict[str, Any]) -> dict[str, Any]:
        """Roll out a row. Exceptions become failures.

        Args:
            base_url: The session's OpenAI base URL.
            key: The run's key.
            row: The example of the data set.
        """
        from openai import AsyncOpenAI
        from verifiers.clients.openai_chat_completions_client import OpenAIChatCompletionsClient

        raised: list[str] = []
        _raised.set(raised)
        try:
            async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
                output = await self._environment.run_rollout(
                    row, OpenAIChatCompletionsClient(client), "policy", dict(self._sampling)
                )
            if reason := _failure(output, raised):
                return {"failed": reason[:REASON_CHARS]}
            parts = {
                name: float(value)
                for name, value in (output.get("metrics") or {}).items()
                if isinstance(value, int | float) and math.isfinite(value)
            }
            return {"reward": float(output["reward"]), "parts": parts}
        except Exception as e:  # raised by environment, package or endpoint, never the model's fault
            return {"failed": f"{type(e).__name__}: {e}"[:REASON_CHARS]}


def _failure(output: Any, raised: list[str]) -> str | None:
    """Return why a rollout has failed; None if it has a valid reward."""
    if output.get("error"):
        return f"the environment failed: {output['error']}"
    if raised:
        return f"a reward function raised: {'; '.join(raised)}"
    if output.get("stop_condition") == "timeout_reached":
        return "the environment's timeout_seconds ended the rollout"
    reward = output.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return f"the rubric gives the reward {reward!r}, which is not a finite number"
    return None


def _rubrics(rubric: Any) -> Iterator[Any]:
    """Yield a rubric and those within it: in a group of rubrics, in environments, or in anything that keeps others."""
    yielded = set()
    candidates = [rubric]
    while candidates:
        candidate = candidates.pop()
        candidate = getattr(candidate, "rubric", candidate)  # of an environment
        if not hasattr(candidate, "score_rollout") or id(candidate) in yielded:
            continue
        yielded.add(id(candidate))
        yield candidate
        for value in vars(candidate).values():
            if isinstance(value, Mapping):
                candidates += value.values()
            elif isinstance(value, list | tuple):
                candidates += value
            else:
                candidates.append(value)


def _recording_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same name and signature that also records its exceptions for the current rollout."""

    @functools.wraps(function)
    async def recording(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
            # verifiers converts the result as well, but scores 0 if that fails
            return float(await result if inspect.isawaitable(result) else result)
        except Exception as e:
            if (raised := _raised.get(None)) is not None:
                raised.append(f"{getattr(function, '__name__', 'function')}: {type(e).__name__}: {e}")
            raise

    return recording
