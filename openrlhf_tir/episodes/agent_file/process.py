"""One worker process of an agent file, seen from its rollout actor: started when it is needed, replaced when it dies or
blocks.

A run that is not heard of for `idle_s` is lost. If its process does not answer either, the file blocks it: it is
killed, with all its runs."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...backoff import backoff_s, jittered
from ...deadlines import Deadline, within
from ...errors import AgentError, AgentLost, ConfigError, EnvError, EnvLost, EnvTimeout, InfraError
from .wire import Message, frame, read

PONG = Deadline(30.0, "PONG")
"""A process whose event loop is free answers in milliseconds, on a starved host in seconds."""
WHERE_S = 1.0
"""Seconds within which a process that is not blocked says where a run waits."""
LOG_END = 600
"""Characters of a worker's log that a message shows."""

Answer = Callable[["Run | None", Message], Awaitable[Message]]


@dataclass(eq=False)
class Run:
    """One `execute`. `turns` counts its requests; `since`: version that sampled its first token; `answers`: those being
    answered; `fault`: the engine's."""

    number: int
    said: asyncio.Future[Message]
    turns: int = 0
    since: int | None = None
    open: int = 0
    answers: set[asyncio.Task[None]] = field(default_factory=set)
    fault: InfraError | None = None
    silence: asyncio.TimerHandle | None = None
    waits: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process has said where the run waits."""
    waits_at: str | None = None


@dataclass(eq=False)
class Process:
    """`start`: the first message; `answer(run, request)`: what the engine says. Belongs to one event loop."""

    start: Message
    answer: Answer
    log: Path
    start_deadline: Deadline
    idle: Deadline
    secrets: tuple[str, ...] = ()
    """Environment variables that are none of the file's business."""
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
    """The engine's last, and when."""

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def call(self, number: int, message: Message) -> Message:
        """Run `execute` as `number`. Raises AgentError for the file's own fault, EnvTimeout for a call that missed its
        deadline, AgentLost when it was silent for too long, EnvLost when the process died: that hits all its runs."""
        await self.ready()
        clock = asyncio.get_running_loop()
        began = clock.time()
        run = self.runs[number] = Run(number, clock.create_future())
        self._send({"run": run.number, **message})
        self._heard(run)
        try:
            said = await run.said
        finally:
            self._over(run)
        if "error" not in said:
            return said
        if run.fault:
            raise run.fault
        if self._fault and self._fault[0] >= began:
            raise self._fault[1]  # asked from a thread of the file's own, or beside it: the engine's fault, most likely
        if said["late"]:
            raise EnvTimeout(said["error"])
        if said["outage"]:
            raise EnvError(f"train.agent_func_path: {said['error']}. What it asks does not answer.")
        error = AgentError(
            f"train.agent_func_path: {said['error']}. It is a bug in that line, or a task that it does not expect."
        )
        error.traceback = said["traceback"]
        raise error

    @property
    def identity(self) -> str:
        """The name of the process that runs now: what goes down with it hits all its runs."""
        return f"{self.log.stem}/{self.starts}"

    async def ready(self) -> None:
        """`up` amid a run: a file that was loaded before and cannot be now is the machine's fault, EnvLost."""
        try:
            await self.up()
        except ConfigError as e:
            raise EnvLost(f"The agent file's process does not start again: {e}") from None

    async def up(self) -> None:
        """The process is there and has loaded the file. Raises ConfigError when the file cannot be loaded, EnvLost when
        it does not start."""
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
        environ = {k: v for k, v in os.environ.items() if k not in self.secrets}
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
            if run := self.runs.get(message["waits"]):
                run.waits_at = message["at"]
                run.waits.set()
        elif "done" in message:
            run = self.runs.get(message["done"])
            if run and not run.said.done():
                run.said.set_result(message)
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
        concerned = [run] if run else list(self.runs.values())
        for r in concerned:
            r.open += 1
            self._heard(r)
        try:
            said = await self.answer(run, message)
        except InfraError as e:
            said = {"error": str(e)}
            self._fault = (asyncio.get_running_loop().time(), e)
            if run:
                run.fault = e
        except ValueError as e:
            said = {"error": str(e)}
        finally:
            for r in concerned:
                r.open -= 1
                self._heard(r)
        self._send({"completion": message["generate"], **said})

    def _heard(self, run: Run) -> None:
        """A sign of life. While a request is being answered it is not the file that is waited for."""
        if run.silence:
            run.silence.cancel()
        run.silence = None
        if not run.open and not run.said.done():
            run.silence = asyncio.get_running_loop().call_later(self.idle.seconds, self._silent, run)

    def _silent(self, run: Run) -> None:
        task = asyncio.create_task(self._give_up(run), name="ping agent file")
        self._answers[-run.number] = task  # held, or it may be collected
        task.add_done_callback(lambda task: self._answers.pop(-run.number, None))

    async def _give_up(self, run: Run) -> None:
        """End a run that was silent for too long, with the line where it waits, and its process if that is blocked."""
        self._send({"where": run.number})
        with suppress(TimeoutError):
            async with asyncio.timeout(WHERE_S):
                await run.waits.wait()
        if not run.said.done():
            at = f" It waits at {run.waits_at}." if run.waits_at else ""
            run.said.set_exception(
                AgentLost(
                    f"execute of the agent file was not heard of for {self.idle}.{at} See {self.log}, or raise that."
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

    def _over(self, run: Run) -> None:
        self.runs.pop(run.number, None)
        if run.silence:
            run.silence.cancel()
        for answer in list(run.answers):
            answer.cancel()
        if not run.said.done() or run.said.cancelled() or run.said.exception():
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
            if not run.said.done():
                run.said.set_exception(lost)

    def _log_end(self) -> str:
        try:
            return f"Its log ({self.log}) ends: {self.log.read_text(errors='replace')[-LOG_END:].strip()}"
        except OSError as e:
            return f"Its log cannot be read: {e}."

    def _kill(self) -> None:
        if self._process and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """End the process; runs that are left are lost."""
        if self._writer is not None:
            self._writer.close()
        self._kill()
        if self._listening:
            await asyncio.gather(self._listening, return_exceptions=True)
        if self._process:
            await self._process.wait()
