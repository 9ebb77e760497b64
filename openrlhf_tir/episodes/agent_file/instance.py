"""In the worker: OpenRLHF's AgentInstance, the interface checked, each call with its deadline, its steps recorded."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from .llm_engine import RUN


class Deadlines(dict[str, float]):
    """{"reset": seconds, "step": seconds}; the settings of it are env.reset_timeout_s and env.step_timeout_s."""


class CallLate(Exception):
    """A reset or step was not over in time."""


def recorded(cls: type, deadlines: Deadlines) -> type:
    """A subclass of the instance's class that does the same, and raises TypeError for what OpenRLHF could not use."""
    init: Any = getattr(cls, "__init__")  # noqa: B009  # a constructor is no method of an instance to a type checker
    # OpenRLHF's older examples: Ray awaits such a constructor, Python refuses it
    made_async = inspect.iscoroutinefunction(init)

    class Recorded(cls):  # type: ignore[misc]  # the class is known at run time only
        if made_async:

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                """Made in `reset`."""

        async def reset(self, states: dict[str, Any], **kwargs: Any) -> Any:
            async with _deadline("reset", deadlines):
                if made_async:
                    await init(self)
                result = await super().reset(states, **kwargs)
            if not isinstance(result, dict) or not isinstance(result.get("observation"), str):
                raise TypeError(f'reset returned {_show(result)}, not a dict with the text "observation"')
            return result

        async def step(self, states: dict[str, Any], **kwargs: Any) -> Any:
            start = time.monotonic()
            async with _deadline("step", deadlines):
                result = await super().step(states, **kwargs)
            check_step(result)
            if run := RUN.get():
                reward = float(result["rewards"].item())
                call = {
                    "action": states["action_text"],
                    "observation": result["environment_feedback"],
                    "reward": reward,
                    "done": bool(result["done"]),
                }
                run.calls.append(call | {"seconds": time.monotonic() - start})
            return result

    Recorded.__name__, Recorded.__qualname__, Recorded.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    return Recorded


def check_step(result: Any) -> None:
    """Raises TypeError unless `result` is what MultiTurnAgentExecutor reads."""
    if not isinstance(result, dict):
        raise TypeError(f"step returned {_show(result)}, not a dict")
    if lacks := [name for name in ("rewards", "environment_feedback", "done") if name not in result]:
        raise TypeError(f"step returned no {', '.join(lacks)}")
    if not callable(getattr(result["rewards"], "item", None)) or getattr(result["rewards"], "numel", lambda: 1)() != 1:
        raise TypeError(
            f'step returned "rewards" = {_show(result["rewards"])}, not one number in a tensor, as torch.tensor(1.0)'
        )
    if not isinstance(result["environment_feedback"], str):
        raise TypeError(f'step returned "environment_feedback" = {_show(result["environment_feedback"])}, not text')
    if result.get("environment_images"):
        raise TypeError('step returned "environment_images", and tasks are text here: return text only')


@asynccontextmanager
async def _deadline(call: str, deadlines: Deadlines) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(deadlines[call]) as clock:
            yield
    except TimeoutError as e:
        if not clock.expired():
            raise  # its own
        said = f"{call} of the agent instance was not over within env.{call}_timeout_s = {deadlines[call]:g} s."
        raise CallLate(f"{said} Make it quicker, or raise that.") from e.__cause__


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text[:120]}{'...' if len(text) > 120 else ''} ({type(value).__name__})"
