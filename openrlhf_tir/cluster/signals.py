"""SIGTERM (Slurm, Kubernetes, kill), SIGINT (Ctrl-C) and SIGHUP (a terminal that closes) ask for a stop in good order;
a second one ends everything at once.

first     StopRequest.request   the loop winds down within train.stop_grace_s, the session is closed, exit code
                                exit_codes.STOPPED. While Ray starts, which blocks the event loop, Stopped is raised
second    end_at_once           every process that we started is killed; no checkpoint is written. Not SIGHUP: a shell
                                and the kernel both send it when one terminal closes
neither   CLOSE_S after the grace has passed: the same, because a process that hangs must not outlive the job
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import psutil

from ..config import Config
from ..config.sections.train import CLOSE_BEFORE_LIMIT_S
from ..errors import Stopped
from ..machine.launcher import seconds_up
from ..machine.process_memory import all_processes
from ..machine.stop_signals import stop_signals
from ..pipeline.stop import StopRequest
from .lasting_output import lasting_output

SAME_S = 1.0
"""A signal that follows the first within so many seconds is the same request: Ctrl-C and Slurm reach both the launcher,
which passes it on, and its child."""
CLOSE_S = 60.0
"""Seconds to close the session after the grace: rollout actors get 20 s, an environment server 10 s, Ray the
remainder."""
DIE_S = 10.0
"""Seconds for the kernel to end killed processes. Tens of GiB of memory take a moment to free."""


class StopSignals:
    """The handlers of signals that ask for a stop. Create it in a coroutine of the main thread, whose event loop it
    uses."""

    def __init__(self, stop: StopRequest) -> None:
        self.stop = stop
        self.marker: str | None = None
        """A text in the command lines of processes that belong to us without being descendants: the session directory
        of a Ray that we started. None if there is no such Ray."""
        self._first_at: float | None = None
        self._blocking = False
        self._loop = asyncio.get_running_loop()
        self._previous = {number: signal.getsignal(number) for number in stop_signals()}

    def install(self) -> None:
        """Install the handlers. Call it again after ray.init, whose own SIGTERM handler aborts the process with a
        C++ stack."""
        for number in self._previous:
            signal.signal(number, lambda number, _: self.receive(number))

    def remove(self) -> None:
        """Restore the handlers of before. After a stop, ignore the signals instead.

        A late second signal must not change the exit code of a process that is already ending.
        """
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_IGN if self._first_at or self.stop.reason else handler)

    def receive(self, number: int) -> None:
        """Handle a signal. A second one takes effect even if the event loop is blocked, by ray.init or by a hang."""
        # While Ray starts, its C++ handler comes before this one and sets an alarm that aborts the process after 3 s.
        signal.alarm(0)
        name = signal.Signals(number).name
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
            # Requested in any case: the error that is raised below may be swallowed, as in a destructor.
            self._loop.call_soon_threadsafe(self.ask, name)
            if self._blocking:
                raise self._at_start()
        elif number != signal.SIGHUP and now - self._first_at >= SAME_S:
            end_at_once(f"{name} came a second time", self.marker)

    @contextmanager
    def blocking(self) -> Iterator[None]:
        """Raise Stopped at once if a signal comes within the block.

        Use it around code that may block the event loop for longer than the grace, and that can be interrupted
        anywhere.
        """
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
            " If there is a checkpoint, --resume continues from it."
        )

    def ask(self, why: str) -> None:
        """Request a stop, and end everything if the session does not close in time."""
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
    """Make every signal wake the event loop.

    Python runs a handler in the main thread, between two instructions. A handler whose signal came just before the loop
    went to sleep, or was taken by another thread, would otherwise wait for the next event of the loop.
    """
    read_end, write_end = socket.socketpair()
    with read_end, write_end:
        read_end.setblocking(False)
        write_end.setblocking(False)
        loop.add_reader(read_end, read_end.recv, 4096)
        previous = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(previous)
            loop.remove_reader(read_end)


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
        saved = f"--resume continues from the checkpoint in {directory}" if directory.is_dir() else "nothing was saved"
        raise Stopped(f"Stopped by {signals.stop.reason}, outside of training: {saved}.") from None
    finally:
        if timer:
            timer.cancel()
        signals.remove()


def end_at_once(why: str, marker: str | None) -> None:
    """Kill what this process started, and exit with code 130, after which no launcher starts the run again."""
    for number in stop_signals():
        # Further signals would interrupt the lines below, again and again on a busy machine.
        signal.signal(number, signal.SIG_IGN)
    # os.write instead of print, because the signal may have interrupted a print.
    with suppress(OSError):  # The reader may be gone.
        os.write(2, f"{why}: everything is ended now, without a checkpoint.\n".encode())
    processes = set(psutil.Process().children(recursive=True))
    if marker:
        processes |= {info.process for info in all_processes() if any(marker in word for word in info.command)}
    processes.discard(psutil.Process())
    kill(processes)
    os._exit(130)


def kill(processes: Collection[psutil.Process]) -> None:
    """Kill processes and wait until they are gone."""
    for process in processes:
        with suppress(psutil.Error):  # It has ended already.
            process.kill()
    psutil.wait_procs(processes, timeout=DIE_S)
