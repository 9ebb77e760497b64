"""Slow down the steps of a real vLLM engine on one worker, while a test does what must come before responses end.

The tiny model samples a response in less time than this process may stand still on a busy machine. With a step of
`STEP_S` a response of 160 tokens takes 16 seconds, whatever the machine.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from openrlhf_tir.engines.vllm_engine import VllmEngine

STEP_S = 0.1


@asynccontextmanager
async def paced(engine: VllmEngine, *, step_s: float = STEP_S, hold_s: float = 0.0) -> AsyncIterator[None]:
    """Make every step take at least `step_s` seconds within the block. `hold_s` is vllm_scheduler.HOLD_S meanwhile: by
    default tokens leave the engine with each step."""
    await engine._llm.collective_rpc(_set_pace, args=(step_s, hold_s))
    try:
        yield
    finally:
        await engine._llm.collective_rpc(_set_pace, args=(0.0, None))


def _set_pace(worker: Any, step_s: float, hold_s: float | None) -> None:
    """Runs in vLLM's engine process, which has the scheduler. `hold_s` None: as it is outside of tests."""
    from openrlhf_tir.engines import packed_logprobs, vllm_scheduler

    scheduler = vllm_scheduler.PackingScheduler
    plain = getattr(scheduler.update_from_output, "plain", scheduler.update_from_output)

    def update_from_output(*args: Any, **kwargs: Any) -> Any:
        time.sleep(step_s)
        return plain(*args, **kwargs)

    update_from_output.plain = plain  # type: ignore[attr-defined]
    scheduler.update_from_output = update_from_output if step_s else plain  # type: ignore[method-assign]
    vllm_scheduler.HOLD_S = packed_logprobs.HOLD_S if hold_s is None else hold_s  # type: ignore[misc]
