"""AgentFile: a task -> the agent file's `execute` in one of its processes -> a Trajectory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ...config import Config
from ...deadlines import Deadline
from ...errors import AgentError, InfraError
from ...ports import Codec, Engine
from ...types import Sampling, Task, Trajectory
from . import outcome
from .process import Process, Run
from .record import Record
from .wire import Message


class Aborted(InfraError):
    """The engine gave a request up."""

    reason = "aborted"


class _Worker:
    """A process, with what the engine sampled for it and how its runs sample."""

    def __init__(self, cfg: Config, model: str, engine: Engine, name: str) -> None:
        self.engine, self.max_len = engine, cfg.data.max_len
        self.record = Record(keep_s=cfg.rollout.group_deadline_s)
        self.asked: dict[int, _Asked] = {}
        self._name, self._requests = name, itertools.count()
        start = {
            "file": cfg.train.agent_func_path,
            "model": model,
            "max_length": cfg.data.max_len,
            "reset_timeout_s": cfg.env.reset_timeout_s,
            "step_timeout_s": cfg.env.step_timeout_s,
            "idle_s": cfg.rollout.agent_idle_s,
        }
        idle_s = max(cfg.rollout.agent_idle_s, cfg.env.reset_timeout_s + cfg.env.step_timeout_s)
        self.process = Process(
            start,
            self._answer,
            cfg.run_dir / "logs" / f"{name}.log",
            Deadline.of(cfg, "timeouts.start_s"),
            Deadline(idle_s, "rollout.agent_idle_s"),
            secrets=(cfg.rollout.token_env, cfg.env.token_env, "WANDB_API_KEY"),
        )

    async def _answer(self, run: Run | None, message: Message) -> Message:
        """Raises InfraError when the engine does not answer, ValueError for a prompt that leaves no room."""
        asked, prompt, wanted = message["sampling"], message["prompt"], None
        room = self.max_len - len(prompt)
        if room <= 0 or not prompt:
            raise ValueError(
                f"The prompt has {len(prompt)} tokens of data.max_len = {self.max_len}:"
                " it needs at least one, and room for an answer."
            )
        engine, seed = self.engine, None
        if run is not None and (wanted := self.asked.get(run.number)):
            engine, seed = wanted.engine, wanted.seed_of(run.turns)
            run.turns += 1
        sampling = Sampling(
            min(asked["max_tokens"] or room, room),
            tuple(asked["stop"]),
            asked["temperature"],
            asked["top_p"],
            seed,
            since=None if run is None else run.since,
        )
        request_id = (
            f"{wanted.request_id}/{run.turns - 1}"
            if wanted and run
            else f"{self._name}/{self.process.starts}/{next(self._requests)}"
        )
        completion = await engine.generate(prompt, sampling, request_id=request_id)
        if completion.finish_reason == "abort":
            raise Aborted("The engine gave the request up.")
        if run is not None and run.since is None:
            run.since = completion.began
        self.record.add(prompt, sampling, completion, asyncio.get_running_loop().time())
        return {
            "token_ids": completion.token_ids.tolist(),
            "logprobs": completion.logprobs.tolist(),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }


class _Asked:
    """How one run's requests reach the engine."""

    def __init__(self, engine: Engine, request_id: str, seed_of: Callable[[int], int | None]) -> None:
        self.engine, self.request_id, self.seed_of = engine, request_id, seed_of


class AgentFile:
    """Owned by a rollout actor. `rollout.agent_workers` processes share its samples."""

    def __init__(self, cfg: Config, model: str, engine: Engine, codec: Codec, name: str) -> None:
        """`engine`: for requests of which it is not known whose they are."""
        self.cfg, self.codec = cfg, codec
        self.workers = [_Worker(cfg, model, engine, f"{name}-agent-{i}") for i in range(cfg.rollout.agent_workers)]

    async def start(self) -> None:
        """Raises ConfigError when the file cannot be loaded."""
        await asyncio.gather(*(w.process.up() for w in self.workers))

    async def run(
        self,
        task: Task,
        index: int,
        prompt_ids: Sequence[int],
        *,
        engine: Engine,
        temperature: float,
        request_id: str,
        seed_of: Callable[[int], int | None] = lambda turn: None,
        held_by: Callable[[str], None] = lambda process: None,
    ) -> Trajectory:
        """One sample; `held_by` is told which process it shares with others. Its reward is None when the file left it
        to the run's own.

        Raises AgentError, EnvTimeout, AgentLost, EnvLost, or the engine's fault.
        """
        worker = min(self.workers, key=lambda w: len(w.process.runs))
        sampling: dict[str, Any] = {
            "temperature": temperature,
            "top_p": 1.0,
            "max_tokens": self.cfg.rollout.max_new_tokens,
        }
        await worker.process.ready()
        held_by(worker.process.identity)
        number = worker.process.next_number()
        worker.asked[number] = _Asked(engine, request_id, seed_of)
        try:
            said = await worker.process.call(number, {"prompt": task.prompt, "label": task.label, "sampling": sampling})
        finally:
            del worker.asked[number]
        try:
            made = outcome.trajectory(
                said,
                index,
                prompt_ids,
                worker.record,
                self.codec,
                max_len=self.cfg.data.max_len,
                temperature=temperature,
            )
        except AgentError as e:
            raise AgentError(f"train.agent_func_path = {self.cfg.train.agent_func_path!r}: {e}") from None
        return made

    async def stop(self) -> None:
        await asyncio.gather(*(w.process.stop() for w in self.workers))
