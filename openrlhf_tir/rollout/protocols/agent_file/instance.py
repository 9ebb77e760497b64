"""In the worker: OpenRLHF's AgentInstance with checked results, a deadline for each call, and its steps recorded."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from ....user_code import plugins
from .llm_engine import RUN


class Deadlines(dict[str, float]):
    """Seconds by call: "step" (env.step_timeout_s) and "reset" (three times that)."""


class CallLate(Exception):
    """A reset or step missed its deadline."""


def recorded(cls: type, deadlines: Deadlines) -> type:
    """Return a subclass of an instance's class with deadlines, checks and a record of its steps.

    Its methods raise TypeError for a result that OpenRLHF could not use, and CallLate for a missed deadline.
    """
    init: Any = getattr(cls, "__init__")  # noqa: B009  # a type checker refuses cls.__init__
    # OpenRLHF's older examples have an async constructor: Ray awaits it, Python does not, so `reset` does.
    has_async_init = inspect.iscoroutinefunction(init)

    class Recorded(cls):  # type: ignore[misc]  # the class is known at run time only
        if has_async_init:

            def __init__(self, *args: Any, **kwargs: Any) -> None:
                """Do nothing: `reset` awaits the constructor of the user's class."""

        async def reset(self, states: dict[str, Any], **kwargs: Any) -> Any:
            async with _deadline("reset", deadlines):
                if has_async_init:
                    await init(self)
                result = await super().reset(states, **kwargs)
            with _told_at(getattr(cls, "reset", None)):
                if not isinstance(result, dict) or not isinstance(result.get("observation"), str):
                    raise TypeError(f'reset returned {_show(result)}, not a dict with the text "observation"')
            return result

        async def step(self, states: dict[str, Any], **kwargs: Any) -> Any:
            start = time.monotonic()
            async with _deadline("step", deadlines):
                result = await super().step(states, **kwargs)
            with _told_at(getattr(cls, "step", None)):
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

    Recorded.__name__ = cls.__name__
    Recorded.__qualname__ = cls.__qualname__
    Recorded.__module__ = cls.__module__
    return Recorded


@contextmanager
def _told_at(method: Any) -> Iterator[None]:
    """Have an error about what a method of the user's returned say where that method is: `place`, "file:line"."""
    try:
        yield
    except TypeError as e:
        e.place = plugins.location(method)  # type: ignore[attr-defined]
        raise


def check_step(result: Any) -> None:
    """Check the result of a step.

    Raises:
        TypeError: It is not what OpenRLHF's MultiTurnAgentExecutor reads.
    """
    if not isinstance(result, dict):
        raise TypeError(f"step returned {_show(result)}, not a dict")
    missing = [name for name in ("rewards", "environment_feedback", "done") if name not in result]
    if missing:
        raise TypeError(f"step returned no {', '.join(missing)}")
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
    """Raise CallLate if the block takes longer than the call may."""
    try:
        async with asyncio.timeout(deadlines[call]) as clock:
            yield
    except TimeoutError as e:
        if not clock.expired():
            raise  # the user's code raised it
        raise CallLate(
            f"{call} of the agent instance did not finish within {deadlines[call]:g} s. Make it faster, or raise"
            f" env.step_timeout_s = {deadlines['step']:g} s; a reset has three times that."
        ) from e.__cause__


def _show(value: Any) -> str:
    text = repr(value)
    return f"{text[:120]}{'...' if len(text) > 120 else ''} ({type(value).__name__})"
