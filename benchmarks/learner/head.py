"""The learner's head: log-probs and their backward, in chunks beside the plain way (logits, log_softmax), each in a process of its own.

Time is of a forward and a backward pass; memory is the growth of the process's peak resident set over what it held before.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

REPEATS = 3


def measure(way: str, tokens: int, vocabulary: int, hidden: int) -> dict[str, float]:
    """{"seconds" of the fastest pass, "peak_bytes"}, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.learner.head", way, str(tokens), str(vocabulary), str(hidden)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def one(way: str, tokens: int, vocabulary: int, hidden: int) -> dict[str, Any]:
    """Called in the fresh process."""
    import resource
    import time

    import torch

    from openrlhf_tir.learner.linear_head import chunked_scores

    torch.manual_seed(0)
    states = torch.randn(tokens, hidden, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(vocabulary, hidden) * hidden**-0.5)
    targets = torch.randint(vocabulary, (tokens,))

    def plain() -> torch.Tensor:
        """Entropy is measured, as a step does, in chunks: in one piece it would cost the plain way another [T, V]."""
        logits = torch.nn.functional.linear(states, weight)
        with torch.no_grad():
            for part in logits.split(1024):
                probs = torch.softmax(part, -1)
                torch.logsumexp(part, -1) - (probs * part).sum(-1)
        return logits.gather(-1, targets[:, None]).squeeze(-1) - logits.logsumexp(-1)

    def chunked() -> torch.Tensor:
        return chunked_scores(states, weight, targets).log_probs

    forward = {"plain": plain, "chunked": chunked}[way]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        forward().sum().backward()
        seconds.append(time.perf_counter() - start)
        states.grad = weight.grad = None
    return {"seconds": min(seconds), "peak_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024}


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], *map(int, sys.argv[2:]))))
