"""The learner's head: log-probs and their backward, in chunks beside the plain way (logits, softmax), in turns, each in
processes of its own.

Memory is the growth of the process's peak resident set over what it held before; time is of a forward and a backward
pass. Both ways also measure the entropy, as a step does, and run on one thread, so that their CPU time is what a pass
takes when nothing else wants the core.

Compared is what a run does unless told more. What keeping every logit for the backward pass makes of it
(ds.keep_logits_mib): python -m benchmarks.learner.head kept 8192 151936 896

The plain way at 8,192 tokens and a vocabulary of 152k wants 16 to 21 GiB. Where the machine has no room for it, it runs
on fewer tokens: its time and memory are straight lines in them, and the line through two points is taken
(`plain_measured_at` says which)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from openrlhf_tir.cluster.process_watch import peak_rss_bytes

TOKENS, VOCABULARY = 8192, 151_936
PLAIN_ARRAYS = 5
"""Tensors of [T, V] in float32 that the plain way holds at its peak, at most."""
WAYS = ("plain", "chunked")


def fits(tokens: int, vocabulary: int, free_bytes: int) -> bool:
    return PLAIN_ARRAYS * 4 * tokens * vocabulary < 0.8 * free_bytes


def plain_sizes(tokens: int, vocabulary: int, free_bytes: int) -> tuple[int, ...]:
    """Numbers of tokens to run the plain way on: all, or a half and a quarter, or a quarter and an eighth, ..."""
    if fits(tokens, vocabulary, free_bytes):
        return (tokens,)
    part = tokens // 2
    while part > 64 and not fits(part, vocabulary, free_bytes):
        part //= 2
    return part // 2, part


def at(tokens: int, points: dict[int, float]) -> float:
    """The value at `tokens` on the line through the last two points; that of the one point where there is one."""
    if tokens in points:
        return points[tokens]
    (x0, y0), (x1, y1) = sorted(points.items())[-2:]
    return y1 + (tokens - x1) * (y1 - y0) / (x1 - x0)


def free_bytes() -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def compare(tokens: int, vocabulary: int, hidden: int, rounds: int, step) -> dict[str, Any]:
    """`step()` is called after each process. Raises SystemExit where one fails."""
    sizes = plain_sizes(tokens, vocabulary, free_bytes())
    runs = [("plain", n) for n in sizes] + [("chunked", tokens)]
    found: dict[tuple[str, int], list[dict[str, float]]] = {run: [] for run in runs}
    for _ in range(rounds):
        for way, n in runs:
            found[way, n].append(measure(way, n, vocabulary, hidden))
            step()

    def value(way: str, name: str) -> float:
        return at(tokens, {n: median(f[name] for f in made) for (w, n), made in found.items() if w == way})

    return {
        "memory_ratio": value("chunked", "peak_bytes") / value("plain", "peak_bytes"),
        "time_ratio": value("chunked", "cpu_s") / value("plain", "cpu_s"),
        **{f"{way}_gib": value(way, "peak_bytes") / 2**30 for way in WAYS},
        **{f"{way}_s": value(way, "cpu_s") for way in WAYS},
        "plain_measured_at": list(sizes),
    }


def measure(way: str, tokens: int, vocabulary: int, hidden: int) -> dict[str, float]:
    """{"cpu_s" of one pass, "peak_bytes"}, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.learner.head", way, str(tokens), str(vocabulary), str(hidden)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def one(way: str, tokens: int, vocabulary: int, hidden: int) -> dict[str, Any]:
    """Called in the fresh process."""
    import time

    import torch

    from openrlhf_tir.learner.linear_head import chunked_scores

    torch.manual_seed(0)
    states = torch.randn(tokens, hidden, requires_grad=True)
    # in place: the peak before is what is held
    weight = torch.nn.Parameter(torch.randn(vocabulary, hidden).mul_(hidden**-0.5))
    targets = torch.randint(vocabulary, (tokens,))

    def plain() -> torch.Tensor:
        """Entropy is measured in parts: in one piece it would cost the plain way another [T, V]."""
        logits = torch.nn.functional.linear(states, weight)
        with torch.no_grad():
            for part in logits.split(1024):
                probs = torch.softmax(part, -1)
                torch.logsumexp(part, -1) - (probs * part).sum(-1)
        return logits.gather(-1, targets[:, None]).squeeze(-1) - logits.logsumexp(-1)

    def chunked(keep_bytes: int = 0) -> torch.Tensor:
        return chunked_scores(states, weight, targets, keep_bytes=keep_bytes).log_probs

    forward = {"plain": plain, "chunked": chunked, "kept": lambda: chunked(4 * tokens * vocabulary)}[way]
    # ru_maxrss is no substitute: it lives through exec, so it would begin at the peak of the process that started us.
    before = peak_rss_bytes(os.getpid()) or 0
    start = time.process_time()
    forward().sum().backward()
    seconds = time.process_time() - start
    return {"cpu_s": seconds, "peak_bytes": (peak_rss_bytes(os.getpid()) or 0) - before}


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], *map(int, sys.argv[2:]))))
