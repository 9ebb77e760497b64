"""Memory and time of a learner rank beside a plain torch loop over the same tokens.

    plain    the model in bf16 with full logits, fp32 master weights, torch's AdamW; ROWS sequences of LENGTH tokens per
             micro batch: the least that a straightforward loop needs
    ours     `Zero3Rank` with packed rows of ROWS * LENGTH tokens, each prompt computed for every response, on 1 and on
             2 ranks
    shared   the same as a run has it: a prompt is computed once for its SHARING responses
    growth   ours with small batches of changing lengths and a weight push per update, a checkpoint every few; by how
             much the level after an update rises, and the peak while a checkpoint is written

Every way runs in processes of its own, one way after another. This process reads their PSS (/proc/PID/smaps_rollup)
while they run: the peak, summed over the ranks of a way, and the level after each update. Seconds are CPU seconds of a
rank's process with one thread, so that a machine with other work distorts them little.

Memory and time depend on a model's shape, not on its weights: `smollm2` is a model of SmolLM2-135M's shape with random
weights, so nothing is downloaded. A directory stands for the model that it holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np

from openrlhf_tir.cluster.process_watch import pss_bytes

LENGTH = 128
"""Tokens of a sequence of the plain loop, and the longest of ours."""
ROWS = 10
"""Sequences of a micro batch."""
SHARING = 8
"""Responses to a prompt where prompts are shared; half of a sequence's tokens are its prompt."""
SAMPLE_S = 0.25
"""Seconds between two readings of PSS, each of which walks a process's page tables."""
END_S = 120.0
"""Seconds that the other ranks have to end after the first one that did."""
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
GROWTH_FROM = 5
"""The first update whose level counts as settled."""
SAVE_EVERY = 10
"""Updates between two checkpoints of the growth measurement."""


@dataclass(frozen=True)
class Work:
    """What is measured: batches of `micro_batches` times ROWS sequences, `updates` of them per way. With `on_demand` an
    update begins when a line comes on the standard input."""

    model: str
    micro_batches: int = 6
    updates: int = 2
    growth_updates: int = 30
    on_demand: bool = False

    @property
    def sequences(self) -> int:
        return ROWS * self.micro_batches

    @property
    def sequences_of_whole_groups(self) -> int:
        """The sequences of a batch of groups of SHARING, about as many as `sequences`."""
        return SHARING * max(1, round(self.sequences / SHARING))


def model_directory(name: str, scratch: Path) -> str:
    """Return the directory of the model `name`; for `smollm2` and `tiny` one that is made in `scratch`."""
    shapes = {"smollm2": SMOLLM2, "tiny": SMOLLM2 | {"num_hidden_layers": 2, "vocab_size": 2048}}
    if name not in shapes:
        return name
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**shapes[name])).to(torch.bfloat16).save_pretrained(scratch / name)
    return str(scratch / name)


def measure(work: Work) -> dict[str, Any]:
    """Return the figures of `ways` over the plain loop, ready for the last line."""
    plain = _run("plain", 1, work)
    one = _run("ours", 1, work)
    two = _run("ours", 2, work)
    shared = _run("shared", 1, work)
    growth = _run("growth", 1, work)
    figures = {
        "plain_pss_gb": plain["peak"] / 1e9,
        "pss_gb": one["peak"] / 1e9,
        "pss_two_ranks_gb": two["peak"] / 1e9,
        "pss_over_plain": one["peak"] / plain["peak"],
        "pss_two_ranks_over_plain": two["peak"] / plain["peak"],
        "plain_step_s": plain["seconds"],
        "step_s": one["seconds"],
        "step_over_plain": one["seconds"] / plain["seconds"],
        "step_over_plain_shared": shared["seconds"]
        / work.sequences_of_whole_groups
        * work.sequences
        / plain["seconds"],
        "shared_pss_gb": shared["peak"] / 1e9,
        "growth_mb_per_update": _slope(growth["levels"]) / 1e6,
        "growth_peak_gb": growth["peak"] / 1e9,
    }
    return figures


def _slope(levels: list[float]) -> float:
    """Bytes per update by which the levels rise from update GROWTH_FROM on: the least-squares line through them."""
    settled = levels[GROWTH_FROM - 1 :]
    if len(settled) < 2:
        return float("nan")
    return float(np.polyfit(np.arange(len(settled)), settled, 1)[0])


def _run(way: str, ranks: int, work: Work) -> dict[str, Any]:
    """Run one way to its end.

    Returns:
        `peak`: the highest sum of PSS over its ranks; of rank 0 `levels`: its PSS after each update, and `seconds`: the
        median CPU seconds of an update, the first left out.
    """
    from openrlhf_tir.weights.rendezvous import served_store

    store = served_store("127.0.0.1")
    command = command_of(way, work, store.port)
    with processes(command, ranks, environment()) as running:
        peak = 0
        levels: list[float] = []
        seconds: list[float] = []
        lines = _lines(running[0].stdout)
        while True:
            # Rank 0 tells of the updates, so the way goes on until that one ends; the others may end before it.
            is_over = running[0].poll() is not None or any(process.poll() for process in running)
            now = sum(pss_bytes(process.pid) or 0 for process in running)
            peak = max(peak, now)
            for line in lines():
                if not line.startswith('{"update"'):
                    continue
                told = json.loads(line)
                seconds.append(told["seconds"])
                levels.append(told["pss"])
                print(
                    f"  {way} x {ranks}: update {told['update']:2d}: {told['seconds']:6.1f} s CPU,"
                    f" {told['pss'] / 1e9:5.2f} GB after it, peak so far {peak / 1e9:5.2f} GB",
                    flush=True,
                )
            if is_over:
                break
            time.sleep(SAMPLE_S)
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_S)
        codes = [process.poll() for process in running]
    if any(code != 0 for code in codes):
        raise SystemExit(f"{' '.join(command)} ended with {codes}, None where it had to be killed; the error is above.")
    return {"peak": peak, "levels": levels, "seconds": median(seconds[1:] or seconds)}


def environment() -> dict[str, str]:
    """Return the environment of a way's processes."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}


def command_of(way: str, work: Work, port: int) -> list[str]:
    """Return the command of a way's ranks, but for their number."""
    return [sys.executable, "-m", "benchmarks.learner.memory", way, json.dumps(asdict(work)), str(port)]


@contextmanager
def processes(
    command: list[str], ranks: int, env: dict[str, str], stdin: int | None = None
) -> Iterator[list[subprocess.Popen[str]]]:
    """One process per rank, which end with the block."""
    running = [
        subprocess.Popen(
            [*command, str(rank), str(ranks)],
            env=env,
            stdin=stdin,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def _lines(stream: IO[str] | None) -> Any:
    """Return a function that gives the whole lines that have come since its last call, without waiting."""
    assert stream is not None
    os.set_blocking(stream.fileno(), False)
    rest = ""

    def since() -> list[str]:
        nonlocal rest
        text = rest
        while chunk := os.read(stream.fileno(), 65536) if _readable(stream) else b"":
            text += chunk.decode(errors="replace")
        *whole, rest = text.split("\n")
        return whole

    return since


def _readable(stream: IO[str]) -> bool:
    import select

    return bool(select.select([stream], [], [], 0)[0])


def _updates(work: Work, number: int) -> Iterator[int]:
    """Yield the numbers of `number` updates, each when it is to be done."""
    for update in range(1, number + 1):
        if work.on_demand:
            sys.stdin.readline()
        yield update


class _Stopwatch:
    """Measures an update from its own construction on, by CPU time and by the clock."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._clock = time.monotonic()

    def report(self, update: int) -> None:
        """Print one update's line for the measuring process."""
        seconds = time.process_time() - self._cpu
        wall = time.monotonic() - self._clock
        line = {"update": update, "seconds": seconds, "wall": wall, "pss": pss_bytes(os.getpid())}
        print(json.dumps(line), flush=True)


def plain(work: Work) -> None:
    """The plain loop."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.bfloat16, attn_implementation="sdpa")
    model.config.use_cache = False
    model.train()
    parameters = list(model.parameters())
    masters = [p.detach().float().requires_grad_() for p in parameters]
    optimizer = torch.optim.AdamW(masters, lr=1e-6)
    vocabulary = model.config.vocab_size
    for update in _updates(work, work.updates):
        watch = _Stopwatch()
        for _ in range(work.micro_batches):
            ids = torch.randint(2, vocabulary, (ROWS, LENGTH))
            logits = model(ids).logits[:, :-1].float()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            (loss / work.micro_batches).backward()
            del logits, loss
        for master, p in zip(masters, parameters, strict=True):
            master.grad = p.grad.float()
            p.grad = None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for master, p in zip(masters, parameters, strict=True):
                p.copy_(master)
        watch.report(update)


def config(work: Work, ranks: int, *, share_prompts: bool) -> Any:
    """The configuration of our learner: a run's defaults where they do not matter here."""
    from openrlhf_tir.config import Config

    return Config.model_validate(
        {
            "actor": {"model_name_or_path": work.model, "num_gpus_per_node": ranks, "learning_rate": 1e-6},
            "ds": {
                "param_dtype": "bf16",
                "attn_implementation": "sdpa",
                "packing_samples": True,
                "share_prompts": share_prompts,
            },
            "train": {"max_tokens_per_gpu": ROWS * LENGTH},
        }
    )


def ours(work: Work, rank: int, ranks: int, port: int, *, growth: bool, shared: bool) -> None:
    """Our learner's rank. With `growth` the lengths change, and weights are pushed and checkpoints written; with
    `shared` prompts are computed once."""
    from openrlhf_tir.learner.zero3 import Zero3Rank

    learner = Zero3Rank(config(work, ranks, share_prompts=shared), rank, ranks, "127.0.0.1", port)
    updates = work.growth_updates if growth else work.updates
    with tempfile.TemporaryDirectory(prefix="tir-memory-") as scratch:
        for update in _updates(work, updates):
            if growth:
                groups_of, sequences = ROWS, ROWS
            elif shared:
                groups_of, sequences = SHARING, work.sequences_of_whole_groups
            else:
                groups_of, sequences = ROWS, work.sequences
            shape = (sequences // groups_of, groups_of)
            given, groups = batch(shape, learner.model.hf_config.vocab_size, update, ranks, growth=growth)
            watch = _Stopwatch()
            learner.step(given, groups)
            if growth:
                learner.publish(Path(scratch) / "weights.safetensors")
                if update % SAVE_EVERY == 0:
                    learner.save(Path(scratch) / "checkpoint")
                    learner.written()
            watch.report(update)
        learner.close()


def batch(shape: tuple[int, int], vocabulary: int, number: int, ranks: int, *, growth: bool) -> tuple[Any, list[Any]]:
    """Batch `number` of `shape` = (groups, trajectories of a group), whose prompts and answers take LENGTH tokens;
    shorter ones, of changing lengths, with `growth`."""
    from openrlhf_tir.learner.balance import assign_ranks
    from openrlhf_tir.types import BatchItem, Group, GroupKey, Segment, Task, TrainBatch, Trajectory

    from .workload import _meta

    rng = np.random.default_rng(number)
    number_of_groups, group_size = shape
    groups = []
    for g in range(number_of_groups):
        trajectories = []
        prompt = rng.integers(2, vocabulary, LENGTH // 2).astype(np.int32)
        for i in range(group_size):
            length = int(rng.integers(8, LENGTH // 2 + 1)) if growth else LENGTH // 2
            ids = rng.integers(2, vocabulary, length).astype(np.int32)
            near = rng.normal(-np.log(vocabulary), 0.1, length).astype(np.float32)
            segment = Segment("model", ids, near, np.full(length, 0, np.int32))
            trajectories.append(Trajectory(i, prompt, [segment], finish_reason="stop", reward=float(i % 2)))
        groups.append(Group(GroupKey(0, number * number_of_groups + g), Task("", ""), trajectories))
    metas = [_meta(group) for group in groups]
    return TrainBatch(0, [BatchItem(meta, None) for meta in metas], assign_ranks(metas, ranks)), groups


if __name__ == "__main__":
    of_way, of_work, of_port, of_rank, of_ranks = sys.argv[1:6]
    given_work = Work(**json.loads(of_work))
    import torch

    torch.set_num_threads(1)
    if of_way == "plain":
        plain(given_work)
    else:
        is_growth, is_shared = of_way == "growth", of_way == "shared"
        ours(given_work, int(of_rank), int(of_ranks), int(of_port), growth=is_growth, shared=is_shared)
