"""Parts of `benchmarks.rollout.faults` and its tests: groups, episodes and environment client of an actor whose engine
is emulated.

Only the engine is emulated: it sleeps and writes the same two calls in every response. What it writes names the sample,
and the echo environment repeats it, so that an observation which no server sent for this sample is found.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from openrlhf_tir.config import Config
from openrlhf_tir.protocol import TRAINABLE_OUTCOMES
from openrlhf_tir.rollout.group_runner import Envs, GroupRunner
from openrlhf_tir.types import Completion, Group, RewardParts, Sampling, Task, Trajectory, Verdict

START_TIMEOUT_S = 400.0
PATIENCE_S = 400.0
"""For what a busy machine may be late with; more and it does not come."""
CALLS = 2


class SleepingEngine:
    """Two calls, then an answer; segments take half to one and a half `segment_s`. No engine: nothing is sampled."""

    def __init__(self, segment_s: float) -> None:
        self.segment_s, self.version = segment_s, 0

    async def alive(self) -> None:
        """Always well: its process is what fails."""

    def stats(self) -> dict[str, float]:
        return {}

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        await asyncio.sleep(self.segment_s * random.uniform(0.5, 1.5))
        sample, turn = request_id.rsplit("/", 1)
        text, stop = self._segment(sample, int(turn))
        n = len(text)
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
        return Completion(ids, np.full(n, -0.5, np.float32), np.full(n, self.version, np.int32), text, "stop", stop)

    def _segment(self, sample: str, turn: int) -> tuple[str, str]:
        if turn == 2 * CALLS:
            return "done</answer>", "</answer>"
        return ("```python", "```python") if turn % 2 == 0 else (f"say {sample} {turn}\n```", "```")


class ByteCodec:
    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    encode_prompt = encode

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode()


class IndexReward:
    """Alternating, so that no filter finds a group without variance."""

    async def score(self, trajectory: Trajectory, task: Task) -> RewardParts:
        return RewardParts(float(trajectory.index % 2), bool(trajectory.index % 2), {"format_ok": 1.0})


def config(run_dir: Path, *, n: int = 16, **sections: dict) -> Config:
    tree: dict[str, Any] = {
        "run_dir": run_dir,
        "actor": {"num_gpus_per_node": 1},
        "rollout": {"batch_size": 8, "n_samples_per_prompt": n, "group_deadline_s": 300},
        "env": {"name": "echo", "max_calls": CALLS, "step_timeout_s": 3.0},
        "pipeline": {"mode": "pipeline"},
        "ckpt": {"save_steps": -1},
    }
    for section, fields in sections.items():
        tree[section] = tree.get(section, {}) | fields
    return Config.model_validate(tree)


def runner(cfg: Config, envs: Envs, segment_s: float, name: str = "") -> GroupRunner:
    return GroupRunner(
        cfg, SleepingEngine(segment_s), ByteCodec(), envs, IndexReward(), lambda group: Verdict(True), name
    )


def trained_on_a_fault(group: Group) -> list[str]:
    """Samples that count as valid although a call of theirs had no proper answer. Must be empty."""
    wrong = []
    for t in group.valid:
        expected = [f"say {group.key}#{t.index} {turn}" for turn in range(1, 2 * CALLS, 2)]
        said = [c.observation for c in t.calls]
        if said != expected or any(c.outcome not in TRAINABLE_OUTCOMES for c in t.calls) or t.reward is None:
            wrong.append(f"{group.key}#{t.index}: {[s[:40] for s in said]}")
    return wrong


@contextmanager
def fault_server(directory: Path, env: str = "echo", delay_s: float = 0.1) -> Iterator[str]:
    """Base URL of a running fault server."""
    port_file = directory / f"fault-{time.monotonic_ns()}.port"
    flags = ["--port-file", str(port_file), "--env", env, "--delay-s", str(delay_s)]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.rollout.fault_server", *flags])
    try:
        give_up = time.monotonic() + START_TIMEOUT_S
        while not port_file.exists():
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError("The fault server did not start.")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text()}"
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def patience(what: str) -> AsyncIterator[None]:
    """Raises RuntimeError when the body takes longer than PATIENCE_S."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield
    except TimeoutError:
        raise RuntimeError(f"{what}: not within {PATIENCE_S:g} s.") from None


async def set_fault(url: str, name: str, seconds: float = 0.0) -> None:
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/fault", json={"name": name, "seconds": seconds}) as reply,
    ):
        reply.raise_for_status()


async def sessions(url: str) -> dict:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/sessions") as reply:
        return await reply.json()
