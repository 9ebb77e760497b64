"""Replies that fit: what an environment says is cut where it is longer than a trainer reads.

A trainer reads a reply up to `MAX_REPLY_BYTES` and takes anything longer for nonsense, so that an observation of a
megabyte would fail the trajectory. Every reply passes here, whoever wrote the environment."""

from __future__ import annotations

from typing import Any

from openrlhf_tir.protocol import MAX_REPLY_BYTES, ResetReply, StepReply

from .actions import shown

SIGNAL_CHARS = 2048
"""Characters that are kept of a signal's text in a reply that is too long."""


def fit_step(reply: StepReply) -> StepReply:
    """Return the reply with its observation, and where that is not enough its signals, cut to what a trainer reads.

    Raises:
        ValueError: The reply cannot be written as JSON, as half of a surrogate pair cannot.
    """
    if _fits(reply):
        return reply
    reply = reply.model_copy(update={"observation": shown(reply.observation)})
    if _fits(reply):
        return reply
    reply = reply.model_copy(update={"signals": _short(reply.signals)})
    if _fits(reply):
        return reply
    return reply.model_copy(update={"signals": {"signals_left_out": len(reply.signals)}})


def fit_reset(reply: ResetReply) -> ResetReply:
    """Return the reply with its observation cut to what a trainer reads. Raises ValueError as `fit_step` does."""
    return reply if _fits(reply) else reply.model_copy(update={"observation": shown(reply.observation)})


def _fits(reply: StepReply | ResetReply) -> bool:
    return len(reply.model_dump_json().encode()) <= MAX_REPLY_BYTES


def _short(signals: dict[str, Any]) -> dict[str, Any]:
    return {
        name: f"{value[:SIGNAL_CHARS]}... [{len(value) - SIGNAL_CHARS} characters left out]"
        if isinstance(value, str) and len(value) > SIGNAL_CHARS
        else value
        for name, value in signals.items()
    }
