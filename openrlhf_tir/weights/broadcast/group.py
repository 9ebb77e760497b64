"""A process group of learner rank 0 and the workers of engines, separate from the groups that each of them is in.

    learner      Sender.open           serves a TCP store on its node, through which the members find each other
    each member  listening(push):      the first time: wait until all members are there, or name those that are missing;
                                       then connect them, by gloo or NCCL
                     start(buffer), join()   broadcast a buffer from rank 0 to all

A member that cannot go on writes so into the store (`end`), and all that wait are notified at once. So a worker that
dies, hangs or fails costs the others at most `deadline_s`, and nothing if someone notices it earlier. A group whose
push was torn is not used again; the next one is opened without the member that tore it.

Every operation that can block runs in a thread of its own. One that never ends is abandoned there; its thread ends with
its connections.
"""

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
from ...pushes import BroadcastRendezvous
from ...waiting.deadlines import LONGEST_BUCKET_S

SETTING = f"min(timeouts.push_s / 10, {LONGEST_BUCKET_S:g} s)"
"""Where the deadline of an operation comes from (deadlines.broadcast_deadline), for messages."""
DONE = "done"
LISTEN_LIMIT = timedelta(days=1)
"""How long a thread listens for the end of a push. In practice it ends earlier, with the push's deadline or when the
connection to the store breaks."""


class BroadcastTorn(InfraError):
    """An operation of a group did not end in time, or was ended by a member."""

    reason = "broadcast_torn"


def member(meeting: BroadcastRendezvous, rank: int, store: dist.Store | None = None) -> Group:
    """Return this process's member of the group. The members connect when the first push begins.

    Args:
        meeting: What `Sender.open` returned.
        rank: This process's rank; the learner is 0.
        store: Rank 0 passes the store that it opened; others connect to it.
    """
    return GROUPS[meeting.backend](meeting, rank, store)


class Group(ABC):
    """One member of the group; subclasses implement a backend. Only `end` may be called from another thread."""

    device: torch.device
    """The device of the buffers."""
    overlaps: bool
    """True if the next buffer may be filled while the last one is being sent."""

    def __init__(self, meeting: BroadcastRendezvous, rank: int, store: dist.Store | None) -> None:
        self.meeting = meeting
        self.rank = rank
        self._timeout = timedelta(seconds=meeting.deadline_s)
        self._store = store
        self._events: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._push: str | None = None
        self._met = False
        self._ended_by_other = False
        """True if another member ended the push, so that nobody has to be notified."""

    def announce(self, push: str, text: str) -> None:
        """Publish what the receivers must know before a push. Called by rank 0."""
        self.store.set(f"{push}/announced", text)

    def forget(self, push: str) -> None:
        """Delete the announcement of a push that is complete."""
        self.store.delete_key(f"{push}/announced")

    def announced(self, push: str) -> str:
        """Return rank 0's announcement of a push.

        Raises:
            BroadcastTorn: It did not come in time.
        """
        return self._within(lambda: self.store.get(f"{push}/announced").decode(), "the learner's announcement")

    @contextmanager
    def listening(self, push: str) -> Iterator[None]:
        """Take part in a push inside the block, and listen for a member that ends it.

        Listening begins before the members connect, so that a member that waits for a dead one's connection is notified
        too. An exception in the block ends the push for all members. Otherwise rank 0 ends it when its block ends.

        Raises:
            BroadcastTorn: A member did not come; the message names it.
        """
        self._push = push
        threading.Thread(target=self._listen, args=(push,), name=f"broadcast {push}", daemon=True).start()
        try:
            if not self._met:
                self._meet_all()
            yield
        except BaseException as error:
            # A receiver that never connected does not end the push: rank 0 names it as missing, and whoever reads this
            # worker's answer ends the push as well.
            if not self._ended_by_other and (self._met or self.rank == 0):
                self.end(str(error) or type(error).__name__)
            raise
        else:
            if self.rank == 0:
                self._publish_end(push, DONE)
        finally:
            self._push = None

    def end(self, why: str) -> None:
        """End the current push for all members, which raise BroadcastTorn. May be called from any thread.

        If no push has begun here yet, or the members have not connected, it takes effect as soon as that happens.
        """
        reason = f"rank {self.rank} ended it: {why}" if self.rank else why
        if push := self._push:
            with suppress(RuntimeError):  # if the store is gone, the members notice that too
                self._publish_end(push, reason)
        self._events.put(("ended", reason))

    def start(self, buffer: torch.Tensor) -> None:
        """Start to send (rank 0) or receive a buffer in the background. Do not touch the buffer before `join`.

        Args:
            buffer: [bytes] uint8 on the group's device.
        """
        self._begin(lambda: self._broadcast(buffer), "bucket")

    def join(self) -> None:
        """Wait until the buffer was sent or received.

        Raises:
            BroadcastTorn: It failed, the push was ended, or the deadline passed.
        """
        self._result("a bucket of the weights")

    def close(self) -> None:
        """Drop the connections in the background. An operation that hangs keeps them until it ends."""
        threading.Thread(target=self._close, name="broadcast close", daemon=True).start()

    @property
    def store(self) -> dist.Store:
        """The store, connected when first used."""
        if self._store is None:
            self._store = self._new_connection()
        return self._store

    @abstractmethod
    def _connect(self) -> None:
        """Connect the members. Collective; called when all of them are known to be there."""

    @abstractmethod
    def _broadcast(self, buffer: torch.Tensor) -> None:
        """Broadcast a buffer from rank 0; return when this member has sent or received it."""

    @abstractmethod
    def _close(self) -> None:
        """Drop the backend's connections. Called in a thread, because it may block."""

    def _meet_all(self) -> None:
        """Wait for all members and connect them; either all succeed or none."""
        try:
            self._within(self._meet, "meeting the others")
        except BroadcastTorn as error:
            if self.rank == 0:
                # The others wait for "go". A new connection is needed, because the abandoned thread may block the old.
                self._new_connection().compare_set("go", "", str(error))
            raise
        self._met = True

    def _meet(self) -> None:
        self.store.set(f"here/{self.rank}", "")
        if self.rank == 0:
            self.store.compare_set("go", "", self._missing())
        elif not self.store.check(["go"]):
            self.store.wait(["go"], 2 * self._timeout)  # rank 0 itself waits one timeout for the last member
        if missing := self.store.get("go").decode():
            raise BroadcastTorn(missing)
        self._connect()

    def _missing(self) -> str:
        """Wait for all receivers, and return a message that names the missing ones; empty if all came."""
        keys = [f"here/{rank}" for rank in range(1, self.meeting.receivers + 1)]
        try:
            self.store.wait(keys, self._timeout)
        except RuntimeError:
            absent = [key.rpartition("/")[2] for key in keys if not self.store.check([key])]
            if absent:
                ranks = ", ".join(absent)
                return f"rank {ranks} of {len(keys)} did not join within {SETTING} = {self.meeting.deadline_s:g} s"
        return ""

    def _new_connection(self) -> dist.TCPStore:
        """Open another connection to the store. One connection can handle one request at a time."""
        meeting = self.meeting
        return dist.TCPStore(
            meeting.address, meeting.port, is_master=False, timeout=self._timeout, wait_for_workers=False
        )

    def _publish_end(self, push: str, reason: str) -> None:
        """Write the end of a push into the store. The first reason is kept."""
        # On rank 0 another thread may call this while the group's own connection is in use.
        store = self.store if self.rank else self._new_connection()
        store.compare_set(f"{push}/over", "", reason)

    def _listen(self, push: str) -> None:
        """Wait for the end of a push, and queue an event if it is not a regular end. Runs in a thread."""
        try:
            store = self._new_connection()
            store.wait([f"{push}/over"], LISTEN_LIMIT)
            reason = store.get(f"{push}/over").decode()
        except RuntimeError as error:
            reason = f"the learner at {self.meeting.address}:{self.meeting.port} is gone: {_first_line(error)}"
        if reason != DONE and self._push == push:
            self._events.put(("heard", reason))

    def _within(self, work: Callable[[], Any], what: str) -> Any:
        """Run `work` in a thread and return its result. `what` names it in errors."""
        self._begin(work, what)
        # The factor is generous because `_meet` has deadlines of its own, with better messages.
        return self._result(what, patience=3)

    def _begin(self, work: Callable[[], Any], what: str) -> None:
        """Run `work` in a thread, which puts its result or error into the queue of events."""
        push = self._push

        def run() -> None:
            try:
                self._events.put(("done", work()))
            except Exception as error:  # `_result` raises it on the thread that waits
                self._events.put(self._cause(error, push))

        threading.Thread(target=run, name=f"broadcast {what}", daemon=True).start()

    def _cause(self, error: Exception, push: str | None) -> tuple[str, Any]:
        """Return the event for a failed operation: its error, or the reason if a member ended the push.

        A member writes its reason before it drops its connections, but this process may notice the broken connection
        before it hears the reason, which says more.
        """
        reason = DONE
        with suppress(RuntimeError):  # the store may be gone too
            if push and self.store.check([over := f"{push}/over"]):
                reason = self.store.get(over).decode()
        return ("failed", error) if reason == DONE else ("heard", reason)

    def _result(self, what: str, patience: int = 1) -> Any:
        """Wait for the operation that `_begin` started and return its result.

        Args:
            what: Names the operation in errors.
            patience: Wait for this many times the deadline.

        Raises:
            BroadcastTorn: The operation failed, the push was ended, or the time passed.
        """
        try:
            kind, value = self._events.get(timeout=patience * self.meeting.deadline_s)
        except Empty:
            raise BroadcastTorn(f"{what} did not finish within {SETTING} = {self.meeting.deadline_s:g} s") from None
        if kind in ("ended", "heard"):
            self._ended_by_other = kind == "heard"
            raise BroadcastTorn(value)
        if kind == "failed":
            raise (
                value if isinstance(value, BroadcastTorn) else BroadcastTorn(f"{what}: {_first_line(value)}")
            ) from value
        return value


class GlooGroup(Group):
    """Broadcasts over TCP between the hosts' memories, in CPU tensors on any device."""

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
        options.rootRank = 0
        options.rootTensor = 0
        self._gloo.broadcast([buffer], options).wait(self._timeout)

    def _close(self) -> None:
        self._gloo = None


class NcclGroup(Group):
    """Broadcasts between GPUs with vLLM's communicator, which needs no default process group. Not yet run on GPUs."""

    overlaps = False
    """ZeRO-3 gathers with NCCL as well, and two NCCL communicators at work on one device can deadlock."""

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
        # vLLM's worker loads on a stream of its own. It may still read the last bucket, whose memory this buffer may
        # have been allocated from, and NCCL's stream does not wait for it.
        torch.cuda.current_stream(self.device).synchronize()
        super().start(buffer)

    def _broadcast(self, buffer: torch.Tensor) -> None:
        with torch.cuda.device(self.device):
            stream = torch.cuda.current_stream()
            self._nccl.broadcast(buffer, src=0, stream=stream)
            stream.synchronize()

    def _close(self) -> None:
        if self._nccl is not None:
            self._nccl.destroy()  # aborts a broadcast that is still running


GROUPS: dict[str, type[Group]] = {"gloo": GlooGroup, "nccl": NcclGroup}


def _interface(meeting: BroadcastRendezvous) -> Any:
    """Return gloo's device for the network interface by which this process reaches the learner.

    gloo's default, the interface of the host's name, may be loopback. GLOO_SOCKET_IFNAME has precedence.
    """
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return dist.ProcessGroupGloo.create_default_device()
    with socket.socket(socket.AF_INET6 if ":" in meeting.address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((meeting.address, meeting.port))  # sends nothing: it is a datagram socket
        return dist.ProcessGroupGloo.create_device(hostname=probe.getsockname()[0])


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's message; torch puts its C++ stack into the others."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
