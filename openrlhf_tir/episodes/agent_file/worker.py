"""python -m openrlhf_tir.episodes.agent_file.worker FD: the process that executes an agent file. Started by process.py,
ends with its actor.

<- {"start": ...}      -> {"ready": true} or {"error": why}
<- {"run": i, ...}     -> {"done": i, "result": ..., "calls": [...]} or {"done": i, "error": why, ...}
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
from typing import Any

from ... import plugins
from ...errors import ConfigError
from ...loop_watch import LoopWatch
from ...user_code import Overrun, is_outage, suspended_at, traceback_of
from .answer import answer
from .instance import CallLate, Deadlines, recorded
from .llm_engine import RUN, LlmEngine, Run, sampling_params
from .place import AGENT, ARGUMENTS
from .wire import Message, frame, read


class Worker:
    def __init__(self, executor: Any, tokenizer: Any, start: Message, send: Any) -> None:
        self.executor, self.tokenizer, self.send = executor, tokenizer, send
        self.file, self.max_length = plugins.source_file(type(executor)), start["max_length"]
        self.idle_s = float(start["idle_s"])
        self.watch = LoopWatch({self.file} if self.file else ())
        self.engine = LlmEngine(send, tokenizer)
        self.runs: dict[int, asyncio.Task[None]] = {}
        accepts = inspect.signature(executor.execute).parameters
        self.images = (
            {"images": None} if "images" in accepts or any(p.kind is p.VAR_KEYWORD for p in accepts.values()) else {}
        )
        if isinstance(cls := getattr(executor, "agent_instance_cls", None), type):
            executor.agent_instance_cls = recorded(
                cls, Deadlines(reset=start["reset_timeout_s"], step=start["step_timeout_s"])
            )

    def handle(self, message: Message) -> None:
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
        run = Run(message["run"])
        RUN.set(run)
        late = outage = False
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
            said: Message = {"result": answer(result)}
        except CallLate as e:
            at = plugins.raised_at(e.__cause__, self.file) if e.__cause__ else None
            said, late = {"error": f"{at}: {e}" if at else str(e)}, True
        except (Exception, SystemExit, Overrun) as e:
            outage = isinstance(e, Exception) and is_outage(e)
            trace = traceback_of(e, self.file)
            said = {"error": f"{plugins.raised_at(e, self.file) or self.file}: {type(e).__name__}: {e}"}
        facts = {"calls": run.calls, "late": late, "outage": outage, "traceback": trace}
        self.send({"done": run.number, **facts, **said})


async def _serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    loop = asyncio.get_running_loop()

    def send(message: Message) -> None:
        loop.call_soon_threadsafe(writer.write, frame(message))

    first = await read(reader)
    if first is None:
        return
    try:
        worker = _started(first["start"], send)
    except ConfigError as e:
        send({"error": str(e)})
        await asyncio.sleep(0)
        await writer.drain()
        return
    worker.watch.start()
    send({"ready": True})
    while (message := await read(reader)) is not None:
        worker.handle(message)


def _started(start: Message, send: Any) -> Worker:
    """Raises ConfigError when the file cannot be loaded or its executor not be made."""
    cls = plugins.load(AGENT, start["file"])
    try:
        executor = cls()
    except Exception as e:
        at = plugins.raised_at(e, plugins.source_file(cls)) or plugins.location(cls)
        raise ConfigError(
            f"train.agent_func_path = {start['file']!r}: {at}: {type(e).__name__}: {e}."
            " It must be made without arguments."
        ) from e
    from transformers import AutoTokenizer

    return Worker(executor, AutoTokenizer.from_pretrained(start["model"]), start, send)


def _leave_with(connection: socket.socket) -> None:
    """Ends this process when the other side is gone, even while the file blocks the event loop."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP | select.POLLHUP)
    poll.poll()
    os._exit(0)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_leave_with, args=(connection,), name="leave with the actor", daemon=True).start()
    asyncio.run(_serve(connection))


if __name__ == "__main__":
    main()
