"""Weight pushes by broadcast, for benchmarks/weights.py: a receiver's process that hashes what arrives over gloo and
loads nothing, as the file's figures leave out the loading. Seconds from the first tensor until both sides have the
digest; the group is made before."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

DEADLINE_S = 120.0


def receiver(pipe: Any) -> None:
    from openrlhf_tir.weights.broadcast.receiver import Receiver

    meeting, end = pipe.recv(), Receiver()
    while push := pipe.recv():
        pipe.send(tuple(end.receive(meeting, 1, push, lambda tensors: None, lambda: None)))


def broadcasts(module: Any, rounds: int) -> tuple[list[float], bool]:
    """Seconds of each round, and whether both digests were those of the module's weights every time."""
    from openrlhf_tir.learner.lora import hf_weights
    from openrlhf_tir.learner.pushes.broadcast import broadcast_weights
    from openrlhf_tir.pushes import BUCKET_BYTES, BroadcastResult
    from openrlhf_tir.weights.broadcast.sender import Sender
    from openrlhf_tir.weights.digest import tensors_digest

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=receiver, args=(theirs,), daemon=True)
    process.start()
    sender, digest, found, exact = Sender(), tensors_digest((w.name, w.value()) for w in hf_weights(module)), [], True
    try:
        ours.send(sender.open("gloo", "127.0.0.1", 1, DEADLINE_S))
        for n in range(rounds + 1):
            ours.send(f"push{n}")
            start = time.perf_counter()
            sent = broadcast_weights(module, f"push{n}", sender, rank=0, bucket_bytes=BUCKET_BYTES)
            if not ours.poll(DEADLINE_S):
                raise RuntimeError("the receiver does not answer")
            received = BroadcastResult(*ours.recv())
            assert sent is not None
            exact &= sent.digest == received.digest == digest
            if n:  # the first one makes the group, and waits for the other process to import torch
                found.append(time.perf_counter() - start)
        ours.send(None)
        process.join(DEADLINE_S)
    finally:
        process.kill()
        sender.close()
    return found, exact
