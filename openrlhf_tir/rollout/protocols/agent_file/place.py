"""What an agent file must define. `plugins` checks it before a model is loaded, and again in the worker.

Only the standard library is imported, because the settings' checks run without the heavy packages.
"""

from __future__ import annotations

import inspect
from typing import Any

from ....user_code import plugins

ATTRIBUTE = "AgentExecutor"
ARGUMENTS = ("prompt", "label", "sampling_params", "max_length", "hf_tokenizer", "llm_engine")
"""Keyword arguments of `execute`, to which `images=None` is added if it accepts that (OpenRLHF 0.11.2,
trainer/ray/vllm_engine.py)."""


def _complaint(cls: Any) -> str | None:
    """Return what is wrong with the executor; None if nothing is."""
    if not inspect.isclass(cls):
        return f"{ATTRIBUTE} is {type(cls).__name__}, not a class"
    execute = getattr(cls, "execute", None)
    if not inspect.iscoroutinefunction(execute):
        return f"{cls.__name__} has no `async def execute`"
    abstract = sorted(getattr(cls, "__abstractmethods__", ()))
    if abstract:
        return f"{cls.__name__} does not define {', '.join(abstract)}"
    try:
        inspect.signature(execute).bind(None, **dict.fromkeys(ARGUMENTS))
    except TypeError as e:
        return f"{cls.__name__}.execute{inspect.signature(execute)} cannot be called as OpenRLHF 0.11.2 does: {e}"
    return plugins.takes(0)(cls)


AGENT = plugins.Place(
    "agent executor",
    "train.agent_func_path",
    "a class made without arguments, derived from openrlhf.utils.agent's MultiTurnAgentExecutor or AgentExecutorBase,"
    f" with async execute({', '.join(ARGUMENTS)})",
    complaint=_complaint,
)
