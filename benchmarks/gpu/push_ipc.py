"""Pushes from a learner to an engine on the same card, through its memory (CUDA IPC) and by file: seconds and pause.

The learner is a Zero3Rank in a process of its own, the engine is vLLM with as many requests under way as fit, and every
push is proved as in a run: digest, read-back, canary. Between two pushes the learner makes a step of fine-tuning, so
that the weights differ. On a CPU both processes share the host's memory, which shows that the stage works and nothing
else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from . import h200

PUSHES = 4
"""Pushes by each transport. The first one is not counted: it maps memory and creates files."""
KV_CACHE_MIB = 8192
START_S = 100.0
"""Deadline of the learner's start, in seconds."""
PARTS = ("push_write_s", "push_map_s", "push_freeze_s", "push_begin_s", "push_load_s", "push_read_back_s",
         "push_resume_s", "push_canary_s", "push_score_s")  # fmt: skip


class RemoteRank:
    """A Zero3Rank in another process, as the learner of a publisher."""

    def __init__(self, connection: Connection) -> None:
        self.version = 0
        self._connection = connection
        self._one_call = threading.Lock()

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the rank."""
        return await asyncio.to_thread(self._call, method, *args)

    def _call(self, method: str, *args: Any) -> Any:
        with self._one_call:
            self._connection.send((method, args))
            if not self._connection.poll(START_S):
                raise TimeoutError(f"{method} of the learner: no answer within {START_S:g} s")
            done, result = self._connection.recv()
        if not done:
            raise RuntimeError(f"{method} of the learner: {result}")
        return result

    async def expose_trial(self) -> Any:
        return await self.call("expose_trial")

    async def expose(self, push: str, first: int) -> Any:
        return await self.call("expose", push, first)

    async def publish(self, path: Path) -> str:
        return await self.call("publish", path)

    async def score(self, sequences: list[list[int]]) -> list[Any]:
        return await self.call("score", sequences)


def config(args: argparse.Namespace) -> Any:
    """Return the configuration of both processes: one card for both."""
    from openrlhf_tir.config import Config

    settings = h200.config(args).model_dump()
    settings["train"]["share_gpus"] = True
    settings["vllm"]["kv_cache_mib"] = 128 if args.cpu else KV_CACHE_MIB
    return Config.model_validate(settings)


def push_ipc(args: argparse.Namespace) -> dict[str, Any]:
    """Measure pushes by both transports into one engine."""
    args.shape = "tiny" if args.cpu else "135m"
    args.groups, args.samples, args.tokens, args.requests = (2, 2, 64, 8) if args.cpu else (2, 8, 1024, 256)
    with contextlib.ExitStack() as stack:
        if args.model is None:
            args.model = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tir-gpu-")))
            h200.write_model(args.model, args.shape)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tir-gpu-")))
        listener = stack.enter_context(Listener(str(scratch / "learner"), "AF_UNIX"))
        command = [sys.executable, "-m", "benchmarks.gpu", "--stage", "_expose", "--model", str(args.model)]
        command += ["--socket", str(scratch / "learner")]
        process = subprocess.Popen(command + ["--cpu"] * args.cpu)
        stack.callback(process.wait, 10)
        stack.callback(process.terminate)
        listener._listener._socket.settimeout(START_S)  # type: ignore[attr-defined]
        return asyncio.run(_measured(args, listener, scratch))


async def _measured(args: argparse.Namespace, listener: Listener, scratch: Path) -> dict[str, Any]:
    from openrlhf_tir.engines.local_engine import LocalEngine
    from openrlhf_tir.engines.vllm_engine import VllmEngine
    from openrlhf_tir.types import Sampling
    from openrlhf_tir.waiting.deadlines import Deadline
    from openrlhf_tir.weights.file_transport import FileTransport
    from openrlhf_tir.weights.ipc.transport import IpcTransport
    from openrlhf_tir.weights.publisher import WeightPublisher

    cfg = config(args)
    deadline = Deadline.of(cfg, "timeouts.push_s")
    vllm = await VllmEngine.start(str(args.model), cfg)  # while the learner starts beside it
    learner = RemoteRank(await asyncio.to_thread(listener.accept))
    rng = np.random.default_rng(0)
    prompts = rng.integers(10, 90, (args.requests, h200.PROMPT_TOKENS)).tolist()
    stopping = asyncio.Event()

    async def always(i: int) -> None:
        """Keep one request under way, so that the pause is that of a busy engine."""
        number = 0
        while not stopping.is_set():
            await vllm.generate(prompts[i], Sampling(args.tokens), request_id=f"busy {i}/{number}")
            number += 1

    busy = [asyncio.create_task(always(i)) for i in range(args.requests)]
    texts = rng.integers(10, 90, (16, 96)).tolist()
    directory = (Path("/dev/shm") if Path("/dev/shm").is_dir() else scratch) / scratch.name
    file = FileTransport(learner, directory, delta=False, deadline=deadline)  # type: ignore[arg-type]
    ipc = IpcTransport(learner, FileTransport(learner, directory, delta=False, deadline=deadline), deadline)  # type: ignore[arg-type]
    facts: dict[str, Any] = {"requests": args.requests}
    reference = None
    try:
        for name, transport in (("ipc", ipc), ("file", file)):
            publisher = WeightPublisher(
                learner,  # type: ignore[arg-type]
                [LocalEngine(vllm)],
                directory,
                texts,
                tolerance=reference,
                transport=transport,
            )
            reference = reference or await publisher.calibrate()
            reports = []
            for _ in range(PUSHES):
                await learner.call("sft_step", _rows(rng), 1e-5)
                learner.version += 1
                report = await publisher.publish(learner.version, must_differ=True)
                row = {"push_s": report.seconds, "push_write_s": report.write_s, **report.parts}
                reports.append(row | {"refused": report.refused})
            facts[name] = _median(reports[1:]) | {
                "mib": round(report.nbytes / 2**20, 1),
                "reached_by_ipc": sum(row.get("push_ipc", 0.0) for row in reports),
                "refused": sum(row["refused"] for row in reports),
                "canary_excess": round(report.canary_excess, 3),
                "unread": len(vllm.read_back.unread),
            }
            await publisher.close()
        facts["ipc_off"] = ipc.disabled_reason
    finally:
        stopping.set()
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        file.remove()  # the directory may be in /dev/shm, whose files are memory until they are removed
        await vllm.stop()
    return facts


def _rows(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return rows of a step of fine-tuning: random tokens, all of them trained."""
    return [(row, np.ones(len(row), np.float32)) for row in rng.integers(10, 90, (4, 64)).astype(np.int32)]


def _median(reports: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of every duration over the pushes."""
    names = [name for name in ("push_s", "push_pause_s", *PARTS) if name in reports[0]]
    return {name: round(statistics.median(report[name] for report in reports), 4) for name in names}


def expose(args: argparse.Namespace) -> dict[str, Any]:
    """Answer the calls of `push_ipc` until it hangs up: the learner's process."""
    args.shape = "tiny" if args.cpu else "135m"
    args.groups, args.samples, args.tokens, args.requests = 2, 2, 64, 8
    start = time.monotonic()
    rank, _store = h200.rank_of(config(args))
    with Client(args.socket, "AF_UNIX") as connection, contextlib.suppress(EOFError):
        while True:
            method, arguments = connection.recv()
            try:
                answer = (True, getattr(rank, method)(*arguments))
            except Exception as error:
                answer = (False, f"{type(error).__name__}: {error}")
            connection.send(answer)
    rank.close()
    return {"learner_s": round(time.monotonic() - start, 1)}
