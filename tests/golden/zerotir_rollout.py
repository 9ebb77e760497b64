"""Rows of zerotir_rollout: a scripted model and sandbox drive our own `run_episode`, one token per character."""

from __future__ import annotations

import asyncio

import numpy as np

from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols.zerotir import ZeroTir
from openrlhf_tir.types import Completion


class CharCodec:
    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, token_ids):
        return "".join(map(chr, token_ids))


class ScriptedEngine:
    def __init__(self, segments):
        self.segments, self.stop_sets, self.max_tokens = list(segments), [], []

    async def generate(self, token_ids, sampling, *, request_id):
        self.stop_sets.append(sorted(sampling.stop))
        self.max_tokens.append(sampling.max_tokens)
        s = self.segments.pop(0)
        if len(s["text"]) > sampling.max_tokens:  # scripted without a bound: a real engine stops there
            s = {"text": s["text"][: sampling.max_tokens], "finish_reason": "length", "stop_reason": None}
        n = len(s["text"])
        ids = np.array([ord(c) for c in s["text"]], np.int32)
        return Completion(
            ids, np.zeros(n, np.float32), np.zeros(n, np.int32), s["text"], s["finish_reason"], s["stop_reason"]
        )


class ScriptedEnv:
    """Answers as the reference's sandbox *client* does: an exception of the sandbox reads "TimeOut Error" there. (Ours
    raises EnvError and the trajectory is failed; what is compared here is the turn loop, given the client's text.)"""

    def __init__(self, results):
        self.results, self.codes = list(results), []

    async def reset(self):
        return ""

    async def step(self, action, *, step_id):
        self.codes.append(action)
        result = self.results.pop(0)
        text = "TimeOut Error" if result == "EXC" else str(result["exec_result"])
        return StepReply(session_id="s", step_id=step_id, observation=text)


def check(row: dict, compat: bool) -> list[str] | None:
    if row.get("compat_only") and not compat:
        return None
    engine, env = ScriptedEngine(row["segments"]), ScriptedEnv(row["sandbox_results"])
    protocol = ZeroTir(max_calls=row["ENV_ITER_NUM"], base_stops=tuple(row["base_stop"]))
    limits = Limits(max_new_tokens=min(row["max_tokens"], row["max_length"]))
    traj = asyncio.run(
        run_episode(
            [], index=0, engine=engine, env=env, codec=CharCodec(), protocol=protocol, limits=limits, request_id="r"
        )
    )
    ends = np.cumsum([len(s.token_ids) for s in traj.segments])
    got = {
        "text": traj.text,
        "env_ranges": [
            [int(e) - len(s.token_ids), int(e)] for s, e in zip(traj.segments, ends, strict=True) if s.source == "env"
        ],
        "finish_reason": traj.finish_reason,
        "stop_reason": traj.stop_reason,
        "env_exec_times": len(traj.calls),
        "codes_executed": env.codes,
        "stop_sets_per_call": engine.stop_sets,
        "max_tokens_per_call": engine.max_tokens,
        # The reference appends an EOS that was never sampled; we don't, so these hold only with its rule added here.
        "eos_appended": True,
        "n_tokens_incl_eos": len(traj.token_ids) + 1,
    }
    skip = () if compat else row.get("compat_fields", ())
    bad = [f"{k}: {got[k]!r} is not {v!r}" for k, v in row["expected"].items() if k not in skip and got[k] != v]
    if engine.segments:
        bad.append(f"{len(engine.segments)} scripted segments were not asked for")
    return bad
