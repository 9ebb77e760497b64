"""What a sampled token costs this process: our engine beside bare AsyncLLM, on real vLLM with a model of one layer.

    bare   `live` coroutines on AsyncLLM: FINAL_ONLY outputs, the sampled token's log-prob, the same prompts, lengths,
           seeds and stop strings
    ours   VllmEngine.generate of the same requests, down to numpy arrays with the version of each token

vLLM's EngineCore runs in a process of its own, as on GPUs, so that this process' CPU time is the actor's alone. Both
take turns on one engine; figures are medians over the turns.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from openrlhf_tir.config import Config
from openrlhf_tir.types import Sampling

TOKENS = 96
LIVE = (300, 1000)
STOPS = ("\n```output", "</answer>")
PROMPT = "User: What is 123 * 45 mod 67? Think, and write code if you like.\nAssistant:"
VOCABULARY_SEED = 0


def config(live: int) -> Config:
    """Return the settings of an engine that runs `live` sequences at once."""
    return Config.model_validate(
        {
            "actor": {"num_gpus_per_node": 1},
            "ds": {"param_dtype": "fp32"},
            "rollout": {"max_new_tokens": TOKENS},
            "vllm": {"max_num_seqs": live, "kv_cache_mib": 1024, "dtype": "float32", "enforce_eager": True},
            "data": {"max_len": 256},
        }
    )


def save_one_layer(directory: Path) -> None:
    """Write a model of one layer that costs next to nothing, with the toy's tokenizer."""
    import transformers

    from openrlhf_tir.toy.tokenizer import build_tokenizer

    tokenizer = build_tokenizer()
    transformers.set_seed(VOCABULARY_SEED)
    shape = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    transformers.Qwen2ForCausalLM(shape).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


async def _bare(llm: Any, prompt: list[int], live: int, name: str) -> int:
    """Return the tokens that `live` requests sampled."""
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    async def request(index: int) -> int:
        params = SamplingParams(
            max_tokens=TOKENS,
            stop=list(STOPS),
            include_stop_str_in_output=True,
            ignore_eos=False,
            temperature=1.0,
            seed=index,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        tokens = 0
        async for output in llm.generate(tokens_input(list(prompt)), params, f"{name}/{index}"):
            tokens = len(output.outputs[0].token_ids)
        return tokens

    return sum(await asyncio.gather(*(request(i) for i in range(live))))


async def _ours(engine: Any, prompt: list[int], live: int, name: str) -> int:
    async def request(index: int) -> int:
        sampling = Sampling(TOKENS, stop=STOPS, seed=index)
        return len((await engine.generate(prompt, sampling, request_id=f"{name}/{index}")).token_ids)

    return sum(await asyncio.gather(*(request(i) for i in range(live))))


async def _timed(run: Callable[[str], Awaitable[int]], name: str) -> tuple[int, float, float]:
    """Return (tokens, wall seconds, CPU seconds of this process)."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = await run(name)
    return tokens, time.perf_counter() - wall, time.process_time() - cpu


async def compare(live: int, turns: int) -> dict[str, float]:
    """Return microseconds of this process' CPU per token, and tokens/s as a ratio, with `live` requests at once."""
    from openrlhf_tir.engines.codec import HfCodec
    from openrlhf_tir.engines.vllm_engine import VllmEngine
    from openrlhf_tir.toy.tokenizer import build_tokenizer

    with tempfile.TemporaryDirectory() as directory:
        save_one_layer(Path(directory))
        engine = await VllmEngine.start(directory, config(live))
        prompt = HfCodec(build_tokenizer()).encode_prompt(PROMPT)
        runs: dict[str, Callable[[str], Awaitable[int]]] = {
            "bare": lambda name: _bare(engine._llm, prompt, live, name),
            "ours": lambda name: _ours(engine, prompt, live, name),
        }
        cpu: dict[str, list[float]] = {name: [] for name in runs}
        rate: dict[str, list[float]] = {name: [] for name in runs}
        for turn in range(-1, turns):
            for name in list(runs) if turn % 2 else list(runs)[::-1]:
                tokens, wall_s, cpu_s = await _timed(runs[name], f"{name}{turn}")
                if turn < 0:  # warm-up
                    continue
                cpu[name].append(1e6 * cpu_s / tokens)
                rate[name].append(tokens / wall_s)
        await engine.stop()
    return {
        "bare_us_per_token": median(cpu["bare"]),
        "ours_us_per_token": median(cpu["ours"]),
        "added_us_per_token": median(o - b for o, b in zip(cpu["ours"], cpu["bare"], strict=True)),
        "engine_over_bare": median(b / o for o, b in zip(rate["ours"], rate["bare"], strict=True)),
        "bare_tokens_per_s": median(rate["bare"]),
        "ours_tokens_per_s": median(rate["ours"]),
    }


def measure(turns: int) -> dict[str, float]:
    """Print a line for each number of live requests; return the figures of the benchmark's last line.

    `actor_us_per_token` is what our side adds to vLLM's own front end, at its worst; `engine_over_bare` is bare vLLM's
    throughput over ours, at its worst.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    found = {live: asyncio.run(compare(live, turns)) for live in LIVE}
    print(f"\nCPU of the actor per sampled token, {TOKENS} tokens a request, vLLM's EngineCore in its own process")
    for live, figures in found.items():
        print(f"  {live:5d} live: " + ", ".join(f"{name} {value:.3g}" for name, value in figures.items()))
    return {
        "actor_us_per_token": max(f["added_us_per_token"] for f in found.values()),
        "actor_us_per_token_with_vllm": max(f["ours_us_per_token"] for f in found.values()),
        "engine_over_bare": max(f["engine_over_bare"] for f in found.values()),
    }
