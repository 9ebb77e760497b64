"""What an environment server answers to a step, for sessions of tests that call the environment without a server."""

from __future__ import annotations

from dataclasses import asdict

from env_servers.env import Step
from openrlhf_tir.protocol import StepReply


def reply_of(step: Step, step_id: int) -> StepReply:
    """Return the reply that carries all of a step's result."""
    return StepReply(session_id="s", step_id=step_id, **asdict(step))
