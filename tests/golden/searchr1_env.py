"""Rows of searchr1_env: one scripted turn in our own `run_episode`, passages formatted by our search environment.

The reference lets a turn be sampled to its end and cuts it after the first </search>, or else the first </answer>: so
do the rows' turns here, an answer before a search included. A real engine stops at whichever comes first.
"""

from __future__ import annotations

import asyncio

from env_servers.search.env import format_passages
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols.searchr1 import STOPS, SearchR1

from ._compare import mismatches
from .zerotir_rollout import CharCodec, ScriptedEngine

DEFAULT = [
    {"contents": '"Paris"\nParis is the capital of France.'},
    {"contents": '"France"\nFrance is a country.\nSecond line.'},
    {"contents": "NoBody"},
]
"""What the stubbed retriever answers to a query that the row does not list."""


class ScriptedRetriever:
    """`asked` False: the reference's last generation, whose search is not run. Our loop ends before (`max_calls`)."""

    def __init__(self, results, asked):
        self.results, self.asked, self.queries = results, asked, []

    async def reset(self):
        return ""

    async def step(self, action, *, step_id):
        if not self.asked:
            return StepReply(session_id="s", step_id=step_id, observation="")
        self.queries.append(action)
        found = self.results.get(action)
        documents = DEFAULT if found is None else [hit["document"] for hit in found]
        return StepReply(session_id="s", step_id=step_id, observation=format_passages(documents))


def stopped(text: str) -> dict:
    stop = next((stop for stop in STOPS if stop in text), None)
    end = len(text) if stop is None else text.find(stop) + len(stop)
    return {"text": text[:end], "finish_reason": "stop", "stop_reason": stop}


def check(row: dict, compat: bool) -> list[str] | None:
    if not row["active"]:
        return None  # a sample that ended is not asked again here
    last = {"text": "", "finish_reason": "stop", "stop_reason": None}
    engine = ScriptedEngine([stopped(row["generated"]), last])
    env = ScriptedRetriever(row.get("retriever_result_for_query", {}), row["do_search"])
    protocol = SearchR1(max_calls=1)
    # rows hold what comes before the cut to 500 tokens
    limits = Limits(max_new_tokens=1 << 20, output_max_tokens=1 << 20)
    traj = asyncio.run(
        run_episode(
            [], index=0, engine=engine, env=env, codec=CharCodec(), protocol=protocol, limits=limits, request_id="r"
        )
    )
    observation = "".join(s.text for s in traj.segments if s.source == "env")
    searched, done = bool(traj.calls), len(engine.segments) == 1
    got = {
        "kept_text": traj.segments[0].text,
        "action": "search" if searched else "answer" if done else None,
        "queries_sent": [env.queries],
        "observation": observation,
        "done": int(done),
        "valid_action": int(searched or done),
        "is_search": int(searched),
    }
    content = {"content": traj.calls[0].action} if searched else {}
    skip = [name for name, unknown in (("content", not searched), ("queries_sent", not row["do_search"])) if unknown]
    return mismatches({**got, **content}, row["expected"], skip=skip)
