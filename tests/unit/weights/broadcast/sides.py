"""Both sides of a broadcast for tests: receivers in threads or processes, and a learner on plain tensors."""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from openrlhf_tir.pushes import BroadcastRendezvous, BroadcastResult, Item
from openrlhf_tir.weights.broadcast.receiver import Receiver
from openrlhf_tir.weights.broadcast.sender import Sender
from openrlhf_tir.weights.broadcast.stream import TORCH

NAMES = {dtype: name for name, dtype in TORCH.items()}
LONG = 300.0
"""Seconds: a deadline that no healthy test meets."""


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    """Of several dtypes and odd sizes; with a scalar, an empty one, and one that is larger than a bucket."""
    g = torch.Generator().manual_seed(seed)
    return {
        "a.bf16": torch.randn(33, 7, generator=g).bfloat16(),
        "b.scalar": torch.randn((), generator=g),
        "c.empty": torch.zeros(0, 3),
        "d.bool": torch.rand(5, generator=g) > 0.5,
        "e.int": torch.randint(0, 100, (9,), generator=g),
        "f.large": torch.randn(300, 300, generator=g),
        "g.half": torch.randn(3, 5, generator=g).half(),
        "h.transposed": torch.randn(6, 4, generator=g).T,
    }


def buckets(tensors: dict[str, torch.Tensor], per_bucket: int = 2) -> list[list[Item]]:
    items = [Item(name, NAMES[t.dtype], tuple(t.shape)) for name, t in tensors.items()]
    return [items[i : i + per_bucket] for i in range(0, len(items), per_bucket)]


def gathered(tensors, between=lambda n: None, per_bucket: int = 2):
    """`between(n)` runs before bucket n."""
    pairs = [*tensors.items()]
    for n, i in enumerate(range(0, len(pairs), per_bucket)):
        between(n)
        yield pairs[i : i + per_bucket]


class Side:
    """A receiver in a thread; what it was given to load, bucket by bucket, as views."""

    def __init__(self, rank: int) -> None:
        self.rank, self.receiver, self.got, self.undone = rank, Receiver(), {}, 0
        self.load = self.got.update

    def undo(self) -> None:
        self.got.clear()
        self.undone += 1

    def receive(self, meeting: BroadcastRendezvous, push: str) -> BroadcastResult:
        return self.receiver.receive(meeting, self.rank, push, self.load, self.undo)


class Hub:
    """A sender and receivers, each in its thread."""

    def __init__(self, receivers: int, deadline_s: float = LONG) -> None:
        self.sender, self.sides, self.deadline_s = Sender(), [Side(i + 1) for i in range(receivers)], deadline_s
        self.pool = ThreadPoolExecutor(receivers + 2)
        self.meeting = self.open()

    def open(self, receivers: int | None = None) -> BroadcastRendezvous:
        self.meeting = self.sender.open("gloo", "127.0.0.1", receivers or len(self.sides), self.deadline_s)
        return self.meeting

    def send(self, push: str, tensors, between=lambda n: None) -> Future[BroadcastResult]:
        return self.pool.submit(self.sender.send, push, buckets(tensors), gathered(tensors, between))

    def receive(self, push: str, sides=None) -> list[Future[BroadcastResult]]:
        return [self.pool.submit(side.receive, self.meeting, push) for side in sides or self.sides]

    def push(self, push: str, tensors) -> tuple[BroadcastResult, list[BroadcastResult]]:
        received = self.receive(push)
        return self.send(push, tensors).result(), [r.result() for r in received]

    def close(self) -> None:
        self.sender.close()
        for side in self.sides:
            side.receiver.leave()
        self.pool.shutdown()


def equal(side: Side, tensors) -> bool:
    return side.got.keys() == tensors.keys() and all(
        side.got[n].dtype == t.dtype and side.got[n].shape == t.shape and bits(side.got[n]) == bits(t)
        for n, t in tensors.items()
    )


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def worker(rank: int, meeting: BroadcastRendezvous, pipe) -> None:
    """A receiver's process: says when it has a bucket, and at last what became of the push."""
    side = Side(rank)

    def load(tensors) -> None:
        side.got.update(tensors)
        pipe.send("bucket")

    side.load = load
    pipe.send(tuple(side.receive(meeting, "push")))


def learner(pipe) -> None:
    """A sender's process that dies before it has gathered the third bucket."""
    sender, tensors = Sender(), weights()
    pipe.send(sender.open("gloo", "127.0.0.1", 1, LONG))
    sender.send("push", buckets(tensors), gathered(tensors, lambda n: n < 2 or os.kill(os.getpid(), signal.SIGKILL)))
