"""Rollouts: a verifiers environment, one row of it and an OpenAI endpoint -> how the session ends, as POST
/sessions/{id}/reward takes it.

    {"reward": 1.0, "parts": {metric: value}}     the rubric's word
    {"failed": why}                               nothing of it is trained

verifiers makes 0 of a reward function that raises, or gives no number, and goes on. Here that is a failure: a broken
judge says nothing about the model. So are an error that the environment recorded, and a rollout that the environment's
own clock has ended.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from openrlhf_tir.errors import ConfigError

WHY_CHARS = 500
_raised: ContextVar[list[str]] = ContextVar("reward functions that raised in this rollout")


class Rollouts:
    def __init__(self, environment: Any, *, max_tokens: int | None = None) -> None:
        """`max_tokens`: of one answer; None: what the endpoint gives. ConfigError for a rubric of whole groups."""
        if environment.requires_group_rollouts:
            raise ConfigError(
                f"The rubric of {environment.env_id!r} compares the rollouts of a group (a reward function takes"
                " prompts, completions, states, ...), and each rollout runs by itself here."
                " Give it functions of one rollout."
            )
        self._environment = environment
        self._sampling = {} if max_tokens is None else {"max_tokens": max_tokens}
        for rubric in _rubrics(environment.rubric):
            rubric.funcs = [_watched(f) for f in rubric.funcs]

    async def run(self, base_url: str, key: str, row: dict[str, Any]) -> dict[str, Any]:
        """`row`: what its data set says of the example. Raises nothing of its own doing but what is no Exception."""
        from openai import AsyncOpenAI
        from verifiers.clients.openai_chat_completions_client import OpenAIChatCompletionsClient

        raised: list[str] = []
        _raised.set(raised)
        try:
            async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
                output = await self._environment.run_rollout(
                    row, OpenAIChatCompletionsClient(client), "policy", dict(self._sampling)
                )
        except Exception as e:  # the environment's, the package's or the endpoint's: never the model's
            return {"failed": f"{type(e).__name__}: {e}"[:WHY_CHARS]}
        if failed := _failure(output, raised):
            return {"failed": failed[:WHY_CHARS]}
        parts = {
            name: float(v)
            for name, v in (output.get("metrics") or {}).items()
            if isinstance(v, int | float) and math.isfinite(v)
        }
        return {"reward": float(output["reward"]), "parts": parts}


def _failure(output: Any, raised: list[str]) -> str | None:
    if output.get("error"):
        return f"the environment failed: {output['error']}"
    if raised:
        return f"a reward function raised: {'; '.join(raised)}"
    if output.get("stop_condition") == "timeout_reached":
        return "the environment's timeout_seconds ended the rollout"
    reward = output.get("reward")
    if not isinstance(reward, int | float) or not math.isfinite(reward):
        return f"the rubric gives the reward {reward!r}, which is no finite number"
    return None


def _rubrics(rubric: Any) -> Iterator[Any]:
    """The rubric, and those within it: of a group of rubrics, of environments, or of whatever keeps others."""
    found = set()
    look = [rubric]
    while look:
        at = look.pop()
        at = getattr(at, "rubric", at)  # an environment's
        if not hasattr(at, "score_rollout") or id(at) in found:
            continue
        found.add(id(at))
        yield at
        for value in vars(at).values():
            look += (
                value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
            )


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, by name and signature; what it raises is noted for the rollout that asked, and raised on."""

    @functools.wraps(function)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            result = function(*args, **kwargs)
            # as verifiers does, and takes 0 for what is no number
            return float(await result if inspect.isawaitable(result) else result)
        except Exception as e:
            if (raised := _raised.get(None)) is not None:
                raised.append(f"{getattr(function, '__name__', 'function')}: {type(e).__name__}: {e}")
            raise

    return watched
