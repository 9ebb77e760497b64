"""Rollout actors cut down to one question each: does their engine end with them, and which GPUs were they given."""

from __future__ import annotations

import os

import psutil

from openrlhf_tir.cluster.reaper import end_children_with_us
from openrlhf_tir.cluster.rollout_actor import RolloutActor


class EngineActor(RolloutActor):
    """A real engine and nothing else; its "URL" is its process id."""

    async def start(self, cfg, env_urls, tokens) -> str:
        from openrlhf_tir.engines.vllm_engine import VllmEngine

        end_children_with_us()
        self.engine = await VllmEngine.start(cfg.actor.model_name_or_path, cfg, index=self.index)
        return str(os.getpid())

    async def stop(self) -> None:
        await self.engine.stop()


class GpuActor(RolloutActor):
    """Loads nothing; its "URL" is what it sees of its node's GPUs."""

    async def start(self, cfg, env_urls, tokens) -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "unset")

    async def stop(self) -> None:
        """Nothing is held."""


def engine_processes(of: psutil.Process) -> list[psutil.Process]:
    """vLLM's below `of`: the engine's, which is a fork of `of` (core_process.py) or spawned, and its workers'.

    A fork has the command of its parent, or Ray's title for it.
    """
    marks = [mark for mark in ("spawn_main", "VLLM::", " ".join(of.cmdline())) if mark]
    return [p for p in of.children(recursive=True) if any(mark in " ".join(p.cmdline()) for mark in marks)]


def workers(of: psutil.Process) -> list[psutil.Process]:
    """Those of a tensor-parallel engine: what its process started."""
    return [p for engine in engine_processes(of) for p in engine_processes(engine)]
