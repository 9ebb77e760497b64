"""Steps: the ways of ways.py on the same ranks and batches, in turns -> seconds of each step, and from them the ratios.

Rank processes hold every way's model at once. A round is one batch: each way steps on it, the order moving by one from
round to round, with a barrier before and after; a step lasts as long as the slowest rank's. The first round warms up
and is not counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from statistics import median

from .workload import Size, batch, save_model

RANKS = 2
TIMEOUT_S = 3000.0
"""Seconds for all rounds together: a machine on which it takes longer is too busy to measure on."""
SAME_WITHIN = 0.02
"""Relative difference of gradient norms between ways. They train one batch from weights that drift by rounding."""


def ratios(seconds: dict[str, list[float]]) -> dict[str, float]:
    """Medians over rounds of (the other way's seconds / ours) on the same batch: > 1 where ours is faster."""

    def over(other: str) -> float:
        return median(b / a for a, b in zip(seconds["packed"], seconds[other], strict=True))

    return {
        "packed_over_padded": over("padded"),
        "packed_over_bucketed": over("bucketed"),
        "step_over_bare_torch": over("bare"),
        "step_over_openrlhf": over("openrlhf"),
        "step_over_openrlhf_same_attention": over("openrlhf_same_attention"),
    }


def differing(norms: dict[str, list[float]]) -> list[str]:
    """Ways whose gradient is not ours on some batch: what they are measured on would not be the same work."""
    ours = norms["packed"]
    return [
        name
        for name, found in norms.items()
        if any(abs(b / a - 1) > SAME_WITHIN for a, b in zip(ours, found, strict=True))
    ]


def table(found: dict) -> dict[str, dict[str, float]]:
    """way -> medians over rounds: seconds, useful (trained) tokens per second, CPU seconds of all ranks."""
    return {
        name: {
            "seconds": median(of),
            "tokens_per_s": median(n / s for n, s in zip(found["tokens"], of, strict=True)),
            "cpu_s": median(found["cpu_s"][name]),
        }
        for name, of in found["seconds"].items()
    }


def measure(size: Size) -> dict:
    """{"seconds", "cpu_s" of all ranks, "norms": way -> per round; "tokens": trained, per round; "parameters"}. Raises
    SystemExit where a rank fails."""
    from openrlhf_tir.weights.rendezvous import served_store

    with tempfile.TemporaryDirectory(prefix="tir-learner-") as directory:
        parameters, store = save_model(directory, size), served_store("127.0.0.1")
        env = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        told = json.dumps(asdict(size)), directory, str(store.port)
        command = [sys.executable, "-m", "benchmarks.learner.steps", *told]
        running = [
            subprocess.Popen(
                [*command, str(rank)], env=env, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL, text=True
            )
            for rank in range(RANKS)
        ]
        try:
            out, _ = running[0].communicate(timeout=TIMEOUT_S)
            codes = [process.wait(timeout=60) for process in running]
        except subprocess.TimeoutExpired as late:
            raise SystemExit(
                f"The ranks of {' '.join(command)} did not end within {late.timeout:.0f} s: one of them died, with the"
                " error above, or the machine is too busy to measure on."
            ) from None
        finally:
            for process in running:
                process.kill()
        if any(codes):
            raise SystemExit(f"{' '.join(command)} ended with {codes}; the error is above.")
    lines = [line for line in out.splitlines() if line.startswith('{"seconds"')]  # libraries print too
    return json.loads(lines[-1]) | {"parameters": parameters}


def one(size: Size, directory: str, port: int, rank: int) -> None:
    """Called in each rank's process; rank 0 prints what was measured, a line of JSON."""
    import torch
    import torch.distributed as dist
    from tqdm import tqdm

    from .ways import ways

    torch.set_num_threads(1)
    made = ways(directory, rank, RANKS, port)
    names = list(made)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    norms: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    tokens = []
    bar = tqdm(total=(1 + size.rounds) * len(names), desc="learner steps", disable=rank != 0, smoothing=0.05)
    for number in range(1 + size.rounds):
        given, groups = batch(size, number, RANKS)
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            made[name].prepare(given, groups)
            dist.barrier()
            start, busy = time.perf_counter(), time.process_time()
            norm = made[name].step()
            dist.barrier()
            took, used = time.perf_counter() - start, torch.tensor(time.process_time() - busy, dtype=torch.float64)
            dist.all_reduce(used)
            if number:
                seconds[name].append(took)
                norms[name].append(norm)
                cpu[name].append(used.item())
            bar.update()
        if number:
            tokens.append(given.num_tokens)
    if rank == 0:
        print(json.dumps({"seconds": seconds, "cpu_s": cpu, "norms": norms, "tokens": tokens}), flush=True)
    bar.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    one(Size(**json.loads(sys.argv[1])), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
