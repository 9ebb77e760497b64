"""Run functions in worker processes with a budget of CPU, a deadline and a memory limit.

    the call uses up its CPU            CpuSpent: what it was given makes it run on and on; the `error` of the function,
                                        or RewardError, if that is user code
    it misses its deadline              Late: the machine is slow, since the call has not had the CPU that it may use
    its worker dies twice               VerifierError; the `error` of the function, or RewardError, if user code ended
                                        the worker by a crash. (os._exit in a user's file ends no worker:
                                        user_code/exits.py makes it an exception at its line.)

The wall clock alone cannot tell the first two apart: on a starved host a check of milliseconds misses five seconds. So
the kernel counts the CPU (ITIMER_PROF) and ends the worker with SIGPROF, even inside one endless operation on big
integers, where Python runs no signal handler.

User code is interrupted by a handler first, so that the error has its line. If Python does not come to run the handler,
or the code catches the interrupt, SIGVTALRM ends the worker KILL_AFTER_S later (ITIMER_VIRTUAL). On that signal and in
a crash faulthandler writes to a file which line ran, and the error names it. A call into a library that never returns
and uses no CPU of its own is Late: nothing tells it from a machine that has no time for it.

A worker that dies for another reason is replaced, and the call is made once more. One that is killed while it has no
call breaks pebble's pool as a whole: then all processes are replaced, and the calls under way are made once more. The
processes start with the first call, so that a pool that nobody needs costs nothing.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import logging
import multiprocessing
import multiprocessing.forkserver
import os
import re
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from ..errors import MethodError, RewardError, VerifierError
from ..user_code.failures import Overrun, Starved
from ..waiting.daemon_threads import in_daemon_thread
from ..waiting.deadlines import Deadline
from .checking import symbolic

if TYPE_CHECKING:
    from pebble import ProcessPool

WORKER_MEMORY = 4 << 30
"""Bytes of address space of a worker, so that 9^(9^9) ends in a MemoryError and not with the machine."""
ATTEMPTS = 2
"""Number of workers that try a call."""
TAKE_S = 120.0
"""Seconds within which the processes must be started, and a free one must accept a call: two seconds, many more on a
starved host."""
LOOK_S = 1.0
"""Seconds between two looks at whether the pool of a call still works: pebble forgets a call that it accepts at the
moment at which it breaks."""
CLOSE_S = 10.0
"""Seconds within which the workers must be stopped. It takes a moment, unless one of them is just being started: pebble
waits for it without a limit."""
INTERRUPT_AT = 0.95
"""Share of the deadline after which user code is interrupted, so that the error has its line. Code that no signal
handler can stop is killed with its worker: at the deadline, or after STRETCH deadlines if it has a budget of CPU."""
STARVED = 0.5
"""Share of its time for which a call must have waited for a core to be late because of the machine."""
STRETCH = 4
"""Number of deadlines after which the worker of user code is killed, if the code has a budget of CPU. While the machine
has no core for it, its deadline begins again: an endless loop then uses up its CPU and is reported as such."""
PRINTED = 2000
"""Characters that a call of user code may print."""
KILL_AFTER_S = 1.0
"""Seconds of its own CPU (the kernel's left out) that user code has left after the interrupt."""
_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
_OWN_EXITS = frozenset([*range(256), *(-number for number in _CRASHES)])
"""Exit codes of a worker that user code has ended. A kill comes from outside, usually because memory is short."""
log = logging.getLogger(__name__)


FORKSERVER = multiprocessing.get_context("forkserver")
"""How workers are started. Not by fork: the caller's process has threads (engine, event loop) whose locks a forked
child would inherit."""
_ENVIRONMENT_LOCK = threading.Lock()
"""Held while the environment is changed for the server that forks the workers."""


class Limits(NamedTuple):
    """What one call may use.

    Attributes:
        wall: Its deadline, from the moment at which a worker takes it.
        cpu: Its budget of CPU; None: neither CPU nor memory are limited.
    """

    wall: Deadline
    cpu: Deadline | None = None


class CpuSpent(VerifierError):
    """Raised when a call used up its CPU."""

    out_of_time = True


class Late(VerifierError):
    """Raised when a call was not over in time, though it had CPU left."""

    out_of_time = True


def _asked_to_stop() -> bool:
    """Return True if somebody has cancelled the current task."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Workers:
    """A pool of worker processes. It belongs to the event loop that uses it."""

    def __init__(self, count: int, limits: Limits, *, count_name: str = "workers") -> None:
        """Create a pool without starting its processes.

        Args:
            count: Number of processes.
            limits: What one call may use.
            count_name: The setting that `count` comes from, for messages.
        """
        self.count = count
        self.limits = limits
        self.take_s = TAKE_S
        self.prepare: Callable[[], None] = symbolic.warm
        """Called in each worker when it starts."""
        self._turns = asyncio.Semaphore(count)
        self._count_name = count_name
        self._pool: ProcessPool | None = None
        self._calls: set[Future[Any]] = set()
        """The calls that the pool has. A call that is cancelled after it left the set is made once more."""
        self._closed = False
        self._stacks: tempfile.TemporaryDirectory[str] | None = None
        """Where each worker's faulthandler writes, to a file that is named by its process id."""
        self.how_ended: Callable[[int, str], Awaitable[str]] | None = None
        """Given a process id and what is known, returns how that worker ended, in words; None: nobody watches them."""

    @property
    def started(self) -> bool:
        """True if the processes have been started."""
        return self._pool is not None

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`, computed in a worker. A cancelled call is taken back, or its worker is killed.

        Raises:
            CpuSpent: The call used up its CPU.
            MethodError: User code used up its CPU, or ended its worker by a crash.
            Late: The call missed its deadline, or no worker accepted it.
            VerifierError: ATTEMPTS workers died.
            CancelledError: The workers are closed.
            Exception: Whatever the function raised.
        """
        from pebble import ProcessExpired

        death: BaseException | None = None
        exit_code: int | None = None
        where = ""
        async with self._turns:  # so that a call that is handed over finds a worker that is free
            for _ in range(ATTEMPTS):
                try:
                    return await self._attempt(function, *args)
                except ProcessExpired as expired:
                    where = self._where(expired.pid, function)
                    if fault := self._cpu_fault(function, expired.exitcode, where):
                        raise fault from expired
                    death = expired
                    exit_code = expired.exitcode
                    if self.how_ended is not None:
                        words = await self.how_ended(expired.pid, str(expired))
                        log.warning("a worker died in %s: %s", function.__name__, words)
                        death = VerifierError(words)
                except BrokenProcessPool as broken:
                    death = broken
                    exit_code = None
        if _is_user_code(function) and exit_code in _OWN_EXITS:
            raise _user_code_fault(
                function,
                f"ended its process {ATTEMPTS} times{where}, with exit code {exit_code}: a library crashed in it, or"
                " ended the process.",
            )
        raise VerifierError(
            f"The worker died {ATTEMPTS} times in {function.__name__} ({death})."
            f" See its exit code; {self._count_name} or memory may be too small."
        )

    async def _attempt(self, function: Callable[..., Any], *args: Any) -> Any:
        """Make a call in a worker once.

        Raises:
            ProcessExpired: The worker died.
            BrokenProcessPool: The pool broke, or was replaced meanwhile.
            Late: The call missed its deadline, or no worker accepted it.
            CancelledError: The call was cancelled, or the workers are closed.
            Exception: Whatever the function raised.
        """
        pool = await self._started()
        # the deadline counts from the moment at which a worker takes the call
        wall_s = self.limits.wall.seconds * _stretch(self.limits, function)
        try:
            call = pool.schedule(_budgeted, args=(self.limits, function, *args), timeout=wall_s)
        except (RuntimeError, OSError) as error:  # it broke just now, or cannot start its processes
            self._replace(pool)
            raise BrokenProcessPool(str(error)) from error
        result = asyncio.wrap_future(call)
        self._calls.add(call)
        try:
            async with asyncio.timeout(self.take_s + wall_s):
                while not result.done():
                    await asyncio.wait([result], timeout=LOOK_S)
                    if not result.done() and not pool.active:
                        raise BrokenProcessPool("its pool broke")
                return result.result()
        except TimeoutError as late:
            if not call.done():  # no worker has taken it
                self._replace(pool)
            raise self._late(function) from late
        except BrokenProcessPool:
            self._replace(pool)
            raise
        except asyncio.CancelledError:
            if call in self._calls or _asked_to_stop():
                raise
            raise BrokenProcessPool("its pool was replaced") from None
        finally:
            self._calls.discard(call)
            call.cancel()

    def _cpu_fault(self, function: Callable[..., Any], exit_code: int, where: str) -> CpuSpent | MethodError | None:
        """Return the error of a call that used up its CPU, by the signal that ended its worker; None: another end."""
        spent = f"used up {self.limits.cpu} of CPU"
        if exit_code == -signal.SIGPROF and not _is_user_code(function):
            return CpuSpent(f"{function.__name__} {spent}. Raise it, or make the check quicker.")
        if exit_code == -signal.SIGVTALRM and _is_user_code(function):
            fault = _user_code_fault(
                function,
                f"{spent}{where} and could not be interrupted: a call into a library did not return, or the code caught"
                " the interrupt. Make it quicker, or raise that.",
            )
            fault.out_of_time = True
            return fault
        return None

    def _late(self, function: Callable[..., Any]) -> Late:
        """Return the error of a call that missed its deadline."""
        message = f"{function.__name__} was not over within {self.limits.wall}"
        if self.limits.cpu is None:
            return Late(f"{message}. Make it quicker, or raise that.")
        return Late(
            f"{message}, without having had {self.limits.cpu} of CPU: the machine is starved, or it waits for"
            " something. Give it more cores, or raise the deadline."
        )

    def _where(self, pid: int, function: Callable[..., Any]) -> str:
        """Return " at FILE:LINE", where Python was when a fault ended a worker: in the function's own file, if one of
        its lines ran. "" if nothing was written."""
        if self._stacks is None:
            return ""
        path = Path(self._stacks.name, str(pid))
        written = path.read_text(errors="replace") if path.exists() else ""
        path.unlink(missing_ok=True)
        lines = re.findall(r'File "(.+)", line (\d+)', written.partition("Current thread")[2].partition("\n\n")[0])
        if not lines:
            return ""
        own = getattr(function, "name", "").rpartition(":")[0]
        file, line = next((found for found in lines if found[0] == own), lines[0])
        return f" at {file}:{line}"

    def _replace(self, pool: Any) -> None:
        """Stop a pool of processes, and have its calls made once more. The next call starts others."""
        if pool is self._pool:
            log.warning("The workers are replaced: one was killed while it had no call, or none accepted a call.")
            self._pool = None
            _stopping(pool)
            calls = self._calls
            self._calls = set()
            for call in calls:  # pebble would not end them
                call.cancel()

    async def warm(self) -> None:
        """Start all workers, so that the first calls do not have to wait for that."""
        pool = await self._started()
        futures = [pool.schedule(symbolic.warm) for _ in range(self.count)]
        await asyncio.gather(*map(asyncio.wrap_future, futures))

    async def _started(self) -> ProcessPool:
        """Return the pool of processes, and start it if necessary.

        Raises:
            Late: The server that forks them did not do so in time.
            VerifierError: It ended.
            CancelledError: The workers are closed.
        """
        if self._pool is not None and not self._pool.active:
            self._replace(self._pool)
        if self._pool is not None:
            return self._pool
        path_settings = _start_fork_server()
        try:
            await asyncio.wait_for(in_daemon_thread(_wait_for_fork_server), self.take_s)
        except TimeoutError as late:
            raise Late(f"No worker could be started within {self.take_s:g} s: the machine is starved.") from late
        except (EOFError, OSError) as ended:
            raise VerifierError(
                "No worker could be started: the process that forks them ended. What it said is on standard error."
            ) from ended
        if self._closed:
            raise asyncio.CancelledError
        if self._pool is None:  # no other call has started it meanwhile
            from pebble import ProcessPool

            if self._stacks is None:
                self._stacks = tempfile.TemporaryDirectory(prefix="tir-workers-")
            self._pool = ProcessPool(
                max_workers=self.count,
                context=FORKSERVER,
                initializer=_start_worker,
                initargs=(self.limits.cpu is not None, self.prepare, self._stacks.name, path_settings),
            )
        return self._pool

    def close(self) -> None:
        """Kill the workers for good. Calls that run or wait raise CancelledError.

        A worker that outlives CLOSE_S ends with this process.
        """
        self._closed = True
        for call in self._calls:
            call.cancel()
        if self._pool is not None:
            pool = self._pool
            self._pool = None
            stopping = _stopping(pool)
            stopping.join(CLOSE_S)
            if stopping.is_alive():
                log.warning("The workers were not stopped within %g s; they end with this process.", CLOSE_S)
        if self._stacks is not None:
            self._stacks.cleanup()
            self._stacks = None


def _start_fork_server() -> Mapping[str, str | None]:
    """Start the process that forks the workers, if necessary.

    It imports sympy and this package and warms up once, so that each worker, the successor of a killed one too, is
    there in milliseconds. In Python 3.11 it ignores the sys.path that it is given: it would take whatever has a name of
    ours in the current directory, such as another copy of this package. So the environment tells it our path.

    Returns:
        The variables of the environment that are otherwise in the server, as they are in this process.
    """
    FORKSERVER.set_forkserver_preload(["openrlhf_tir.rewards.checking.warm_on_import", __name__, f"{__package__}.own"])
    path = os.pathsep.join(os.path.abspath(directory) for directory in sys.path)
    settings = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    with _ENVIRONMENT_LOCK:
        before = {name: os.environ.get(name) for name in settings}
        _set_environment(settings)
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            _set_environment(before)
    return before


def _wait_for_fork_server() -> None:
    """Return when the server forks processes. It imports for seconds before."""
    first = FORKSERVER.Process(target=int, daemon=True)
    first.start()
    first.join()


def _set_environment(values: Mapping[str, str | None]) -> None:
    """Set variables of the environment; None removes one."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _stopping(pool: Any) -> threading.Thread:
    """Return the thread that stops a pool of processes."""

    def stop() -> None:
        pool.stop()
        pool.join()

    thread = threading.Thread(target=stop, name="stop workers", daemon=True)
    thread.start()
    return thread


def _user_code_fault(function: Callable[..., Any], fault: str) -> MethodError:
    """Return the error of user code whose worker was ended."""
    error: type[MethodError] = getattr(function, "error", RewardError)
    return error(f"{getattr(function, 'name', function.__name__)} {fault}")


def _budgeted(limits: Limits, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in the worker. The kernel kills this process when the call has used up its CPU.

    User code (`user_code = True` on the callable) is interrupted first, so that the error has its file and line. The
    kill follows for code that no signal handler can stop.

    Raises:
        Late: The interrupt met no line of user code. (An Overrun is not an Exception and must not get past the pool.)
        Exception: Whatever the function raised.
    """
    is_user_code = _is_user_code(function)
    # An interrupt of the call before may have come while its own timers were being cleared.
    for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(timer, 0)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    if is_user_code and isinstance(sys.stdout, BoundedOutput):
        sys.stdout.begin()
    if is_user_code and limits.cpu:
        signal.signal(signal.SIGPROF, _interrupts(f"it used up {limits.cpu} of CPU"))
        signal.setitimer(signal.ITIMER_VIRTUAL, limits.cpu.seconds + KILL_AFTER_S)
    if is_user_code:
        wall_s = limits.wall.seconds
        extensions = _stretch(limits, function) - 1
        signal.signal(
            signal.SIGALRM, _interrupts(f"it was not over within {limits.wall}", _starvation(), extensions, wall_s)
        )
        signal.setitimer(signal.ITIMER_REAL, wall_s * INTERRUPT_AT)
    if limits.cpu:
        signal.setitimer(signal.ITIMER_PROF, limits.cpu.seconds)
    try:
        return function(*args)
    except Overrun as overrun:
        # In the function's own lines LoadedFunction.guarded catches it: its module was being loaded, or its result was
        # read.
        name = getattr(function, "__name__", type(function).__name__)
        raise Late(
            f"{name}: {overrun}: it was still being loaded, or its result was being read. Raise that."
        ) from overrun
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if is_user_code:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _is_user_code(function: Callable[..., Any]) -> bool:
    return getattr(function, "user_code", False)


def _stretch(limits: Limits, function: Callable[..., Any]) -> int:
    """Return how many deadlines a call gets at most: several while the machine has no core for it."""
    return STRETCH if limits.cpu and _is_user_code(function) else 1


def _starvation() -> Callable[[], bool]:
    """Return a function that tells whether this thread has waited for a core for most of the time since now."""
    began = time.monotonic()
    waited = _waited_s()
    return lambda: _waited_s() - waited > (time.monotonic() - began) * STARVED


def _waited_s() -> float:
    """Return the seconds for which this thread had to wait for a core; 0 if the kernel does not count them."""
    try:
        with open("/proc/thread-self/schedstat") as stat:
            return int(stat.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _interrupts(
    reason: str, starved: Callable[[], bool] = lambda: False, extensions: int = 0, wall_s: float = 0.0
) -> Callable[[int, Any], None]:
    """Return a signal handler that raises Overrun in the running code.

    On a starved host the deadline begins again, `extensions` times. After that the handler raises Starved, because the
    call is late through the machine. That error has a line as well.

    Args:
        reason: Why the call is interrupted.
        starved: Returns True if the machine has had no core for the call.
        extensions: Number of times that the deadline may begin again.
        wall_s: The deadline in seconds.
    """
    remaining = extensions

    def handler(number: int, frame: Any) -> None:
        nonlocal remaining
        if remaining and number == signal.SIGALRM and starved():
            remaining -= 1
            signal.setitimer(signal.ITIMER_REAL, wall_s * INTERRUPT_AT)
            return
        if starved():
            raise Starved(f"{reason}, and for most of that time the machine had no core for it")
        raise Overrun(reason)

    return handler


class BoundedOutput(io.TextIOBase):
    """Standard output of a worker, which passes on the first PRINTED characters of each call.

    A reward that prints its arguments is called thousands of times, and nobody could read the console.
    """

    def __init__(self, output: TextIO) -> None:
        self.output = output
        self.remaining = PRINTED
        """Characters that the current call may still print."""

    def begin(self) -> None:
        """Begin to count: a call starts."""
        self.remaining = PRINTED

    def write(self, text: str) -> int:
        """See io.TextIOBase."""
        if self.remaining > 0:
            self.output.write(text[: self.remaining])
            self.remaining -= len(text)
            if self.remaining < 0:
                self.output.write(f"... (a call's output is cut behind {PRINTED} characters)\n")
        return len(text)

    def flush(self) -> None:
        """See io.TextIOBase."""
        self.output.flush()


def _start_worker(
    limited: bool, prepare: Callable[[], None], stacks: str, path_settings: Mapping[str, str | None]
) -> None:
    """Prepare a worker process before its first call. Faults write their stack to a file in the directory `stacks`.

    If its calls have a budget of CPU (`limited`), its memory is limited as well.
    """
    _set_environment(path_settings)
    sys.stdout = BoundedOutput(sys.stdout)
    # Open as long as the process lives.
    stack = os.open(Path(stacks, str(os.getpid())), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    faulthandler.enable(stack)
    if limited:
        faulthandler.register(signal.SIGVTALRM, stack, chain=True)  # writes, and then the signal ends the process
        resource.setrlimit(resource.RLIMIT_AS, (WORKER_MEMORY, WORKER_MEMORY))
    prepare()
