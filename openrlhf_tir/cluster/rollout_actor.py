"""RolloutActor: a process with a vLLM engine, its HTTP endpoint, and the group episodes that run on it.

Our controller talks to it by Ray call; HTTP is the facade for everyone else. Payloads are returned as the second of two Ray
results: the controller then owns the reference without fetching the data, and a dead actor does not take accepted groups along.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ray

from ..config import Config
from ..types import Completion, Group, GroupKey, GroupMeta, Task


class RolloutActor:
    """Async Ray actor; heavy imports happen in `start`, in the worker."""

    def __init__(self, index: int) -> None:
        self.index, self.name = index, f"rollout-{index}"

    async def start(self, cfg: Config, model: str, env_urls: Mapping[str, list[str]], token: str | None) -> str:
        """Load the model and open the endpoint; returns its URL."""
        from transformers import AutoTokenizer

        from ..filters import build
        from ..rewards.pool import RewardPool
        from ..rollout.batcher import Batcher
        from ..rollout.codec import HfCodec
        from ..rollout.env_client import EnvClient
        from ..rollout.group import GroupRunner
        from ..rollout.server import build_app, serve
        from ..rollout.vllm_engine import VllmEngine
        from .service import RolloutService

        self.engine = await VllmEngine.start(model, cfg, index=self.index)
        self.batcher = Batcher(self.engine, max_wait_ms=cfg.rollout.max_wait_ms, max_batch=cfg.rollout.max_batch)
        self.envs = EnvClient(
            env_urls, token=token, max_concurrency=cfg.env.max_concurrency, step_timeout_s=cfg.env.step_timeout_s, max_retries=cfg.env.max_retries
        )
        self.rewards = RewardPool(cfg.reward)
        codec = HfCodec(AutoTokenizer.from_pretrained(model))
        self.runner = GroupRunner(cfg, self.batcher, codec, self.envs, self.rewards, build(cfg.filter), self.name)
        host = "127.0.0.1" if token is None else ray.util.get_node_ip_address()
        app = build_app(RolloutService(self), token=token, vllm_app=await self.engine.openai_app())
        self._server, port = await serve(app, host)
        return f"http://{host}:{port}"

    async def run_group(self, key: GroupKey, task: Task, mode=None) -> tuple[GroupMeta, Group]:
        return await self.runner.run(key, task, mode)

    async def update_weights(self, path: Path, version: int, digest: str) -> None:
        await self.engine.update_weights(path, version, digest)

    async def canary(self, prompts: list[list[int]], max_tokens: int, seed: int) -> list[Completion]:
        return await self.engine.canary(prompts, max_tokens, seed)

    async def busy_intervals(self) -> list[tuple[float, float]]:
        return self.engine.drain_busy_intervals()

    async def stats(self) -> dict[str, float]:
        return {**self.engine.stats(), "queue_waiting": float(self.batcher.waiting)}

    async def stop(self) -> None:
        self._server.cancel()
        await self.envs.close()
        self.rewards.close()
        await self.engine.stop()
