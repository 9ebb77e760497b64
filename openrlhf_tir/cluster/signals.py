"""Signals: SIGTERM (Slurm, Kubernetes, kill) and SIGINT (Ctrl-C) ask for a stop in good order; a second one ends
everything at once.

first     StopRequest.ask       the loop winds down within train.stop_grace_s, the session is closed, exit code
                                exit_codes.STOPPED; while Ray starts, which blocks the event loop: Stopped is raised
second    end_at_once           every process that we started is killed; no checkpoint
neither   CLOSE_S after the grace has passed: the same, because whatever hangs must not outlive the job
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import psutil

from ..config import Config
from ..errors import Stopped
from ..logs.process import all_processes
from ..pipeline.stop import StopRequest
from .lasting_output import lasting_output

SAME_S = 1.0
"""Signals that follow the first so soon are the same request: Ctrl-C and Slurm reach the launcher, which passes it on,
and its child directly."""
CLOSE_S = 60.0
"""Seconds to close the session after the grace: rollout actors get 20 s, an environment server 10 s, Ray the rest."""
DIE_S = 10.0
"""Seconds for the kernel to end what was killed: tens of GiB of memory take a moment to free."""
CLOSE_BEFORE_LIMIT_S = 10.0
"""What closing takes as a rule: kept free between the grace and the job's time limit."""


def seconds_up() -> float:
    """Since the command was given. With train.max_restarts that is when our launcher was started, however often it has
    started us again."""
    process, parent = psutil.Process(), psutil.Process().parent()
    words = parent.cmdline()[1:3] if parent else []
    ours = any(Path(word).name == "openrlhf-tir" or word == "openrlhf_tir.cli" for word in words)
    return time.time() - (parent if ours else process).create_time()


class StopSignals:
    """Made in a coroutine of the main thread, whose event loop is told."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop
        self.marker: str | None = None
        """What the command lines of processes hold that are ours without being descendants: the session directory of a
        Ray of our own."""
        self._first_at: float | None = None
        self._blocking = False
        self._loop = asyncio.get_running_loop()
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def install(self) -> None:
        """Again after ray.init, whose own handler of SIGTERM aborts the process with a C++ stack."""
        for number in self._before:
            signal.signal(number, lambda number, _: self.receive(number))

    def remove(self) -> None:
        """As it was before; or, after a stop, deaf: a late second signal must not change the exit code of a process
        that ends already."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if self._first_at or self.stop.reason else handler)

    def receive(self, number: int) -> None:
        """In the handler itself: the second counts though the event loop is blocked, by ray.init or whatever hangs."""
        # while Ray starts, its C++ handler comes before this one, and sets an alarm that aborts the process after 3 s
        signal.alarm(0)
        name, now = signal.Signals(number).name, time.monotonic()
        if self._first_at is None:
            self._first_at = now
            self._loop.call_soon_threadsafe(self.ask, name)  # also when what follows is swallowed, as in a destructor
            if self._blocking:
                raise self._at_start()
        elif now - self._first_at >= SAME_S:
            end_at_once(f"{name} came a second time", self.marker)

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Around what may block the event loop for longer than the grace, and can be dropped anywhere: a signal raises
        Stopped there and then."""
        self._blocking = True
        try:
            if self._first_at is not None:
                raise self._at_start()
            yield
        finally:
            self._blocking = False

    @staticmethod
    def _at_start() -> Stopped:
        return Stopped(
            "Stopped by a signal while Ray started: nothing had begun."
            " If there is a checkpoint, --resume goes on from it."
        )

    def ask(self, why: str) -> None:
        print(
            f"{why}: stopping within {self.stop.grace_s:g} s (train.stop_grace_s)."
            " Another signal ends the run at once.",
            file=sys.stderr,
            flush=True,
        )
        late = f"{why}, and the session did not close within {CLOSE_S:g} s"
        asyncio.get_running_loop().call_later(self.stop.grace_s + CLOSE_S, lambda: end_at_once(late, self.marker))
        self.stop.request(why)


@contextmanager
def _waking(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Every signal wakes the event loop. Python runs a handler in the main thread, between two instructions: one whose
    signal came just before the loop went to sleep, or was taken by another thread, would otherwise wait for whatever
    wakes the loop next."""
    heard, told = socket.socketpair()
    with heard, told:
        heard.setblocking(False)
        told.setblocking(False)
        loop.add_reader(heard, heard.recv, 4096)
        before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(heard)


@asynccontextmanager
async def stoppable(cfg: Config) -> AsyncIterator[StopSignals]:
    """Within the block signals and train.save_before_s ask for a stop. Raises Stopped for what they interrupt outside
    of the loop."""
    main, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert main is not None, "a coroutine runs in a task"
    signals = StopSignals(StopRequest(cfg.train.stop_grace_s, interrupt=main.cancel))
    signals.install()
    timer = None
    if limit := cfg.train.save_before_s:
        left = limit - seconds_up() - cfg.train.stop_grace_s - CLOSE_BEFORE_LIMIT_S
        timer = loop.call_later(max(0.0, left), signals.ask, f"train.save_before_s = {limit:g} s will soon be over")
    try:
        with lasting_output(), _waking(loop):
            yield signals
    except asyncio.CancelledError:
        if not signals.stop.reason:
            raise
        directory = cfg.run_dir / cfg.ckpt.path
        raise Stopped(
            f"Stopped by {signals.stop.reason}, outside of training."
            f" If there is a checkpoint in {directory}, --resume goes on from it."
        ) from None
    finally:
        if timer:
            timer.cancel()
        signals.remove()


def end_at_once(why: str, marker: str | None = None) -> None:
    """Kill what this process started, and end it. Exit code 130, which no launcher takes for one to start again."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # more of them would interrupt what follows, again and again on a busy machine
        signal.signal(number, signal.SIG_IGN)
    # print may be what the signal has interrupted
    with suppress(OSError):  # whoever read it may be gone
        os.write(2, f"{why}: everything is ended now, without a checkpoint.\n".encode())
    ours = set(psutil.Process().children(recursive=True))
    if marker:
        ours |= {seen.process for seen in all_processes() if any(marker in word for word in seen.command)}
    ours.discard(psutil.Process())
    for process in ours:
        with suppress(psutil.Error):  # it is gone already
            process.kill()
    psutil.wait_procs(ours, timeout=DIE_S)
    os._exit(130)
