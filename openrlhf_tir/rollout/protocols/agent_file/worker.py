"""The process that executes an agent file: python -m openrlhf_tir.rollout.protocols.agent_file.worker FD.

process.py starts it, and it ends with its rollout actor. Messages (<- from the actor, -> to the actor):

    <- {"start": ...}      -> {"ready": true} or {"error": message}
    <- {"run": i, ...}     -> {"done": i, "result": ..., "calls": [...]} or {"done": i, "error": message, ...}
    <- {"cancel": i}
    -> {"generate": k, "run": i or null, "prompt", "sampling"}, {"abort": k}      <- {"completion": k, ...}
    <- {"where": i}        -> {"waits": i, "at": "file:line" or null}
    <- {"ping": true}      -> {"pong": true}          unless the file blocks the event loop
"""

from __future__ import annotations

import asyncio
import inspect
import os
import select
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any

from ....errors import ConfigError
from ....user_code import plugins
from ....user_code.failures import described, is_outage, suspended_at, traceback_of, user_code_errors
from ....user_code.loop_watch import LoopWatch
from .answer import answer
from .instance import CallLate, Deadlines, recorded
from .llm_engine import RUN, LlmEngine, Run, sampling_params
from .place import AGENT, ARGUMENTS
from .wire import Message, frame, read


class Worker:
    """Executes runs of one executor on one event loop."""

    def __init__(self, executor: Any, tokenizer: Any, start: Message, send: Callable[[Message], None]) -> None:
        """Prepare the executor.

        Args:
            executor: The file's AgentExecutor.
            tokenizer: The model's tokenizer.
            start: The actor's first message.
            send: Sends a message to the actor, from any thread.
        """
        self.executor = executor
        self.tokenizer = tokenizer
        self.send = send
        self.file = plugins.source_file(type(executor))
        self.max_length = start["max_length"]
        self.vocab_size = start["vocab_size"]
        self.idle_s = float(start["idle_s"])
        self.watch = LoopWatch({self.file} if self.file else ())
        self.engine = LlmEngine(send, tokenizer)
        self.runs: dict[int, asyncio.Task[None]] = {}
        parameters = inspect.signature(executor.execute).parameters
        accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        self.images = {"images": None} if "images" in parameters or accepts_any else {}
        instance_class = getattr(executor, "agent_instance_cls", None)
        if isinstance(instance_class, type):
            deadlines = Deadlines(reset=start["reset_timeout_s"], step=start["step_timeout_s"])
            executor.agent_instance_cls = recorded(instance_class, deadlines)

    def handle(self, message: Message) -> None:
        """Act on a message of the actor."""
        if "completion" in message:
            self.engine.answered(message)
        elif "run" in message:
            number = message["run"]
            self.runs[number] = asyncio.create_task(self._run(message), name=f"run {number}")
            self.runs[number].add_done_callback(lambda task: self.runs.pop(number, None))
        elif "cancel" in message:
            if task := self.runs.get(message["cancel"]):
                task.cancel()
        elif "where" in message:
            task = self.runs.get(message["where"])
            at = suspended_at(task.get_coro(), self.file) if task else None
            self.send({"waits": message["where"], "at": at})
        elif "ping" in message:
            self.send({"pong": True})

    async def _run(self, message: Message) -> None:
        """Run `execute` once and send its result or its error."""
        run = Run(message["run"])
        RUN.set(run)
        late = False
        outage = False
        trace = ""
        values = (
            message["prompt"],
            message["label"],
            sampling_params(**message["sampling"]),
            self.max_length,
            self.tokenizer,
            self.engine,
        )
        try:
            with self.watch.allows(self.idle_s):
                result = await self.executor.execute(**dict(zip(ARGUMENTS, values, strict=True)), **self.images)
            reply: Message = {"result": answer(result, self.vocab_size)}
        except CallLate as e:
            late = True
            line = plugins.raised_at(e.__cause__, self.file) if e.__cause__ else None
            reply = {"error": f"{line}: {e}" if line else str(e)}
        except user_code_errors() as e:
            outage = isinstance(e, Exception) and is_outage(e)
            trace = traceback_of(e, self.file)
            reply = {"error": f"{_place(e, self.file)}: {described(e)}"}
        details = {"calls": run.calls, "late": late, "outage": outage, "traceback": trace}
        self.send({"done": run.number, **details, **reply})


async def _serve(connection: socket.socket) -> None:
    """Load the file that the first message names, then act on messages until the actor is gone."""
    reader, writer = await asyncio.open_connection(sock=connection)
    loop = asyncio.get_running_loop()

    def send(message: Message) -> None:
        loop.call_soon_threadsafe(writer.write, frame(message))

    first = await read(reader)
    if first is None:
        return
    try:
        worker = _load_worker(first["start"], send)
    except ConfigError as e:
        send({"error": str(e)})
        await asyncio.sleep(0)
        await writer.drain()
        return
    worker.watch.start()
    send({"ready": True})
    while (message := await read(reader)) is not None:
        worker.handle(message)


def _load_worker(start: Message, send: Callable[[Message], None]) -> Worker:
    """Return the worker for the file.

    Raises:
        ConfigError: The file cannot be loaded, or its executor cannot be created.
    """
    cls = plugins.load(AGENT, start["file"])
    try:
        executor = cls()
    except Exception as e:
        at = plugins.raised_at(e, plugins.source_file(cls)) or plugins.location(cls)
        raise ConfigError(
            f"train.agent_func_path = {start['file']!r}: {at}: {described(e)}."
            " Its constructor must work without arguments."
        ) from e
    from transformers import AutoTokenizer

    return Worker(executor, AutoTokenizer.from_pretrained(start["model"]), start, send)


def _place(error: BaseException, file: str | None) -> str | None:
    """Return "file:line" of an error: of the method whose result is wrong, else where it was raised, else the file."""
    return getattr(error, "place", None) or plugins.raised_at(error, file) or file


def _exit_with_actor(connection: socket.socket) -> None:
    """End this process when the actor is gone, even if the file blocks the event loop."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP | select.POLLHUP)
    poll.poll()
    os._exit(0)


def main() -> None:
    """Serve the actor on the socket whose file descriptor is the first argument."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_exit_with_actor, args=(connection,), name="exit with actor", daemon=True).start()
    asyncio.run(_serve(connection))


if __name__ == "__main__":
    main()
