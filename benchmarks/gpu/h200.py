"""python -m benchmarks.gpu.h200: one learner step and one engine on one GPU, with random weights of a real model's
shape. Nothing is downloaded.

    learner    Zero3Rank on one rank, bf16: seconds of a step, trained tokens/s, peak memory, seconds to write a push's
               file
    engine     VllmEngine in bf16: generated tokens/s with --requests at once

Each part runs in a process of its own, so that one's memory is not the other's. `--shape tiny` is the toy model in fp32
and runs on a CPU: it shows that the script works and nothing else. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from openrlhf_tir.machine import gpu_count

SHAPES = {
    "tiny": {},
    "0.5b": {
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
    },
    "1.5b": {
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
    },
    "3b": {
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "intermediate_size": 11008,
    },
}
"""Shapes of Qwen2.5; all tie their embeddings. Adam takes 16 bytes per parameter: 3b is 50 GiB before activations."""
VOCAB = 151_936
PROMPT_TOKENS = 128
STEPS = 3


def write_model(directory: Path, shape: str) -> None:
    """Random weights; the toy tokenizer's ids are all that is ever fed or read back as text."""
    from openrlhf_tir.toy.model import save_model
    from openrlhf_tir.toy.tokenizer import EOS_ID, PAD_ID, save_tokenizer

    if shape == "tiny":
        save_model(directory, 0)
        return
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=VOCAB,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        **SHAPES[shape],
    )
    with torch.device("cuda"):
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    save_tokenizer(directory)


def config(args: argparse.Namespace):
    from openrlhf_tir.config import Config

    tiny = args.shape == "tiny"
    return Config.model_validate(
        {
            "actor": {
                "model_name_or_path": str(args.model),
                "num_gpus_per_node": 1,
                "gradient_checkpointing_enable": not tiny,
            },
            "ds": {
                "param_dtype": "fp32" if tiny else "bf16",
                "attn_implementation": "sdpa" if tiny else args.attention,
            },
            "rollout": {"batch_size": args.groups, "n_samples_per_prompt": args.samples, "max_new_tokens": args.tokens},
            "train": {"micro_batch_size": 64, "max_tokens_per_gpu": args.micro_tokens},
            "vllm": {
                "max_num_seqs": args.requests,
                "kv_cache_mib": 128,
                "dtype": "float32" if tiny else "bfloat16",
                "gpu_memory_utilization": 0.85,
            },
            "data": {"max_len": args.tokens + PROMPT_TOKENS + 1},
        }
    )


def batch(args: argparse.Namespace, step: int):
    """Responses as long as the workload's, cut at --tokens: (TrainBatch, groups)."""
    import numpy as np

    from openrlhf_tir.learner.balance import assign_ranks
    from openrlhf_tir.simulation.workload import Workload
    from openrlhf_tir.types import KEEP, BatchItem, Group, GroupKey, GroupMeta, Segment, Task, TrainBatch, Trajectory

    from ..pipeline.__main__ import SEED_FILE

    w, rng = Workload.read(SEED_FILE), np.random.default_rng(step)

    def trajectory(key: GroupKey, i: int) -> Trajectory:
        n = min(args.tokens, w.script(key, i).model_tokens)
        ids = rng.integers(0, 90, PROMPT_TOKENS + n).astype(np.int32)
        segment = Segment("model", ids[PROMPT_TOKENS:], np.full(n, -4.5, np.float32), np.full(n, step, np.int32))
        return Trajectory(i, ids[:PROMPT_TOKENS], [segment], finish_reason="stop", reward=float(i % 2))

    groups, items = [], []
    for p in range(args.groups):
        key = GroupKey(0, step * args.groups + p)
        ts = [trajectory(key, i) for i in range(args.samples)]
        n = [t.model_tokens for t in ts]
        truth = [t.reward > 0 for t in ts]
        groups.append(Group(key, Task("", ""), ts))
        items.append(
            BatchItem(
                GroupMeta(
                    key, KEEP, list(range(len(ts))), [t.reward for t in ts], truth, truth, n, n, PROMPT_TOKENS, step
                ),
                None,
            )
        )
    return TrainBatch(step, items, assign_ranks([i.meta for i in items], 1)), groups


def learner(args: argparse.Namespace) -> dict:
    import torch

    from openrlhf_tir.learner.zero3 import Zero3Rank

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    rank = Zero3Rank(config(args), 0, 1, "127.0.0.1", port)
    seconds, tokens = [], []
    for step in range(1 + STEPS):
        made, groups = batch(args, step)
        start = time.perf_counter()
        rank.step(made, groups)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        tokens.append(made.num_tokens)
    start = time.perf_counter()
    rank.publish(args.model / "push.safetensors")
    published = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    rank.close()
    median = statistics.median(seconds[1:])
    return {
        "learner_step_s": round(median, 3),
        "learner_tokens_per_s": round(
            statistics.median(t / s for t, s in zip(tokens[1:], seconds[1:], strict=True)), 1
        ),
        "learner_tokens_per_step": tokens[-1],
        "learner_peak_gib": round(peak / 2**30, 2),
        "publish_s": round(published, 3),
    }


def engine(args: argparse.Namespace) -> dict:
    return asyncio.run(_engine(args))


async def _engine(args: argparse.Namespace) -> dict:
    import numpy as np

    from openrlhf_tir.engines.vllm_engine import VllmEngine
    from openrlhf_tir.types import Sampling

    started = time.perf_counter()
    vllm = await VllmEngine.start(str(args.model), config(args))
    started = time.perf_counter() - started
    rng = np.random.default_rng(0)

    async def all_of(n: int, name: str) -> int:
        prompts = rng.integers(0, 90, (n, PROMPT_TOKENS)).tolist()
        sampling = Sampling(args.tokens)
        done = await asyncio.gather(
            *(vllm.generate(p, sampling, request_id=f"{name}{i}") for i, p in enumerate(prompts))
        )
        return sum(len(c.token_ids) for c in done)

    await all_of(min(8, args.requests), "warm-up")
    start = time.perf_counter()
    tokens = await all_of(args.requests, "r")
    seconds = time.perf_counter() - start
    await vllm.stop()
    return {
        "engine_start_s": round(started, 1),
        "engine_requests": args.requests,
        "engine_tokens": tokens,
        "engine_tokens_per_s": round(tokens / seconds, 1),
    }


PARTS = {"learner": learner, "engine": engine}


def run_part(part: str, model: Path) -> dict:
    """The same command in a process of its own; its last line is the part's JSON."""
    env = {**os.environ, **({} if gpu_count() else {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})}
    command = [sys.executable, "-m", "benchmarks.gpu.h200", *sys.argv[1:], "--part", part, "--model", str(model)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(f"The {part} part ended with {done.returncode}; its error is above.")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.h200", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="1.5b", help="(default: %(default)s)")
    add("--groups", type=int, default=16, help="prompts of a learner step (default: %(default)s)")
    add("--samples", type=int, default=16, help="responses of a prompt (default: %(default)s)")
    add("--tokens", type=int, default=8192, help="longest response (default: %(default)s)")
    add("--micro-tokens", type=int, default=32_768, help="tokens of one forward pass (default: %(default)s)")
    add("--requests", type=int, default=256, help="of the engine, at once (default: %(default)s)")
    add("--attention", default="sdpa", help="ds.attn_implementation (default: %(default)s)")
    add("--only", choices=PARTS, help="one part")
    add("--part", choices=PARTS, help=argparse.SUPPRESS)
    add("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.shape != "tiny" and not gpu_count():
        parser.error(
            f"--shape {args.shape} needs an NVIDIA GPU, and this machine has none."
            " Use --shape tiny to see whether the script works."
        )
    if args.micro_tokens < args.tokens + PROMPT_TOKENS:
        parser.error(
            f"--micro-tokens {args.micro_tokens} cannot hold one response of {args.tokens} tokens and its prompt."
            " Raise it, or lower --tokens."
        )
    if args.part:
        print(json.dumps(PARTS[args.part](args)))
        return
    with tempfile.TemporaryDirectory(prefix="tir-gpu-") as scratch:
        write_model(Path(scratch), args.shape)
        facts = {"shape": args.shape, "gpus": gpu_count()}
        for part in [args.only] if args.only else PARTS:
            facts |= run_part(part, Path(scratch))
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
