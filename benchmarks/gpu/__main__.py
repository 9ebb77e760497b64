"""python -m benchmarks.gpu: what one card does, in stages, the most wanted first. Works without a network.

    attention      packed attention of one layer: one varlen call for the row, beside a call per sequence; how far the
                   packed result is from each sequence alone
    engine         VllmEngine beside bare AsyncLLM with the same requests: sampled tokens/s, CPU of this process. `ours`
                   gets its log-probs as one array per step, `ours_listed` in vLLM's own way
    engine_plain   LLM.generate on the same requests, with and without log-probs
    learner_1.5b   a learner step of random weights of that shape: seconds, MFU, peak memory beside the planned one
    learner_0.5b   the same
    push           a push by file into an engine that answers, with its proof: seconds, pause (0.5b)
    push_ipc       pushes of a learner on the same card, through its memory and by file, part by part (--model or 135m)
    learner_3b     the same as learner_1.5b

Each stage runs in a process of its own with a time limit and prints a JSON line as soon as it is known, also into
$OUT/gpu.jsonl. A stage for which the budget has no time left is named. The exit code is 1 if a stage failed. `--cpu`
runs everything with tiny shapes: it shows that the script works and nothing else.

Needs besides torch: transformers, numpy; engine stages: vllm; learner stages: deepspeed, openrlhf. MFU counts 6 N
operations per trained or prompt token plus causal attention, recomputation not counted, against the card's dense bf16
peak.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.command import command_parser

from . import h200
from .push_ipc import expose, push_ipc

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}
"""Dense bf16 operations per second, by a part of the card's name (vendor's data sheets)."""
REQUESTS, TOKENS, PROMPT_TOKENS = 512, 256, 128
WARM_UP_SEED = 1000
"""Seed of the prompts that are not counted."""


class Stage(NamedTuple):
    """One measurement in a process of its own."""

    run: Callable[[argparse.Namespace], dict[str, Any]]
    limit_s: float


def _synchronised(run: Callable[[], object]) -> float:
    """Return the median seconds of three `run` after one warm-up, with the device synchronised around each."""
    import torch

    seconds = []
    for _ in range(4):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def attention(args: argparse.Namespace) -> dict[str, Any]:
    """Compare the packed kernel with a call per sequence, in time and in value."""
    import torch
    from torch.nn import Module

    from openrlhf_tir.learner.attention import packed

    device, dtype = ("cpu", torch.float32) if args.cpu else ("cuda", torch.bfloat16)
    heads, kv_heads, size, sequences, longest = (4, 2, 16, 3, 32) if args.cpu else (28, 4, 128, 200, 256)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(longest // 3, longest, (sequences,), generator=generator).tolist()
    tokens = sum(lengths)
    module = Module()
    module.is_causal, module.num_key_value_groups = True, heads // kv_heads
    query, key, value = (
        torch.randn(1, tokens, n, size, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
        for n in (heads, kv_heads, kv_heads)
    )
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)

    def once() -> torch.Tensor:
        for tensor in (query, key, value):
            tensor.grad = None
        output, _ = packed.sdpa_packed(
            module, query, key, value, None, position_ids=positions, dropout=0.0, scaling=size**-0.5
        )
        output.sum().backward()
        return output

    flash_s, flash = _synchronised(once), once().float()
    gradient = query.grad.float()
    can, packed._flash_can = packed._flash_can, lambda *_: False
    loop_s, loop = _synchronised(once), once().float()
    packed._flash_can = can
    return {
        "sequences": sequences,
        "tokens": tokens,
        "one_call_s": flash_s,
        "call_per_sequence_s": loop_s,
        "max_difference": (flash - loop).abs().max().item(),
        "max_gradient_difference": (gradient - query.grad.float()).abs().max().item(),
        "largest_value": loop.abs().max().item(),
    }


def _prompts(count: int, seed: int) -> list[list[int]]:
    """Return random prompts.

    Each measurement has a seed of its own: an engine computes no prompt a second time, so it would be faster with those
    of the measurement before.
    """
    import numpy as np

    return np.random.default_rng(seed).integers(10, 90, (count, PROMPT_TOKENS)).tolist()


def _sizes(args: argparse.Namespace) -> tuple[int, int]:
    """Return (requests, tokens of each)."""
    return (8, 16) if args.cpu else (REQUESTS, TOKENS)


def engine(args: argparse.Namespace) -> dict[str, Any]:
    """Compare VllmEngine.generate, log-probs packed and listed, with AsyncLLM.generate: whole answers, log-probs."""
    return asyncio.run(_engine(args))


async def _engine(args: argparse.Namespace) -> dict[str, Any]:
    from openrlhf_tir.engines.vllm_engine import VllmEngine
    from openrlhf_tir.types import Sampling

    requests, tokens = args.requests, args.tokens
    start = time.perf_counter()
    vllm = await VllmEngine.start(str(args.model), h200.config(args))
    start_s = time.perf_counter() - start
    inbox = vllm.requests.inbox

    async def ours(prompt: list[int], name: str) -> int:
        vllm.requests.inbox = inbox
        return len((await vllm.generate(prompt, Sampling(tokens), request_id=name)).token_ids)

    async def ours_listed(prompt: list[int], name: str) -> int:
        vllm.requests.inbox = None
        return len((await vllm.generate(prompt, Sampling(tokens), request_id=name)).token_ids)

    async def bare(prompt: list[int], name: str) -> int:
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(max_tokens=tokens, logprobs=0, output_kind=RequestOutputKind.FINAL_ONLY)
        count = 0
        async for output in vllm._llm.generate(tokens_input(list(prompt)), sampling, name):
            count = len(output.outputs[0].token_ids)
        return count

    facts: dict[str, Any] = {"requests": requests, "start_s": round(start_s, 1)}
    await asyncio.gather(*(ours(p, f"warm-up {i}") for i, p in enumerate(_prompts(8, WARM_UP_SEED))))
    ways = {"ours": ours, "ours_listed": ours_listed, "bare": bare, "ours_again": ours}
    for seed, (name, way) in enumerate(ways.items()):
        prompts = _prompts(requests, seed)
        wall, cpu = time.perf_counter(), time.process_time()
        sampled = sum(await asyncio.gather(*(way(p, f"{name} {i}") for i, p in enumerate(prompts))))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        facts |= {f"{name}_tokens_per_s": round(sampled / wall), f"{name}_cpu_us_per_token": round(1e6 * cpu / sampled)}
    await vllm.stop()
    return facts


def engine_plain(args: argparse.Namespace) -> dict[str, Any]:
    """Measure LLM.generate, with and without the sampled token's log-prob."""
    from openrlhf_tir.engines.start import prepare_environment

    prepare_environment(gpu=not args.cpu)
    from vllm import LLM, SamplingParams

    requests, tokens = args.requests, args.tokens
    memory = {"kv_cache_memory_bytes": 128 << 20} if args.cpu else {"gpu_memory_utilization": 0.85}
    llm = LLM(
        model=str(args.model),
        dtype="float32" if args.cpu else "bfloat16",
        max_num_seqs=requests,
        max_model_len=PROMPT_TOKENS + tokens + 1,
        enforce_eager=args.cpu,
        **memory,
    )
    facts = {}
    for seed, (name, logprobs) in enumerate((("", 0), ("_without_logprobs", None))):
        sampling = SamplingParams(max_tokens=tokens, logprobs=logprobs)
        llm.generate([{"prompt_token_ids": p} for p in _prompts(8, WARM_UP_SEED)], sampling, use_tqdm=False)
        prompts = _prompts(requests, seed)
        start = time.perf_counter()
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        facts[f"plain_tokens_per_s{name}"] = round(sum(len(o.outputs[0].token_ids) for o in outputs) / seconds)
    return facts


def attention_flops(args: argparse.Namespace, lengths: list[int]) -> float:
    """Operations of causal attention, forwards and backwards, for sequences of these lengths.

    Forward: two products of L^2 / 2 pairs, 2 operations per multiply-add, for `heads * head size` values and each
    layer; backward: twice that.
    """
    shape = h200.SHAPES[args.shape] or {"hidden_size": 64, "num_hidden_layers": 3}
    pairs = sum(length * length / 2 for length in lengths)
    return 3 * 2 * 2 * pairs * shape["hidden_size"] * shape["num_hidden_layers"]


def sequence_lengths(args: argparse.Namespace, step: int) -> list[int]:
    """Return the tokens of every sequence that a learner step trains, its prompt included."""
    _, groups = h200.batch(args, step)
    return [len(t.prompt_ids) + t.response_tokens for group in groups for t in group.valid]


def operations_per_s(
    args: argparse.Namespace, parameters: int, lengths: Sequence[list[int]], seconds: Sequence[float]
) -> float:
    """Return the median rate of some learner steps, each with its own sequences and its own seconds."""
    return statistics.median(
        (6 * parameters * sum(of_step) + attention_flops(args, of_step)) / took
        for of_step, took in zip(lengths, seconds, strict=True)
    )


def learner(shape: str, micro_tokens: int) -> Callable[[argparse.Namespace], dict[str, Any]]:
    """Return the stage of one shape."""

    def run(args: argparse.Namespace) -> dict[str, Any]:
        from openrlhf_tir.memory.memory_plan import memory_plan

        with tempfile.TemporaryDirectory(prefix="tir-gpu-") as scratch:
            args.shape, args.model = ("tiny" if args.cpu else shape), Path(scratch)
            args.groups, args.samples, args.tokens = (2, 2, 64) if args.cpu else (16, 16, 8192)
            args.micro_tokens = 512 if args.cpu else micro_tokens
            h200.write_model(args.model, args.shape)
            facts = h200.learner(args)
            if facts["recomputed_layers"] is not None:
                args.recompute = facts["recomputed_layers"]
            plan = memory_plan(h200.config_that_fits(args), 80 << 30)
            lengths = [sequence_lengths(args, step) for step in range(1, 1 + h200.STEPS)]
        facts |= {
            "shape": args.shape,
            "micro_tokens": args.micro_tokens,
            "step_tokens": statistics.median(map(sum, lengths)),
        }
        if plan:
            # What torch allocates at most is measured; the reserve is for what lies beside it.
            planned = plan.learner_gpu - plan.learner["reserve"]
            facts |= {"parameters": plan.parameters, "planned_gib": round(planned / 2**30, 2)}
        if plan and (peak := _peak_flops()):
            rate = operations_per_s(args, plan.parameters, lengths, facts["learner_step_seconds"])
            facts["mfu"] = round(rate / peak, 3)
        return facts

    return run


def _peak_flops() -> float | None:
    import torch

    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)


def push(args: argparse.Namespace) -> dict[str, Any]:
    """Push new weights by file into an engine that answers."""
    with tempfile.TemporaryDirectory(prefix="tir-gpu-") as scratch:
        args.model = Path(scratch)
        _size_push(args)
        h200.write_model(args.model, args.shape)
        written = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.gpu",
                "--stage",
                "_publish",
                "--model",
                scratch,
                *(["--cpu"] * args.cpu),
            ],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return json.loads(written.stdout.splitlines()[-1]) | h200.engine(args)


def _size_push(args: argparse.Namespace) -> None:
    """Set the sizes of the stage `push`."""
    args.shape = "tiny" if args.cpu else "0.5b"
    args.groups, args.samples, args.tokens, args.requests = (2, 2, 64, 8) if args.cpu else (2, 8, 1024, 128)
    args.micro_tokens = 512 if args.cpu else 16_384


def _publish(args: argparse.Namespace) -> dict[str, Any]:
    """Write the push of `push` in a process that ends, and with it its memory."""
    _size_push(args)
    facts = h200.learner(args)
    return {name: facts[name] for name in ("publish_s", "publish_gib")}


STAGES: dict[str, Stage] = {
    "attention": Stage(attention, 40),
    "engine": Stage(engine, 170),
    "engine_plain": Stage(engine_plain, 150),
    "learner_1.5b": Stage(learner("1.5b", 32_768), 120),
    "learner_0.5b": Stage(learner("0.5b", 32_768), 80),
    "push": Stage(push, 130),
    "push_ipc": Stage(push_ipc, 200),
    "learner_3b": Stage(learner("3b", 16_384), 150),
}
OF_ONE_MODEL = {"engine", "engine_plain"}
"""Stages that are compared with each other, and share a model of random weights if none is given."""
HIDDEN = {"_publish": Stage(_publish, 100), "_expose": Stage(expose, 150)}


def machine() -> dict[str, Any]:
    """Name the device and the versions that figures depend on."""
    import torch

    facts: dict[str, Any] = {"torch": torch.__version__, "device": "cpu"}
    if torch.cuda.is_available():
        facts |= {"device": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
    return facts


def run_stages(args: argparse.Namespace, scratch: Path) -> bool:
    """Run the wanted stages one after the other, as far as the budget reaches; print a JSON line for each.

    Returns:
        False if a stage failed. One for which no time was left did not.
    """
    began = time.monotonic()
    all_well = True

    def line(**facts: Any) -> None:
        text = json.dumps({"at_s": round(time.monotonic() - began, 1), **facts})
        print(text, flush=True)
        if out := os.environ.get("OUT"):
            with open(Path(out) / "gpu.jsonl", "a") as file:
                file.write(text + "\n")

    line(stage="machine", **machine())
    environment = {**os.environ, **({"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"} if args.cpu else {})}
    for name in args.only or STAGES:
        left = args.budget - (time.monotonic() - began)
        limit = STAGES[name].limit_s * (3 if args.cpu else 1)
        if left < min(limit, 30):
            line(stage=name, left_out=f"{left:.0f} s of the budget are left")
            continue
        command = [sys.executable, "-m", "benchmarks.gpu", "--stage", name, "--recompute", str(args.recompute)]
        if model := args.model or (scratch if name in OF_ONE_MODEL else None):
            command += ["--model", str(model)]
        command += ["--profile"] * args.profile + ["--no-liger"] * args.no_liger
        # A session of its own: vLLM's engine process must end with its stage, or it keeps the card's memory.
        process = subprocess.Popen(
            command + ["--cpu"] * args.cpu, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        try:
            output, _ = process.communicate(timeout=min(limit, left))
        except subprocess.TimeoutExpired:
            line(stage=name, failed=f"not over within {min(limit, left):.0f} s")
            all_well = False
            continue
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if process.returncode:
            line(stage=name, failed=f"exit code {process.returncode}; its error is above")
            all_well = False
        else:
            line(stage=name, **json.loads(output.splitlines()[-1]))
    return all_well


def main() -> None:
    parser = command_parser(__doc__)
    add = parser.add_argument
    add("--budget", type=float, default=540, help="seconds for all stages (default: %(default)s)")
    add("--only", nargs="+", choices=STAGES, help="some of the stages, in this order")
    add(
        "--model",
        type=Path,
        help="directory of the engine stages' model (default: random weights of 0.5b's shape; of push_ipc 135m's)",
    )
    add("--cpu", action="store_true", help="tiny shapes on a CPU: shows that the script works")
    h200.add_learner_options(parser)
    add("--socket", help=argparse.SUPPRESS)
    add("--stage", choices=[*STAGES, *HIDDEN], help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.attention, args.learning_rate, args.micro_tokens = "sdpa", 1e-4, 32_768
    args.groups, args.samples, args.shape = 2, 2, "tiny" if args.cpu else "0.5b"
    args.requests, args.tokens = _sizes(args)
    if args.stage:
        print(json.dumps((STAGES | HIDDEN)[args.stage].run(args)))
        return
    # A stage has a session of its own, which a signal to this process does not reach: it is ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped by SIGTERM."))
    with tempfile.TemporaryDirectory(prefix="tir-gpu-") as scratch:
        if args.model is None and OF_ONE_MODEL & set(args.only or STAGES):
            h200.write_model(Path(scratch), args.shape)
        all_well = run_stages(args, Path(scratch))
    sys.exit(0 if all_well else 1)


if __name__ == "__main__":
    main()
