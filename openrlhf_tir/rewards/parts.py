"""The parts that rewards report of a response besides the reward."""

from __future__ import annotations

from ..types import Trajectory


def response_parts(trajectory: Trajectory, *, correct: bool, format_ok: bool) -> dict[str, float]:
    """Return the parts that nearly all rewards have: correct, format_ok, and those of `call_facts`."""
    return {"correct": float(correct), "format_ok": float(format_ok), **call_facts(trajectory)}


def call_facts(trajectory: Trajectory) -> dict[str, float]:
    """Return metrics of a response's calls.

    Returns:
        used_code (1 if it called a tool), num_calls, code_ok (share of the calls that ran without an error) and
        truncated (1 if the length limit ended the response).
    """
    calls = trajectory.calls
    return {
        "used_code": float(bool(calls)),
        "num_calls": float(len(calls)),
        "code_ok": sum(call.outcome == "ok" for call in calls) / len(calls) if calls else 0.0,
        "truncated": float(trajectory.finish_reason == "length"),
    }
