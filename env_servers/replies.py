"""Cut replies to the size that a trainer reads.

A trainer refuses a reply of more than MAX_REPLY_BYTES as unreadable, so an observation of a megabyte would fail the
trajectory. Every reply passes here, whoever wrote the environment.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json

from openrlhf_tir.protocol import MAX_REPLY_BYTES, ResetReply, StepReply

from .actions import cut, cut_to_reply, sendable
from .defects import show

SIGNAL_CHARS = 2048
"""Characters kept of a text among the signals of a reply that is too long."""


def fit_step(reply: StepReply) -> StepReply:
    """Return the reply with its observation, and if that is not enough its signals, cut to the size that a trainer
    reads.

    Raises:
        ValueError: The signals cannot be written as JSON.
    """
    reply = reply.model_copy(update={"observation": sendable(reply.observation)})
    if _fits(reply):
        return reply
    reply = reply.model_copy(update={"observation": cut_to_reply(reply.observation)})
    if _fits(reply):
        return reply
    reply = reply.model_copy(update={"signals": _short(reply.signals)})
    if _fits(reply):
        return reply
    return reply.model_copy(update={"signals": {"signals_left_out": len(reply.signals)}})


def fit_reset(reply: ResetReply) -> ResetReply:
    """Return the reply with its observation cut to what a trainer reads."""
    reply = reply.model_copy(update={"observation": sendable(reply.observation)})
    return reply if _fits(reply) else reply.model_copy(update={"observation": cut_to_reply(reply.observation)})


def unwritable(signals: dict[str, Any]) -> str:
    """Return "signals[name] = value (type)" of the first signal that cannot be written as JSON."""
    for name, value in signals.items():
        try:
            to_json({name: value})
        except ValueError:
            return f"signals[{name!r}] = {show(value)}"
    return "signals"


def _fits(reply: StepReply | ResetReply) -> bool:
    return len(reply.model_dump_json().encode()) <= MAX_REPLY_BYTES


def _short(signals: dict[str, Any]) -> dict[str, Any]:
    """Return the signals with long texts cut to SIGNAL_CHARS characters."""
    short = {}
    for name, value in signals.items():
        short[name] = cut(value, SIGNAL_CHARS) if isinstance(value, str) else value
    return short
