"""Broadcast group: learner rank 0 and the workers of engines, in a group of their own beside whatever world each of
them is in.

    learner     served(...)  a TCP store on its node: where all meet, and where they hear of each other
    everybody   listening(push):     the first time all meet: all are here, or those that are not are named; then the
                                     connections, in gloo or NCCL
                    start(buffer) ... join(), from rank 0 to all

Whoever cannot go on says so in the store (`end`), and everybody that waits hears it at once: a worker that dies, hangs
or fails costs the others no more than `deadline_s`, and nothing when somebody knows of it. A group that was torn is of
no more use; another is made without whoever tore it. Nothing is waited for on the calling thread alone: an operation
that never ends is left to a thread of its own, which ends with its connections."""

from __future__ import annotations

import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from ...errors import InfraError
from ...rendezvous import served_store
from ...types import BroadcastRendezvous

SETTING = "timeouts.broadcast_s"
DONE = "done"
EARS = timedelta(days=1)
"""How long a thread listens for the end of a push, which comes with the push's deadline at the latest; or the store's
connection breaks, which it hears."""


class BroadcastTorn(InfraError):
    """A group's operation did not end, or ended for some only. Says why."""

    reason = "broadcast_torn"


def served(backend: str, address: str, receivers: int, deadline_s: float) -> tuple[BroadcastRendezvous, dist.TCPStore]:
    """A store that listens on `address` only, at a free port, for as long as it is kept. Raises OSError where the
    address is not this node's."""
    store = served_store(address, timedelta(seconds=deadline_s))
    return BroadcastRendezvous(backend, address, store.port, receivers, deadline_s), store


def member(meeting: BroadcastRendezvous, rank: int, store: dist.Store | None = None) -> Group:
    """This process's place in the group, where it meets the others when the first push begins; rank 0 brings the store
    that it serves."""
    return GROUPS[meeting.backend](meeting, rank, store)


class Group(ABC):
    """One backend's. Belongs to one thread, but for `end`."""

    device: torch.device
    """The device of the buffers."""
    overlaps: bool
    """Whether the buffers' next may be prepared while one is on its way."""

    def __init__(self, meeting: BroadcastRendezvous, rank: int, store: dist.Store | None) -> None:
        self.meeting, self.rank = meeting, rank
        self._timeout = timedelta(seconds=meeting.deadline_s)
        self._store = store
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._push: str | None = None
        self._met = False
        self._heard = False
        """Whether this process was told that somebody has ended the push: then there is nobody to tell."""

    def announce(self, push: str, text: str) -> None:
        """What the receivers must know of a push before it comes; by rank 0."""
        self.store.set(f"{push}/announced", text)

    def forget(self, push: str) -> None:
        """Nobody needs the announcement any more."""
        self.store.delete_key(f"{push}/announced")

    def announced(self, push: str) -> str:
        """Raises BroadcastTorn when rank 0 does not say it in time."""
        return self._within(lambda: self.store.get(f"{push}/announced").decode(), "the learner's announcement")

    @contextmanager
    def listening(self, push: str) -> Iterator[None]:
        """Hears meanwhile when somebody ends `push`, from the meeting on: who waits for the connection of one that died
        is told as well.

        Leaving by an error ends it for all; rank 0 ends it anyway. Raises BroadcastTorn, naming who did not come."""
        self._push = push
        threading.Thread(target=self._listen, args=(push,), name=f"broadcast {push}", daemon=True).start()
        try:
            if not self._met:
                self._meet_all()
            yield
        except BaseException as e:
            # else rank 0 knows, or is told by who reads this one's answer
            if not self._heard and (self._met or self.rank == 0):
                self.end(str(e) or type(e).__name__)
            raise
        else:
            if self.rank == 0:
                self._over(push, DONE)
        finally:
            self._push = None

    def end(self, why: str) -> None:
        """From any thread: whoever takes part in the push raises BroadcastTorn; before one has begun, or the others are
        met, as soon as that begins."""
        said = f"rank {self.rank} ended it: {why}" if self.rank else why
        if push := self._push:
            with suppress(RuntimeError):  # a store that is gone is heard as well
                self._over(push, said)
        self._events.put(("ended", said))

    def start(self, buffer: torch.Tensor) -> None:
        """Send, or receive, `buffer` [bytes] uint8 on the group's device, in the background. Untouched until `join`."""
        self._begin(lambda: self._broadcast(buffer), "bucket")

    def join(self) -> None:
        """What was started is through. Raises BroadcastTorn."""
        self._result("a bucket of the weights")

    def close(self) -> None:
        """Drop the connections. What never ends keeps them until it notices."""
        threading.Thread(target=self._close, name="broadcast close", daemon=True).start()

    @property
    def store(self) -> dist.Store:
        if self._store is None:
            self._store = self._connected()
        return self._store

    @abstractmethod
    def _connect(self) -> None:
        """Collective, when all are known to be there."""

    @abstractmethod
    def _broadcast(self, buffer: torch.Tensor) -> None:
        """From rank 0 to all; returns when it is through here."""

    @abstractmethod
    def _close(self) -> None: ...

    def _meet_all(self) -> None:
        """All or none."""
        try:
            self._within(self._meet, "meeting the others")
        except BroadcastTorn as e:
            if self.rank == 0:  # the others wait for it; and this one's connection may be waiting still
                self._connected().compare_set("go", "", str(e))
            raise
        self._met = True

    def _meet(self) -> None:
        self.store.set(f"here/{self.rank}", "")
        if self.rank == 0:
            self.store.compare_set("go", "", self._missing())
        elif not self.store.check(["go"]):
            self.store.wait(["go"], 2 * self._timeout)  # rank 0 waits as long for the last of them
        if missing := self.store.get("go").decode():
            raise BroadcastTorn(missing)
        self._connect()

    def _missing(self) -> str:
        """Who did not come; empty when all did."""
        keys = [f"here/{rank}" for rank in range(1, self.meeting.receivers + 1)]
        try:
            self.store.wait(keys, self._timeout)
        except RuntimeError:
            absent = [key.rpartition("/")[2] for key in keys if not self.store.check([key])]
            return (
                f"rank {', '.join(absent)} of {len(keys)} did not come within {SETTING} = {self.meeting.deadline_s:g} s"
                if absent
                else ""
            )
        return ""

    def _connected(self) -> dist.TCPStore:
        m = self.meeting
        return dist.TCPStore(m.address, m.port, is_master=False, timeout=self._timeout, wait_for_workers=False)

    def _over(self, push: str, said: str) -> None:
        """What was said first stays. Rank 0 may be told to from another thread, while its own connection is in use."""
        store = self.store if self.rank else self._connected()
        store.compare_set(f"{push}/over", "", said)

    def _listen(self, push: str) -> None:
        """Over a connection of its own: one answers one question at a time."""
        try:
            store = self._connected()
            store.wait([f"{push}/over"], EARS)
            said = store.get(f"{push}/over").decode()
        except RuntimeError as e:
            said = f"the learner at {self.meeting.address}:{self.meeting.port} is gone: {_line(e)}"
        if said != DONE and self._push == push:
            self._events.put(("heard", said))

    def _within(self, work: Callable[[], Any], what: str) -> Any:
        self._begin(work, what)
        # `_meet` and what it waits for have deadlines of their own, and better words
        return self._result(what, patience=3)

    def _begin(self, work: Callable[[], Any], what: str) -> None:
        push = self._push

        def run() -> None:
            try:
                self._events.put(("done", work()))
            except Exception as e:  # it is raised by `_result`, on the thread that waits
                self._events.put(self._cause(e, push))

        threading.Thread(target=run, name=f"broadcast {what}", daemon=True).start()

    def _cause(self, error: Exception, push: str | None) -> tuple[str, Any]:
        """Whoever ends a push says so before it drops its connections: one that broke may be felt before the word is
        heard, and tells less."""
        said = DONE
        with suppress(RuntimeError):  # the store is gone too
            if push and self.store.check([over := f"{push}/over"]):
                said = self.store.get(over).decode()
        return ("failed", error) if said == DONE else ("heard", said)

    def _result(self, what: str, patience: int = 1) -> Any:
        """What came of what was begun. Raises BroadcastTorn when it fails, the push is ended or the deadline passes."""
        try:
            kind, value = self._events.get(timeout=patience * self.meeting.deadline_s)
        except Empty:
            raise BroadcastTorn(
                f"{what} did not come through within {SETTING} = {self.meeting.deadline_s:g} s"
            ) from None
        if kind in ("ended", "heard"):
            self._heard = kind == "heard"
            raise BroadcastTorn(value)
        if kind == "failed":
            raise value if isinstance(value, BroadcastTorn) else BroadcastTorn(f"{what}: {_line(value)}") from value
        return value


class GlooGroup(Group):
    """Over TCP between hosts' memories, in CPU tensors whatever the models are on."""

    overlaps = True

    def __init__(self, meeting: BroadcastRendezvous, rank: int, store: dist.Store | None) -> None:
        super().__init__(meeting, rank, store)
        self.device = torch.device("cpu")
        self._gloo: Any = None

    def _connect(self) -> None:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [_interface(self.meeting)]
        options._threads = 1
        options._timeout = self._timeout
        self._gloo = dist.ProcessGroupGloo(
            dist.PrefixStore("gloo", self.store), self.rank, self.meeting.receivers + 1, options
        )

    def _broadcast(self, buffer: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self._gloo.broadcast([buffer], options).wait(self._timeout)

    def _close(self) -> None:
        self._gloo = None


class NcclGroup(Group):
    """Between GPUs, by vLLM's communicator, which needs no world. As GlooGroup, and not run on GPUs yet."""

    overlaps = False
    """ZeRO-3 gathers by NCCL too, and two communicators that wait for each other on one device may wait for ever."""

    def __init__(self, meeting: BroadcastRendezvous, rank: int, store: dist.Store | None) -> None:
        super().__init__(meeting, rank, store)
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._nccl: Any = None

    def _connect(self) -> None:
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        world = StatelessProcessGroup(
            rank=self.rank, world_size=self.meeting.receivers + 1, store=dist.PrefixStore("nccl", self.store)
        )
        self._nccl = PyNcclCommunicator(world, device=self.device)
        if self._nccl.disabled:
            raise BroadcastTorn(f"rank {self.rank} has no NCCL library, or VLLM_DISABLE_PYNCCL is set")

    def start(self, buffer: torch.Tensor) -> None:
        """vLLM's worker has a stream of its own, which may still load from the bucket before: of whose memory this
        buffer may be made, and which NCCL's stream does not wait for."""
        torch.cuda.current_stream(self.device).synchronize()
        super().start(buffer)

    def _broadcast(self, buffer: torch.Tensor) -> None:
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            self._nccl.broadcast(buffer, src=0, stream=stream)
            stream.synchronize()

    def _close(self) -> None:
        if self._nccl is not None:
            self._nccl.destroy()  # aborts what is under way


GROUPS: dict[str, type[Group]] = {"gloo": GlooGroup, "nccl": NcclGroup}


def _interface(meeting: BroadcastRendezvous) -> Any:
    """The one by which this process reaches the learner's: a host's name may be loopback. GLOO_SOCKET_IFNAME wins."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return dist.ProcessGroupGloo.create_default_device()
    with socket.socket(socket.AF_INET6 if ":" in meeting.address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((meeting.address, meeting.port))  # of a datagram socket: nothing is sent
        return dist.ProcessGroupGloo.create_device(hostname=probe.getsockname()[0])


def _line(error: BaseException) -> str:
    """torch puts its C++ stack into the message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
