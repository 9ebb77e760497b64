"""Workers: (function, args) -> its result, computed in another process with a budget of CPU, a deadline and a memory
limit.

    uses up `cpu_s` of CPU          CpuSpent   the call's own doing: what it was given makes it run on and on
    is not over after `wall_s`      Late       the machine's doing: so long, and it has not had the CPU it may use
    its worker dies twice           VerifierError; where user code has ended it its `error`, or RewardError

A clock on the wall alone cannot tell the first two apart: on a starved host a check of milliseconds misses five
seconds. The kernel counts the CPU (ITIMER_PROF) and ends the worker with SIGPROF, even inside one endless operation on
big integers, where Python runs no handler. A worker that dies otherwise is replaced and the call tried once more.
Started at the first call, so that a pool nobody needs costs nothing."""

from __future__ import annotations

import asyncio
import faulthandler
import io
import logging
import multiprocessing
import resource
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from ..errors import RewardError, VerifierError
from ..user_code.failures import Overrun, Starved
from .checking import symbolic

if TYPE_CHECKING:
    from pebble import ProcessPool

WORKER_MEMORY = 4 << 30
"""Bytes of address space of a worker: 9^(9^9) ends in MemoryError there, instead of taking the machine along."""
ATTEMPTS = 2
TAKE_S = 120.0
"""Within so long a free worker takes a call. The first one starts Python and imports sympy before: two seconds, many
more on a starved host."""
CLOSE_S = 10.0
"""Within so long the workers are killed, as a rule in a moment: one that is just being started is waited for by pebble,
without a bound of its own."""
INTERRUPT_AT = 0.95
"""Share of the deadline after which user code is interrupted: before its worker is killed, so that it can say where."""
STARVED = 0.5
"""Share of its time that a call has waited for a core, from which on it is late by the machine's doing."""
STRETCH = 4
"""How often user code gets the deadline anew while the machine has no core for it: an endless loop then uses up its
CPU, and is told as what it is. Without a budget of CPU the deadline is not stretched."""
PRINTED = 2000
"""Characters that a call of user code may print."""
KILL_AFTER_S = 1.0
"""CPU seconds after an interrupt within which user code has to be over."""
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_OWN_EXITS = frozenset([*range(256), *(-number for number in _CRASHES)])
"""Exit codes of a worker that user code has ended. A kill comes from outside, as a rule for want of memory."""
log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """What one call may use, and the settings that say so."""

    cpu_s: float | None
    wall_s: float
    cpu_name: str
    wall_name: str


class CpuSpent(VerifierError):
    """A call used up its CPU."""


class Late(VerifierError):
    """A call was not over in time, though it had CPU left to use."""


def _asked_to_stop() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Workers:
    def __init__(
        self,
        count: int,
        cpu_s: float | None,
        wall_s: float,
        *,
        cpu_name: str = "the budget",
        wall_name: str = "the deadline",
        count_name: str = "workers",
    ) -> None:
        """At most `count` calls at once, each with `cpu_s` seconds of CPU and over within `wall_s` of its start. The
        names are those of the settings, for messages.

        `cpu_s` None: neither CPU nor memory are limited.
        """
        self.count, self.cpu_s, self.wall_s = count, cpu_s, wall_s
        self.take_s = TAKE_S
        self.prepare: Callable[[], None] = symbolic.warm
        """What a worker does when it starts."""
        self._turns = asyncio.Semaphore(count)
        self._cpu_name, self._wall_name, self._count_name = cpu_name, wall_name, count_name
        self._pool: ProcessPool | None = None
        self.how_ended: Callable[[int, str], Awaitable[str]] | None = None
        """(pid, what is known) -> how a worker ended, in words; None: nobody watches the workers."""

    @property
    def started(self) -> bool:
        return self._pool is not None

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)`. Raises CpuSpent, Late (the worker is killed), VerifierError when workers die twice.

        Cancelled: the call is taken back, or its worker killed.
        """
        from pebble import ProcessExpired

        death: BaseException | None = None
        exit_code: int | None = None
        limits = Limits(self.cpu_s, self.wall_s, self._cpu_name, self._wall_name)
        async with self._turns:  # so that a call that is handed over finds a worker that is free
            for _ in range(ATTEMPTS):
                pool = self._started()
                # from when a worker takes it
                wall_s = self.wall_s * (STRETCH if _is_stretched(limits, function) else 1)
                call = pool.schedule(_budgeted, args=(limits, function, *args), timeout=wall_s)
                try:
                    async with asyncio.timeout(self.take_s + wall_s):
                        return await asyncio.wrap_future(call)
                except ProcessExpired as e:
                    if e.exitcode == -signal.SIGPROF:
                        raise CpuSpent(
                            f"{function.__name__} used up {self._cpu_name} = {self.cpu_s:g} s of CPU."
                            " Raise it, or make the check quicker."
                        ) from e
                    death = e
                    exit_code = e.exitcode
                    if self.how_ended is not None:
                        words = await self.how_ended(e.pid, str(e))
                        log.warning("a worker died in %s: %s", function.__name__, words)
                        death = VerifierError(words)
                except TimeoutError as e:
                    if call.cancelled():  # by us: no worker has taken it
                        self._replace(pool)
                    if self.cpu_s is None:
                        raise Late(
                            f"{function.__name__} was not over within {self._wall_name} = {self.wall_s:g} s."
                            " Make it quicker, or raise that."
                        ) from e
                    raise Late(
                        f"{function.__name__} was not over within {self._wall_name} = {self.wall_s:g} s, without having"
                        f" had {self._cpu_name} = {self.cpu_s:g} s of CPU: the machine is starved, or it waits for"
                        " something. Give it more cores, or raise the deadline."
                    ) from e
                except asyncio.CancelledError as e:
                    if pool is self._pool or self._pool is None or _asked_to_stop():
                        raise
                    death = e  # its pool was replaced under it
                    exit_code = None
        if getattr(function, "user_code", False) and exit_code in _OWN_EXITS:
            raise getattr(function, "error", RewardError)(
                f"{getattr(function, 'name', function.__name__)} ended its process {ATTEMPTS} times, with exit code"
                f" {exit_code}: a library crashed in it, or ended the process. The console has the line of a crash."
            )
        raise VerifierError(
            f"The worker died {ATTEMPTS} times in {function.__name__} ({death})."
            f" See its exit code; {self._count_name} or memory may be too small."
        )

    def _replace(self, pool: Any) -> None:
        """Its workers take no work any more. Their successors are started with the next call."""
        if pool is self._pool:
            self._pool = None
            _stopping(pool)

    async def warm(self) -> None:
        """Have every worker ready to check, so that no first call pays for it."""
        futures = [self._started().schedule(symbolic.warm) for _ in range(self.count)]
        await asyncio.gather(*map(asyncio.wrap_future, futures))

    def _started(self) -> ProcessPool:
        if self._pool is None:
            from pebble import ProcessPool

            # Not fork: the caller's process has threads (engine, event loop) whose locks a forked child would inherit.
            # The server imports sympy once, so that the successor of a killed worker is there in milliseconds.
            context = multiprocessing.get_context("forkserver")
            context.set_forkserver_preload(["math_verify"])
            self._pool = ProcessPool(
                max_workers=self.count, context=context, initializer=_start_worker, initargs=(self.cpu_s, self.prepare)
            )
        return self._pool

    def close(self) -> None:
        """Kill the workers. Calls that still run end in CancelledError. What outlives CLOSE_S ends with this one."""
        if self._pool is not None:
            pool, self._pool = self._pool, None
            stopping = _stopping(pool)
            stopping.join(CLOSE_S)
            if stopping.is_alive():
                log.warning("The workers were not stopped within %g s; they end with this process.", CLOSE_S)


def _stopping(pool: Any) -> threading.Thread:
    """The daemon that stops it."""

    def stop() -> None:
        pool.stop()
        pool.join()

    thread = threading.Thread(target=stop, name="stop workers", daemon=True)
    thread.start()
    return thread


def _budgeted(limits: Limits, function: Callable[..., Any], *args: Any) -> Any:
    """In the worker: the kernel kills this process when the call has used up its CPU, its own and the system's for it.

    User code (`user_code = True` on the callable) is first interrupted where it is, so that the error has its file and
    line; the kill follows for code that no signal handler can stop. Raises Late where the interrupt met no line of
    user code: an Overrun, which is no Exception, must not get past the pool.
    """
    own = getattr(function, "user_code", False)
    if own and isinstance(sys.stdout, BoundedOutput):
        sys.stdout.begin()
    if own and limits.cpu_s is not None:
        signal.signal(signal.SIGPROF, _interrupts(f"it used up {limits.cpu_name} = {limits.cpu_s:g} s of CPU"))
    if own:
        said = f"it was not over within {limits.wall_name} = {limits.wall_s:g} s"
        more = STRETCH - 1 if _is_stretched(limits, function) else 0
        signal.signal(signal.SIGALRM, _interrupts(said, _starvation(), more, limits.wall_s))
        signal.setitimer(signal.ITIMER_REAL, limits.wall_s * INTERRUPT_AT)
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s or 0)
    try:
        return function(*args)
    except Overrun as e:
        # Not in the function's own lines, whose wrapper tells them: its module was being loaded, or its result checked.
        name = getattr(function, "__name__", type(function).__name__)
        raise Late(f"{name}: {e}: it was still being loaded, or its result was being read. Raise that.") from e
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if own:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGPROF, signal.SIG_DFL)


def _is_stretched(limits: Limits, function: Callable[..., Any]) -> bool:
    """Return True if a call gets more time while the machine has no core for it."""
    return limits.cpu_s is not None and getattr(function, "user_code", False)


def _starvation() -> Callable[[], bool]:
    """Return a function that says whether this thread has waited for a core, most of the time since now."""
    began = time.monotonic()
    waited = _waited_s()
    return lambda: _waited_s() - waited > (time.monotonic() - began) * STARVED


def _waited_s() -> float:
    """Seconds for which this thread was ready to run and had no core; 0 where the kernel does not count them."""
    try:
        with open("/proc/thread-self/schedstat") as stat:
            return int(stat.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _interrupts(
    said: str, starved: Callable[[], bool] = lambda: False, more: int = 0, wall_s: float = 0.0
) -> Callable[[int, Any], None]:
    """Return a signal handler that raises Overrun in what runs, and lets the next signal kill the process.

    On a starved host the deadline begins again, `more` times; after that it raises Starved: that the call is late is
    then the machine's doing, and the line is told all the same.
    """
    left = more

    def handler(number: int, frame: Any) -> None:
        nonlocal left
        if left and number == signal.SIGALRM and starved():
            left -= 1
            signal.setitimer(signal.ITIMER_REAL, wall_s * INTERRUPT_AT)
            return
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, KILL_AFTER_S)
        if starved():
            raise Starved(f"{said}, and for most of that time the machine had no core for it")
        raise Overrun(said)

    return handler


class BoundedOutput(io.TextIOBase):
    """Standard output of a worker, of which a call's first PRINTED characters get through.

    A reward that prints all that it is given is called thousands of times, and nobody could read the console.
    """

    def __init__(self, output: TextIO) -> None:
        self.output = output
        self.left = PRINTED

    def begin(self) -> None:
        """Count from here: a call begins."""
        self.left = PRINTED

    def write(self, text: str) -> int:
        if self.left > 0:
            self.output.write(text[: self.left])
            self.left -= len(text)
            if self.left < 0:
                self.output.write(f"... (a call's output is cut behind {PRINTED} characters)\n")
        return len(text)

    def flush(self) -> None:
        self.output.flush()


def _start_worker(cpu_s: float | None, prepare: Callable[[], None]) -> None:
    sys.stdout = BoundedOutput(sys.stdout)
    faulthandler.enable()
    if cpu_s is not None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_AS, (WORKER_MEMORY, WORKER_MEMORY))
    prepare()
