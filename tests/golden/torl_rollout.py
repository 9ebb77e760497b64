"""Rows of torl_rollout: a scripted model and sandbox drive our own `run_episode`, one token per character.

The rows' response is the reference's: we derive it from ours by its rules for a "```output" without a program (taken
back) or without a newline before it (given one), for samples that end before others (a newline), and for the EOS that
it appends. Rows marked `compat_only` hold its wrong masks and lost text; of those what we mask is compared with the
intended ranges, and rows whose text is lost are skipped.
"""

from __future__ import annotations

import asyncio

import numpy as np

from env_servers.python_tir import conventions
from env_servers.python_tir.sandbox import Execution
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols.torl import STOP, ToRL

from ._compare import mismatches
from .zerotir_rollout import CharCodec, ScriptedEngine

EOS = "\u241e"
TIMED_OUT = "timeout_decorator.timeout_decorator.TimeoutError: 'Timed Out'"
EMPTY_BLOCK = f"{STOP}\n```\n"


class ScriptedSandbox:
    """Answers as the reference's sandbox client does: stdout if there is any or the code succeeded, else stderr; a
    sandbox that fails reads "UnknownError". (Ours raises EnvError there and the trajectory is failed.)"""

    def __init__(self, replies):
        self.replies = replies

    async def reset(self):
        return ""

    async def step(self, action, *, step_id):
        reply = self.replies[action]
        run = reply.get("run_result") if isinstance(reply, dict) else None
        # A program that ran into the time limit has no return code: null. Without the field the client fails.
        if run is None or "return_code" not in run or any(run.get(field) is None for field in ("stdout", "stderr")):
            text, passed = "UnknownError", False
        else:
            execution = Execution(run["stdout"].encode(), run["stderr"].encode(), run["return_code"], 0.0)
            text, passed = conventions.torl(execution, None if run["return_code"] == 0 else "runtime_error")
        return StepReply(session_id="s", step_id=step_id, observation=text, outcome="ok" if passed else "model_error")


def check(row: dict, compat: bool) -> list[str] | None:
    budget, companion, expected = row["C"], row["batch_has_companion_that_calls_tool"], row["expected"]
    segments = [{**s, "text": s["text"] + (s["stop_reason"] or "")} for s in row["segments"]]
    engine, protocol = ScriptedEngine(segments), ToRL(max_calls=budget, silent=TIMED_OUT)
    limits = Limits(max_new_tokens=row["response_length"], output_max_tokens=400)
    env = ScriptedSandbox(row["sandbox_replies"])
    traj = asyncio.run(
        run_episode(
            [], index=0, engine=engine, env=env, codec=CharCodec(), protocol=protocol, limits=limits, request_id="r"
        )
    )
    rounds = sum(s.source == "model" for s in traj.segments)
    if rounds <= budget and not companion:
        return None  # the reference loses the last segment there
    text, ranges = _as_reference(traj)
    ended = EOS if row["segments"][rounds - 1]["finish_reason"] != "length" else ""
    newline = "\n" if rounds <= budget and not row["segments"][rounds - 1]["text"].endswith("\n") else ""
    last_round = [c for c, s in zip(traj.calls, _stopped(traj), strict=True) if s == budget]
    got = {
        "response": (text + newline + ended)[: row["response_length"]],
        "intended_env_char_ranges_derived": ranges,
        "execution_pass": int(any(c.outcome == "ok" for c in last_round)),
        "stop_strings_per_call": [s or None for s in engine.stop_sets] + expected["stop_strings_per_call"][rounds:],
    }
    return mismatches(got, {k: v for k, v in expected.items() if k != "env_char_ranges"})


def _as_reference(traj) -> tuple[str, list[list[int]]]:
    """(text, ranges of what we mask) with a "```output" that ran nothing taken back, a newline left if there was none
    before it."""
    text, ranges = "", []
    for segment in traj.segments:
        if segment.source == "env" and text.endswith(STOP) and segment.text == EMPTY_BLOCK.removeprefix(STOP):
            text = text.removesuffix(STOP)
            continue
        if segment.source == "env":
            ranges.append([len(text), len(text) + len(segment.text)])
        text += segment.text
        said = segment.text.removesuffix(STOP)
        if segment.source == "model" and said != segment.text and not said.endswith("\n"):
            text = text.removesuffix(STOP) + "\n" + STOP  # the reference writes it again, on a line of its own
    return text, ranges


def _stopped(traj) -> list[int]:
    """For each call the number, from 1, of the model segment that asked for it."""
    numbers = np.cumsum([s.source == "model" for s in traj.segments])
    return [
        int(n)
        for n, s in zip(numbers, traj.segments, strict=True)
        if s.source == "env" and s.text != EMPTY_BLOCK.removeprefix(STOP)
    ]
