"""One worker process of an agent file, as its rollout actor sees it: started when needed, replaced when it dies or
blocks.

A run that gives no sign of life for `idle` is lost. If its process does not answer a ping either, the file blocks the
process, which is killed with all its runs.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ....errors import AgentError, AgentLost, ConfigError, EnvError, EnvLost, EnvTimeout, InfraError
from ....ports import Engine
from ....waiting.backoff import backoff_s, jittered
from ....waiting.deadlines import Deadline, within
from .wire import Message, frame, read

PONG = Deadline(30.0, "PONG")
"""Deadline of a ping. A process whose event loop is free answers in milliseconds, on a starved host in seconds."""
WHERE_S = 1.0
"""Seconds within which a process that is not blocked tells at which line a run waits."""
LOG_END_CHARS = 600
"""Characters from the end of a worker's log that a message shows."""

Answer = Callable[["Run | None", Message], Awaitable[Message]]


@dataclass
class Requests:
    """The requests of one run, and how they reach the engine.

    Attributes:
        engine: The engine, with the queue of the run's environment.
        request_id: Prefix of the engine's request ids.
        seed_of: Turn, from 0 -> seed of its request.
        turns: Requests that the run has made.
        first_version: Policy version that sampled its first token; None before that.
    """

    engine: Engine
    request_id: str
    seed_of: Callable[[int], int | None]
    turns: int = 0
    first_version: int | None = None


@dataclass(eq=False)
class Run:
    """One `execute`.

    Attributes:
        number: Its number in messages.
        result: The worker's last message about it.
        requests: Its requests.
        open_requests: Requests that the engine is answering, those of unknown runs included.
        answers: Tasks that answer its own requests.
        fault: The engine's fault on one of its requests.
        silence: Timer that ends the run if there is no sign of life.
        location_known: Set once the process has told where the run waits.
        location: "file:line" where it waits; None if that is not in the file.
    """

    number: int
    result: asyncio.Future[Message]
    requests: Requests
    open_requests: int = 0
    answers: set[asyncio.Task[None]] = field(default_factory=set)
    fault: InfraError | None = None
    silence: asyncio.TimerHandle | None = None
    location_known: asyncio.Event = field(default_factory=asyncio.Event)
    location: str | None = None


@dataclass(eq=False)
class Process:
    """The process. It belongs to one event loop.

    Attributes:
        start: The first message.
        answer: (run or None, request) -> what the engine answers.
        log: File for the process's output.
        start_deadline: Deadline of its start, in which it loads the file.
        idle: How long a run may give no sign of life.
        secrets: Environment variables that the file must not see.
        pong: Deadline of a ping.
        starts: How often the process was started.
        runs: The runs that go on, by number.
    """

    start: Message
    answer: Answer
    log: Path
    start_deadline: Deadline
    idle: Deadline
    secrets: tuple[str, ...] = ()
    pong: Deadline = PONG
    starts: int = 0
    runs: dict[int, Run] = field(default_factory=dict)
    _numbers: int = 0
    _failures: int = 0
    _process: asyncio.subprocess.Process | None = None
    _writer: asyncio.StreamWriter | None = None
    _listening: asyncio.Task[None] | None = None
    _answers: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _pong: asyncio.Event = field(default_factory=asyncio.Event)
    _fault: tuple[float, InfraError] | None = None
    """Event loop time in seconds and error of the engine's last fault."""

    async def call(self, message: Message, requests: Requests) -> Message:
        """Run `execute` and return the worker's message.

        Args:
            message: The arguments.
            requests: How its requests reach the engine.

        Raises:
            AgentError: The file's code is wrong.
            EnvTimeout: A reset or step missed its deadline.
            EnvError: A service that the file calls does not answer.
            AgentLost: The run gave no sign of life for too long.
            EnvLost: The process died. That hits all its runs.
            InfraError: The engine failed.
        """
        await self.ready()
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._numbers += 1
        run = Run(self._numbers, loop.create_future(), requests)
        self.runs[run.number] = run
        self._send({"run": run.number, **message})
        self._note_sign_of_life(run)
        try:
            result = await run.result
        finally:
            self._end(run)
        if "error" not in result:
            return result
        if run.fault:
            raise run.fault
        if self._fault and self._fault[0] >= began:
            # The request came from a thread of the file's own, or from another run. The engine's fault is the likeliest
            # cause of the error.
            raise self._fault[1]
        if result["late"]:
            raise EnvTimeout(result["error"])
        if result["outage"]:
            raise EnvError(f"train.agent_func_path: {result['error']}. A service that it calls does not answer.")
        error = AgentError(
            f"train.agent_func_path: {result['error']}. It is a bug in that line, or a task that it does not expect."
        )
        error.user_traceback = result["traceback"]
        raise error

    @property
    def identity(self) -> str:
        """Name of the process that runs now. Another start has another name."""
        return f"{self.log.stem}/{self.starts}"

    async def ready(self) -> None:
        """Like `up`, in the middle of a run.

        Raises:
            EnvLost: The process does not start. If it cannot load the file that it could load before, the machine is at
                fault.
        """
        try:
            await self.up()
        except ConfigError as e:
            raise EnvLost(f"The agent file's process does not start again: {e}") from None

    async def up(self) -> None:
        """Start the process if it is not running, with a growing pause after each failure.

        Raises:
            ConfigError: The file cannot be loaded.
            EnvLost: The process ended while it started.
            DeadlineMissed: It did not start in time.
        """
        async with self._starting:
            if self._writer is not None:
                return
            if self._failures:
                await asyncio.sleep(jittered(backoff_s(self._failures - 1)))
            self._failures += 1
            await self._spawn()
            self._failures = 0

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        environ = {name: value for name, value in os.environ.items() if name not in self.secrets}
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with theirs, self.log.open("ab") as log:
            command = (sys.executable, "-m", f"{__package__}.worker", str(theirs.fileno()))
            self._process = await asyncio.create_subprocess_exec(
                *command,
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
            )
        self.starts += 1
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            writer.write(frame({"start": self.start}))
            hello = await within(self.start_deadline, read(reader), "The start of the agent file's process")
        except BaseException:
            writer.close()
            self._kill()
            raise
        if hello is None:
            writer.close()
            raise EnvLost(f"The agent file's process ended while it started. {self._log_end()}")
        if "error" in hello:
            writer.close()
            raise ConfigError(hello["error"])
        self._writer = writer
        self._listening = asyncio.create_task(self._listen(reader), name="agent file")

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while (message := await read(reader)) is not None:
                self._handle(message)
        finally:
            self._died()

    def _handle(self, message: Message) -> None:
        if "pong" in message:
            self._pong.set()
        elif "waits" in message:
            run = self.runs.get(message["waits"])
            if run:
                run.location = message["at"]
                run.location_known.set()
        elif "done" in message:
            run = self.runs.get(message["done"])
            if run and not run.result.done():
                run.result.set_result(message)
        elif "abort" in message:
            if task := self._answers.get(message["abort"]):
                task.cancel()
        else:
            number = message["generate"]
            run = self.runs.get(message["run"]) if message["run"] is not None else None
            task = self._answers[number] = asyncio.create_task(
                self._generate(run, message), name=f"agent file, request {number}"
            )
            task.add_done_callback(lambda task: self._answers.pop(number, None))
            if run:
                run.answers.add(task)
                task.add_done_callback(run.answers.discard)

    async def _generate(self, run: Run | None, message: Message) -> None:
        # A request whose run is not known may be any run's, so it is a sign of life of all of them.
        runs = [run] if run else list(self.runs.values())
        for waiting in runs:
            waiting.open_requests += 1
            self._note_sign_of_life(waiting)
        try:
            reply = await self.answer(run, message)
        except InfraError as e:
            reply = {"error": str(e)}
            self._fault = (asyncio.get_running_loop().time(), e)
            if run:
                run.fault = e
        except ValueError as e:
            reply = {"error": str(e)}
        finally:
            for waiting in runs:
                waiting.open_requests -= 1
                self._note_sign_of_life(waiting)
        self._send({"completion": message["generate"], **reply})

    def _note_sign_of_life(self, run: Run) -> None:
        """Start the run's silence timer anew. It stands still while the file waits for the engine."""
        if run.silence:
            run.silence.cancel()
        run.silence = None
        if not run.open_requests and not run.result.done():
            run.silence = asyncio.get_running_loop().call_later(self.idle.seconds, self._start_give_up, run)

    def _start_give_up(self, run: Run) -> None:
        task = asyncio.create_task(self._give_up(run), name="ping agent file")
        # A task that nobody holds may be garbage-collected. Requests have numbers from 0, so a negative one is free.
        self._answers[-run.number] = task
        task.add_done_callback(lambda task: self._answers.pop(-run.number, None))

    async def _give_up(self, run: Run) -> None:
        """End a run that was silent for too long, with the line where it waits; kill its process if that is blocked."""
        self._send({"where": run.number})
        with suppress(TimeoutError):
            async with asyncio.timeout(WHERE_S):
                await run.location_known.wait()
        if not run.result.done():
            location = f" It waits at {run.location}." if run.location else ""
            run.result.set_exception(
                AgentLost(
                    f"execute of the agent file gave no sign of life for {self.idle}.{location} See {self.log}, or"
                    " raise the deadline."
                )
            )
        await self._kill_if_blocked()

    async def _kill_if_blocked(self) -> None:
        self._pong.clear()
        self._send({"ping": True})
        try:
            await within(self.pong, self._pong.wait(), "The agent file's answer to a ping")
        except InfraError:
            self._kill()

    def _end(self, run: Run) -> None:
        self.runs.pop(run.number, None)
        if run.silence:
            run.silence.cancel()
        for answer in list(run.answers):
            answer.cancel()
        if not run.result.done() or run.result.cancelled() or run.result.exception():
            self._send({"cancel": run.number})

    def _send(self, message: Message) -> None:
        if self._writer is not None:
            self._writer.write(frame(message))

    def _died(self) -> None:
        self._writer = None
        self._kill()
        for task in list(self._answers.values()):
            task.cancel()
        lost = EnvLost(f"The agent file's process ended; the next sample starts another. {self._log_end()}")
        for run in self.runs.values():
            if not run.result.done():
                run.result.set_exception(lost)

    def _log_end(self) -> str:
        try:
            return f"Its log ({self.log}) ends: {self.log.read_text(errors='replace')[-LOG_END_CHARS:].strip()}"
        except OSError as e:
            return f"Its log cannot be read: {e}."

    def _kill(self) -> None:
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """End the process. Runs that go on are lost."""
        if self._writer is not None:
            self._writer.close()
        self._kill()
        if self._listening:
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._process:
            await self._process.wait()
