"""CPU time of the learner's whole step over the plain torch loop's, in turns.

    plain    benchmarks/learner/memory.py: the model in bf16 with full logits, float32 master weights, torch's AdamW
    ours     a rank of the learner on as many tokens, each prompt computed for every response
    shared   the same as a run has it: a prompt is computed once for its group of eight, whose prompts are half of its
             tokens

All three run at once, each with one thread, and update in turns, beginning with another one each round. So other work
on the machine slows all of them, and a ratio is the median over rounds of what was measured side by side. The first
round is left out.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import IO, Any, cast

from .memory import Work, command_of, environment, processes

WAYS = ("plain", "ours", "shared")
MICRO_BATCHES = 4
"""Micro batches of ten sequences: the batch is then five groups of eight."""
ROUNDS = 4


def measure(model: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the ratios of a step's seconds with the model of a directory, ready for the last line."""
    work = Work(model, micro_batches=MICRO_BATCHES, updates=rounds + 1, on_demand=True)
    updates: list[dict[str, dict[str, float]]] = []
    with ExitStack() as stack:
        running = {way: stack.enter_context(_started(way, work)) for way in WAYS}
        for number in range(rounds + 1):
            turn = number % len(WAYS)
            updates.append({way: _update(way, running[way]) for way in (*WAYS[turn:], *WAYS[:turn])})
            seconds = ", ".join(f"{way} {updates[-1][way]['seconds']:.1f}" for way in WAYS)
            print(f"  round {number}{'' if number else ' (not counted)'}: CPU seconds of {seconds}", flush=True)
    return ratios(updates[1:])


def ratios(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    """Return the medians over rounds of ours over the plain loop, by CPU time and by the clock."""

    def over_plain(way: str, name: str) -> float:
        return median(of[way][name] / of["plain"][name] for of in rounds)

    figures = {"plain_step_s": median(of["plain"]["seconds"] for of in rounds)}
    for suffix, way in (("", "ours"), ("_shared", "shared")):
        figures[f"step_over_plain{suffix}"] = over_plain(way, "seconds")
        figures[f"step_over_plain{suffix}_by_clock"] = over_plain(way, "wall")
    return figures


@contextmanager
def _started(way: str, work: Work) -> Iterator[subprocess.Popen[str]]:
    """Start a way's process, which ends with the block."""
    from openrlhf_tir.weights.rendezvous import served_store

    store = served_store("127.0.0.1")
    with processes(command_of(way, work, store.port), 1, environment(), stdin=subprocess.PIPE) as (process,):
        yield process


def _update(way: str, process: subprocess.Popen[str]) -> dict[str, float]:
    """Let a way do one update and return its line."""
    demand = cast(IO[str], process.stdin)
    if process.poll() is None:
        demand.write("\n")
        demand.flush()
    for line in cast(IO[str], process.stdout):
        if line.startswith('{"update"'):
            return json.loads(line)
    raise SystemExit(f"{way} ended with {process.wait()} before its update was done; its error is above.")
