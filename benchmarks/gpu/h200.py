"""python -m benchmarks.gpu.h200: on one GPU what the users' recipe does, with random weights of a real model's shape.
Nothing is downloaded.

    learner    Zero3Rank on one rank, bf16, packed, chunked head: seconds of a step, trained tokens/s, peak memory,
               seconds to write a push's file; the optimiser in host memory where a GPU does not hold it
    engine     VllmEngine in bf16 with CUDA graphs: generated tokens/s with --requests at once; then the push goes into
               it while it answers, with digest and canary: how long it stood still
    canary     the learner's side of the proof: tolerance calibrated on the weights that both loaded, the pushed weights
               accepted by it, and by how much the old ones would have been off
    torch      where a part's packages are missing: the chunked head against a plain one, and attention

Flash attention where it is installed, else sdpa. Each part runs in a process of its own, so that one's memory is not
the other's. `--shape tiny` is the toy model in fp32 and runs on a CPU: it shows that the script works and nothing else.
The last line is one JSON object; `could_not` names what is not in it, and why.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.command import command_parser
from openrlhf_tir.machine.gpus import gpu_count

from .device_time import device_time

SHAPES = {
    "tiny": {},
    "135m": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
    },
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
    "7b": {
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "tie_word_embeddings": False,
    },
}
"""Shapes of Qwen2.5; all but 7b tie their embeddings. Weights, fp32 gradients and Adam take 18 bytes per parameter: 3b
is 56 GiB before activations, and 7b has its optimiser in host memory on one GPU."""
VOCAB = 151_936
PROMPT_TOKENS = 128
STEPS = 3
CANARY_PROMPTS, CANARY_TOKENS, CANARY_SEED = 4, 16, 7
PUSH, SAMPLED, FACTS, PUSHED = "push/1.safetensors", "canary.npz", "push.json", "pushed"
"""What the parts leave each other beside the model."""


def write_model(directory: Path, shape: str) -> None:
    """Random weights; the toy tokenizer's ids are all that is ever fed or read back as text."""
    from miniatures.toy.model import save_model
    from miniatures.toy.tokenizer import EOS_ID, PAD_ID, save_tokenizer

    if shape == "tiny":
        save_model(directory, 0)
        return
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        max_position_embeddings=32_768,
        pad_token_id=PAD_ID,
        bos_token_id=None,
        eos_token_id=EOS_ID,
        **{"vocab_size": VOCAB, "tie_word_embeddings": True, **SHAPES[shape]},
    )
    with torch.device("cuda"):
        Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    torch.cuda.empty_cache()  # this process lives on beside those that measure, and the card's memory is theirs
    save_tokenizer(directory)


def attention(args: argparse.Namespace) -> str:
    if args.attention != "auto":
        return args.attention
    return "flash_attention_2" if args.shape != "tiny" and find_spec("flash_attn") else "sdpa"


def config(args: argparse.Namespace, model: Path | None = None, *, offload: bool = False):
    from openrlhf_tir.config import Config

    tiny = args.shape == "tiny"
    return Config.model_validate(
        {
            "actor": {
                "model_name_or_path": str(model or args.model),
                "num_gpus_per_node": 1,
                "gradient_checkpointing_enable": not tiny,
                "gradient_checkpointing_layers": None if args.recompute == "all" else args.recompute,
                "learning_rate": args.learning_rate,
            },
            "ds": {
                "param_dtype": "fp32" if tiny else "bf16",
                "attn_implementation": attention(args),
                "packing_samples": True,
                "adam_offload": offload,
                "use_liger_kernel": False if args.no_liger else None,
            },
            "rollout": {"batch_size": args.groups, "n_samples_per_prompt": args.samples, "max_new_tokens": args.tokens},
            "train": {"micro_batch_size": 64, "max_tokens_per_gpu": args.micro_tokens},
            "vllm": {
                "max_num_seqs": args.requests,
                "kv_cache_mib": 128 if tiny else None,
                "dtype": "float32" if tiny else "bfloat16",
                "gpu_memory_utilization": 0.85,
            },
            "data": {"max_len": args.tokens + PROMPT_TOKENS + 1},
        }
    )


def config_that_fits(args: argparse.Namespace, model: Path | None = None):
    """With the optimiser in host memory where this GPU does not hold it."""
    import torch

    from openrlhf_tir.memory.memory_plan import memory_plan

    cfg = config(args, model)
    if not torch.cuda.is_available():
        return cfg
    total = torch.cuda.get_device_properties(0).total_memory
    plan = memory_plan(cfg, total)
    return config(args, model, offload=True) if plan and plan.learner_gpu > 0.9 * total else cfg


def rank_of(cfg):
    """The one rank of a learner, and where it joined its group: to be kept as long."""
    from openrlhf_tir.learner.zero3 import Zero3Rank
    from openrlhf_tir.weights.rendezvous import served_store

    store = served_store("127.0.0.1")
    return Zero3Rank(cfg, 0, 1, "127.0.0.1", store.port), store


def batch(args: argparse.Namespace, step: int):
    """Responses as long as the workload's, cut at --tokens: (TrainBatch, groups)."""
    import numpy as np

    from openrlhf_tir.learner.balance import assign_ranks
    from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload
    from openrlhf_tir.types import KEEP, BatchItem, Group, GroupKey, GroupMeta, Segment, Task, TrainBatch, Trajectory

    w, rng = Workload.read(SEED_WORKLOAD), np.random.default_rng(step)

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
        truth = [t.scored > 0 for t in ts]
        groups.append(Group(key, Task("", ""), ts))
        items.append(
            BatchItem(
                GroupMeta(
                    key, KEEP, list(range(len(ts))), [t.scored for t in ts], truth, truth, n, n, PROMPT_TOKENS, step
                ),
                None,
            )
        )
    return TrainBatch(step, items, assign_ranks([i.meta for i in items], 1)), groups


def learner(args: argparse.Namespace) -> dict:
    import torch

    from openrlhf_tir.learner import liger
    from openrlhf_tir.learner.recomputation import layers_to_recompute

    cfg = config_that_fits(args)
    rank, _store = rank_of(cfg)
    seconds, tokens = [], []
    for step in range(1 + STEPS):
        made, groups = batch(args, step)
        start = time.perf_counter()
        rank.step(made, groups)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        tokens.append(made.num_tokens)
    profile = {}
    if args.profile:
        made, groups = batch(args, STEPS + 1)
        found = device_time(lambda: rank.step(made, groups))
        profile = {"profile": {kind: round(seconds, 3) for kind, seconds in found.items()}}
    (args.model / PUSH).parent.mkdir()  # not beside the model's own, which vLLM would load with it
    start = time.perf_counter()
    digest = rank.publish(args.model / PUSH)
    published = time.perf_counter() - start
    (args.model / FACTS).write_text(json.dumps({"digest": digest}))
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    rank.close()
    median = statistics.median(seconds[1:])
    return {
        **profile,
        "attention": cfg.ds.attn_implementation,
        "recomputed_layers": layers_to_recompute(cfg, "cuda" if torch.cuda.is_available() else "cpu"),
        "liger": liger.is_used(cfg, on_gpu=torch.cuda.is_available()),
        "packed": cfg.ds.packing_samples,
        "adam_offload": cfg.ds.adam_offload,
        "learner_step_s": round(median, 3),
        "learner_step_seconds": [round(s, 3) for s in seconds[1:]],
        "learner_tokens_per_s": round(
            statistics.median(t / s for t, s in zip(tokens[1:], seconds[1:], strict=True)), 1
        ),
        "learner_tokens_per_step": tokens[-1],
        "learner_peak_gib": round(peak / 2**30, 2),
        "publish_s": round(published, 3),
        "publish_gib": round((args.model / PUSH).stat().st_size / 2**30, 3),
    }


def engine(args: argparse.Namespace) -> dict:
    return asyncio.run(_engine(args))


async def _engine(args: argparse.Namespace) -> dict:
    import numpy as np

    from openrlhf_tir.engines.vllm_engine import VllmEngine
    from openrlhf_tir.pushes import Canary
    from openrlhf_tir.types import Sampling

    started = time.perf_counter()
    cfg = config(args)
    vllm = await VllmEngine.start(str(args.model), cfg)
    started = time.perf_counter() - started
    rng = np.random.default_rng(0)

    async def all_of(n: int, name: str) -> list:
        prompts = rng.integers(0, 90, (n, PROMPT_TOKENS)).tolist()
        sampling = Sampling(args.tokens)
        return await asyncio.gather(
            *(vllm.generate(p, sampling, request_id=f"{name}{i}") for i, p in enumerate(prompts))
        )

    await all_of(min(8, args.requests), "warm-up")
    start = time.perf_counter()
    tokens = sum(len(c.token_ids) for c in await all_of(args.requests, "r"))
    seconds = time.perf_counter() - start
    facts = {
        "engine_start_s": round(started, 1),
        "engine_requests": args.requests,
        "engine_tokens": tokens,
        "engine_tokens_per_s": round(tokens / seconds, 1),
        "cuda_graphs": bool(gpu_count()) and not cfg.vllm.enforce_eager,
    }
    if (args.model / FACTS).exists():
        canary = Canary(rng.integers(0, 90, (CANARY_PROMPTS, PROMPT_TOKENS)).tolist(), CANARY_TOKENS, CANARY_SEED)
        before = await vllm.sample_canary(*canary)
        answering = asyncio.create_task(all_of(args.requests, "during"))
        while not (vllm.stats()["running"] or answering.done()):
            await asyncio.sleep(0.01)
        start = time.perf_counter()
        digest = json.loads((args.model / FACTS).read_text())["digest"]
        after = await vllm.update_weights(args.model / PUSH, 1, digest, canary)
        pushed = time.perf_counter() - start
        await vllm.confirm_weights(1)
        in_flight = any({*c.versions.tolist()} == {0, 1} for c in await answering)
        arrays: dict[str, Any] = {"prompts": np.asarray(canary.prompt_ids)}
        for name, completions in (("before", before), ("after", after)):
            for i, c in enumerate(completions):
                arrays |= {f"{name}_ids_{i}": c.token_ids, f"{name}_lp_{i}": c.logprobs}
        np.savez(args.model / SAMPLED, **arrays)
        facts |= {
            "push_s": round(pushed, 3),
            "push_pause_s": round(vllm.stats()["push_pause_s"], 3),
            "push_in_flight": in_flight,
        }
    await vllm.stop()
    return facts


def canary(args: argparse.Namespace) -> dict:
    import numpy as np

    from openrlhf_tir.types import Completion
    from openrlhf_tir.weights.publisher import CEILING
    from openrlhf_tir.weights.verify import Reference, disagreement, evidence

    found = np.load(args.model / SAMPLED)
    prompts = found["prompts"].tolist()

    def sampled(name: str) -> list[Completion]:
        return [
            Completion(found[f"{name}_ids_{i}"], found[f"{name}_lp_{i}"], np.zeros(0, np.int32), "", "length")
            for i in range(len(prompts))
        ]

    def off_by(name: str):
        completions = sampled(name)
        scores = rank.score([[*p, *c.token_ids.tolist()] for p, c in zip(prompts, completions, strict=True)])
        return disagreement(evidence(prompts, completions, scores))

    pushed = args.model / PUSHED
    pushed.mkdir(exist_ok=True)
    for path in args.model.iterdir():
        if path.is_file() and path.suffix == ".json" and "index" not in path.name:
            shutil.copy(path, pushed)
    os.link(args.model / PUSH, pushed / "model.safetensors")
    rank, _store = rank_of(config_that_fits(args))
    same, old = off_by("before"), off_by("after")
    reference = Reference(CEILING)
    reference.accepted([same.level])
    tolerance = reference.tolerance
    rank.reload(config_that_fits(args, pushed))
    new = off_by("after")
    rank.close()
    return {
        "canary_tolerance_nats": float(f"{tolerance.level:.3g}"),
        "canary_nats": float(f"{new.level:.3g}"),
        "canary_accepted": tolerance.excess(new) <= 1,
        "canary_old_weights_nats": float(f"{old.level:.3g}"),
        "canary_refuses_old_weights": tolerance.excess(old) > 1,
    }


def torch_alone(args: argparse.Namespace) -> dict:
    """What torch and this project's own kernels show without vLLM and DeepSpeed."""
    import torch
    from torch.nn.functional import cross_entropy, scaled_dot_product_attention

    from openrlhf_tir.learner.linear_head import chunked_scores

    gpu = torch.cuda.is_available()
    device, dtype = ("cuda", torch.bfloat16) if gpu else ("cpu", torch.float32)
    shape = SHAPES[args.shape] or {"hidden_size": 64, "num_attention_heads": 4}
    tokens, hidden, heads = (
        min(args.micro_tokens, 8192 if gpu else 256),
        shape["hidden_size"],
        shape["num_attention_heads"],
    )
    vocabulary = VOCAB if gpu else 320
    x = torch.randn(tokens, hidden, device=device, dtype=dtype, requires_grad=True)
    head = (torch.randn(vocabulary, hidden, device=device) * 0.02).to(dtype).requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,), device=device)
    of_head = {"device": device, "dtype": dtype, "requires_grad": True}
    q, k, v = (torch.randn(1, heads, tokens, hidden // heads, **of_head) for _ in "qkv")

    def measured(run) -> tuple[float, float]:
        """Seconds of the median of STEPS, GiB at most beyond what was there."""
        times = []
        for _ in range(1 + STEPS):
            if gpu:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            start = time.perf_counter()
            run().backward()
            if gpu:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            for tensor in (x, head, q, k, v):
                tensor.grad = None
        peak = (torch.cuda.max_memory_allocated() - held) / 2**30 if gpu else 0.0
        return round(statistics.median(times[1:]), 5), round(peak, 3)

    chunked = measured(lambda: -chunked_scores(x, head, targets).log_probs.sum())
    plain = measured(lambda: cross_entropy((x @ head.T).float(), targets, reduction="sum"))
    attended = measured(lambda: scaled_dot_product_attention(q, k, v, is_causal=True).sum())
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "torch_tokens": tokens,
        "chunked_head_s": chunked[0],
        "chunked_head_gib": chunked[1],
        "plain_head_s": plain[0],
        "plain_head_gib": plain[1],
        "sdpa_s": attended[0],
    }


PARTS = {"learner": learner, "engine": engine, "canary": canary, "torch": torch_alone}
NEEDS = {
    "learner": ("torch", "transformers", "deepspeed", "openrlhf"),
    "engine": ("torch", "transformers", "vllm"),
    "canary": ("torch", "transformers", "deepspeed", "openrlhf"),
    "torch": ("torch",),
}
"""Part -> what it imports."""


def run_part(part: str, model: Path) -> dict | str:
    """The same command in a process of its own; its last line is the part's JSON. A sentence where there is none."""
    env = {**os.environ, **({} if gpu_count() else {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"})}
    command = [sys.executable, "-m", "benchmarks.gpu.h200", *sys.argv[1:], "--part", part, "--model", str(model)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=env)
    if done.returncode:
        return f"{part}: it ended with {done.returncode}; its error is above"
    return json.loads(done.stdout.splitlines()[-1])


def run_all(wanted: list[str], has, run, model: Path) -> dict:
    """Facts of all parts that can be run, and `could_not`. `has(package)`, `run(part, model)`."""
    facts: dict = {}
    could_not: list[str] = []
    for part in wanted:
        if missing := [package for package in NEEDS[part] if not has(package)]:
            could_not.append(f"{part}: {', '.join(missing)} is not installed")
        elif part == "canary" and not (model / SAMPLED).exists():
            could_not.append("canary: no push has gone into an engine")
        elif isinstance(found := run(part, model), str):
            could_not.append(found)
        else:
            facts |= found
    if could_not and "torch" not in wanted:
        rest = run_all(["torch"], has, run, model)
        could_not += rest.pop("could_not")
        facts |= rest
    return facts | {"could_not": could_not}


def add_learner_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose how the learner's step is computed."""
    add = parser.add_argument
    add("--profile", action="store_true", help="one more learner step, with the card's time by kind of kernel")
    add("--no-liger", action="store_true", help="transformers' layers, also where Liger is installed")
    add("--recompute", type=_layers, default="auto", metavar="N", help="layers: a number, all, auto (default: auto)")


def _layers(text: str) -> int | str:
    return text if text in ("all", "auto") else int(text)


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("--shape", choices=SHAPES, default="1.5b", help="(default: %(default)s)")
    add("--groups", type=int, default=16, help="prompts of a learner step (default: %(default)s)")
    add("--samples", type=int, default=16, help="responses of a prompt (default: %(default)s)")
    add("--tokens", type=int, default=8192, help="longest response (default: %(default)s)")
    add("--micro-tokens", type=int, default=32_768, help="tokens of one forward pass (default: %(default)s)")
    add("--requests", type=int, default=256, help="of the engine, at once (default: %(default)s)")
    add("--attention", default="auto", help="ds.attn_implementation (default: flash attention if installed, else sdpa)")
    add("--learning-rate", type=float, default=1e-4, help="large, so that a push is seen (default: %(default)s)")
    add_learner_options(parser)
    add("--only", choices=PARTS, help="one part")
    add("--part", choices=PARTS, help=argparse.SUPPRESS)
    add("--model", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.shape != "tiny" and not gpu_count():
        parser.error(
            f"--shape {args.shape} needs an NVIDIA GPU, and this machine has none. Use --shape tiny to see whether the"
            " script works."
        )
    if args.micro_tokens < args.tokens + PROMPT_TOKENS:
        parser.error(
            f"--micro-tokens {args.micro_tokens} cannot hold one response of {args.tokens} tokens and its prompt. Raise"
            " it, or lower --tokens."
        )
    if args.part:
        print(json.dumps(PARTS[args.part](args)))
        return
    with tempfile.TemporaryDirectory(prefix="tir-gpu-") as scratch:
        facts = {"shape": args.shape, "gpus": gpu_count()}
        wanted = [args.only] if args.only else ["learner", "engine", "canary"]
        if all(find_spec(package) for package in ("torch", "transformers")):
            write_model(Path(scratch), args.shape)
        facts |= run_all(wanted, find_spec, run_part, Path(scratch))
    print(json.dumps(facts))
    sys.exit(1 if any("it ended with" in said for said in facts["could_not"]) else 0)


if __name__ == "__main__":
    main()
