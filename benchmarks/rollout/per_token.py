"""What a sampled token costs this process: our engine beside bare AsyncLLM, on real vLLM with a model of one layer.

    bare                    `live` coroutines on AsyncLLM: FINAL_ONLY outputs, the sampled token's log-prob, the same
                            prompts, lengths, seeds and stop strings
    bare_without_logprobs   the same, and no log-probs
    ours                    VllmEngine.generate of the same requests, down to numpy arrays with the version of each
                            token; the log-probs arrive as one array per engine step (engines/packed_logprobs.py)
    ours_listed             the same with the log-probs in vLLM's own way

vLLM's EngineCore runs in a process of its own, as on GPUs, so that this process' CPU time is the actor's alone. All
take turns on one engine; figures are medians over the turns, ratios and differences are taken within a turn.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import psutil

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
            "vllm": {
                "max_num_seqs": live,
                "kv_cache_mib": 1024,
                "dtype": "float32",
                "enforce_eager": True,
            },
            "data": {"max_len": 256},
        }
    )


def save_one_layer(directory: Path) -> None:
    """Write a model of one layer that costs next to nothing, with the toy's tokenizer."""
    import transformers

    from miniatures.toy.tokenizer import build_tokenizer

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


async def _bare(llm: Any, prompt: list[int], live: int, name: str, logprobs: int | None = 0) -> int:
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
            logprobs=logprobs,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        tokens = 0
        async for output in llm.generate(tokens_input(list(prompt)), params, f"{name}/{index}"):
            tokens = len(output.outputs[0].token_ids)
        return tokens

    return sum(await asyncio.gather(*(request(i) for i in range(live))))


async def _ours(engine: Any, prompt: list[int], live: int, name: str, inbox: Any) -> int:
    engine.requests.inbox = inbox

    async def request(index: int) -> int:
        sampling = Sampling(TOKENS, stop=STOPS, seed=index)
        return len((await engine.generate(prompt, sampling, request_id=f"{name}/{index}")).token_ids)

    return sum(await asyncio.gather(*(request(i) for i in range(live))))


class Turn(NamedTuple):
    """What one way of sampling cost in one turn."""

    tokens_per_s: float
    actor_us: float
    """Microseconds of this process' CPU per token."""
    core_us: float
    """Microseconds of CPU per token in vLLM's EngineCore, the model's own arithmetic included."""


def _children_cpu_s() -> float:
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(t.user + t.system for t in times)


async def _timed(run: Callable[[str], Awaitable[int]], name: str) -> Turn:
    wall, cpu, core = time.perf_counter(), time.process_time(), _children_cpu_s()
    tokens = await run(name)
    wall, cpu, core = time.perf_counter() - wall, time.process_time() - cpu, _children_cpu_s() - core
    return Turn(tokens / wall, 1e6 * cpu / tokens, 1e6 * core / tokens)


async def compare(live: int, turns: int) -> dict[str, float]:
    """Return microseconds of this process' CPU per token, and tokens/s as a ratio, with `live` requests at once."""
    from miniatures.toy.tokenizer import build_tokenizer
    from openrlhf_tir.engines.codec import HfCodec
    from openrlhf_tir.engines.vllm_engine import VllmEngine

    with tempfile.TemporaryDirectory() as directory:
        save_one_layer(Path(directory))
        engine = await VllmEngine.start(directory, config(live))
        prompt = HfCodec(build_tokenizer()).encode_prompt(PROMPT)
        inbox = engine.requests.inbox
        runs: dict[str, Callable[[str], Awaitable[int]]] = {
            "bare": lambda name: _bare(engine._llm, prompt, live, name),
            "ours": lambda name: _ours(engine, prompt, live, name, inbox),
            "ours_listed": lambda name: _ours(engine, prompt, live, name, None),
            "bare_without_logprobs": lambda name: _bare(engine._llm, prompt, live, name, logprobs=None),
        }
        measured: dict[str, list[Turn]] = {name: [] for name in runs}
        for turn in range(-1, turns):
            for name in list(runs) if turn % 2 else list(runs)[::-1]:
                one = await _timed(runs[name], f"{name}{turn}")
                if turn >= 0:  # else a warm-up
                    measured[name].append(one)
        await engine.stop()

    def over_bare(name: str) -> float:
        """Return bare vLLM's tokens/s, with log-probs, over those of this way."""
        pairs = zip(measured[name], measured["bare"], strict=True)
        return median(bare.tokens_per_s / of.tokens_per_s for of, bare in pairs)

    pairs = list(zip(measured["ours"], measured["bare"], strict=True))
    figures = {
        "added_us_per_token": median(ours.actor_us - bare.actor_us for ours, bare in pairs),
        "engine_over_bare": over_bare("ours"),
        "listed_over_bare": over_bare("ours_listed"),
        "without_logprobs_over_bare": over_bare("bare_without_logprobs"),
    }
    for name, of in measured.items():
        figures |= {
            f"{name}_tokens_per_s": median(one.tokens_per_s for one in of),
            f"{name}_us_per_token": median(one.actor_us for one in of),
            f"{name}_core_us_per_token": median(one.core_us for one in of),
        }
    return figures


def measure(turns: int) -> dict[str, float]:
    """Print a line for each number of live requests; return the figures of the benchmark's last line.

    `actor_us_per_token` is what our side adds to vLLM's own front end, at its worst; `engine_over_bare` is bare vLLM's
    throughput over ours, at its worst.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    found = {live: asyncio.run(compare(live, turns)) for live in LIVE}
    print(f"\nCPU of the actor per sampled token, {TOKENS} tokens a request, vLLM's EngineCore in its own process")
    for live, figures in found.items():
        print(f"  {live:5d} live: " + ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    return {
        "actor_us_per_token": max(f["added_us_per_token"] for f in found.values()),
        "actor_us_per_token_with_vllm": max(f["ours_us_per_token"] for f in found.values()),
        "engine_over_bare": max(f["engine_over_bare"] for f in found.values()),
        "listed_over_bare": max(f["listed_over_bare"] for f in found.values()),
        "without_logprobs_over_bare": max(f["without_logprobs_over_bare"] for f in found.values()),
    }
