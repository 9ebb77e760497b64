"""Real vLLM on this machine: tokens/s of the same 64 requests through the episode path and straight from AsyncLLM, in
turns on one engine.

    bare        64 coroutines: AsyncLLM.generate with the same prompts, stops, log-probs and seeds; tokens counted,
                nothing kept
    episodes    4 groups of 16: GroupRunner, episode, codec, queue, VllmEngine, down to trajectories as numpy arrays

Same seeds, same tokens: the pair's times compare directly. The model is tiny, so a step of the engine is short and our
share large."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from openrlhf_tir.config import Config
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rollout.group_runner import GroupRunner
from openrlhf_tir.rollout.protocols import make
from openrlhf_tir.rollout.request_queue import RequestQueue
from openrlhf_tir.rollout.seeds import seed_for
from openrlhf_tir.types import GroupKey, Task

from ..pipeline.parts import NoReward
from .parts import KEEP, InProcessSession

GROUPS, GROUP, TOKENS = 4, 16, 192
QUESTION = "User: What is 123 * 45 mod 67? Think, and write code if you like.\nAssistant:"


def config() -> Config:
    return Config.model_validate(
        {
            "actor": {"num_gpus_per_node": 1},
            "ds": {"param_dtype": "fp32"},
            "rollout": {
                "batch_size": GROUPS,
                "n_samples_per_prompt": GROUP,
                "max_new_tokens": TOKENS,
                "drift_check": 0.0,
            },
            "vllm": {
                "enforce_eager": True,
                "max_num_seqs": GROUPS * GROUP,
                "kv_cache_mib": 128,
                "dtype": "float32",
                "enable_prefix_caching": True,
            },
            "train": {"full_determinism_enable": True},
            "data": {"max_len": 512},
        }
    )


class NoTools(InProcessSession):
    def session(self, env: str, task: dict[str, Any], *, seed: int) -> NoTools:
        return self

    async def step(self, action: str, *, step_id: int) -> StepReply:
        raise AssertionError(f"a call of a tool: {action}")


async def bare(llm: Any, cfg: Config, prompt: list[int], name: str) -> tuple[int, float]:
    """(tokens, seconds)."""
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    stops = list(make(cfg.env).stops)

    async def one(group: int, i: int) -> int:
        seed = seed_for(seed_for(cfg.train.seed, 0, group, i), 0)
        params = SamplingParams(
            max_tokens=TOKENS,
            stop=stops,
            include_stop_str_in_output=True,
            temperature=1.0,
            seed=seed,
            logprobs=0,
            output_kind=RequestOutputKind.DELTA,
        )
        tokens = 0
        async for out in llm.generate(tokens_input(list(prompt)), params, f"{name}/{group}/{i}"):
            tokens += len(out.outputs[0].token_ids)
        return tokens

    start = time.perf_counter()
    tokens = sum(await asyncio.gather(*(one(g, i) for g in range(GROUPS) for i in range(GROUP))))
    return tokens, time.perf_counter() - start


async def episodes(runner: GroupRunner) -> tuple[int, float]:
    """(tokens, seconds)."""
    start = time.perf_counter()
    done = await asyncio.gather(*(runner.run(GroupKey(0, g), Task(QUESTION, "")) for g in range(GROUPS)))
    seconds = time.perf_counter() - start
    if any(meta.failures for meta, _ in done):
        raise RuntimeError(f"episodes failed: {[meta.failures for meta, _ in done]}")
    return sum(sum(meta.model_tokens) for meta, _ in done), seconds


async def pairs(count: int) -> dict[str, float]:
    from miniatures.toy.model import save_model
    from openrlhf_tir.engines.vllm_engine import VllmEngine

    with tempfile.TemporaryDirectory() as directory:
        save_model(Path(directory), seed=0)
        cfg = config()
        engine = await VllmEngine.start(directory, cfg)
        from transformers import AutoTokenizer

        codec = HfCodec(AutoTokenizer.from_pretrained(directory))
        queue = RequestQueue(engine, max_running=cfg.max_running)
        runner = GroupRunner(cfg, queue, codec, NoTools(), NoReward(), lambda group: KEEP)
        prompt = codec.encode_prompt(QUESTION)
        await bare(engine._llm, cfg, prompt, "warm-up")
        await episodes(runner)
        ratios, rates = [], []
        for k in range(count):
            runs = {}
            for which in ("bare", "episodes") if k % 2 else ("episodes", "bare"):
                tokens, seconds = await (
                    bare(engine._llm, cfg, prompt, str(k)) if which == "bare" else episodes(runner)
                )
                runs[which] = tokens / seconds
            ratios.append(runs["episodes"] / runs["bare"])
            rates.append(runs["bare"])
        await engine.stop()
    return {
        "vllm_throughput_ratio": median(ratios),
        "vllm_ratio_min": min(ratios),
        "vllm_ratio_max": max(ratios),
        "vllm_bare_tokens_per_s": median(rates),
    }


def measure(count: int) -> dict[str, float]:
    return asyncio.run(pairs(count))
