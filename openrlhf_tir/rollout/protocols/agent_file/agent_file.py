"""Run a task with an agent file: its `execute` in a worker process returns what becomes a Trajectory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ....config import Config
from ....config.secrets import ENV_TOKEN, ROLLOUT_TOKEN
from ....errors import AgentError, InfraError
from ....ports import Codec, Engine
from ....types import Sampling, Task, Trajectory
from ....waiting.deadlines import Deadline, agent_deadline
from . import outcome
from .process import Process, Requests, Run
from .record import Record
from .wire import Message


class Aborted(InfraError):
    """The engine aborted a request."""

    reason = "aborted"


class _Worker:
    """A worker process, what the engine sampled for it, and how its runs sample."""

    def __init__(self, cfg: Config, model: str, engine: Engine, name: str, vocab_size: int) -> None:
        self.engine = engine
        self.max_len = cfg.data.max_len
        self.record = Record(keep_s=cfg.rollout.group_deadline_s)
        self._name = name
        self._request_numbers = itertools.count()
        idle = agent_deadline(cfg)
        opened = Deadline(cfg.env.reset_timeout_s + cfg.env.step_timeout_s, "4 * env.step_timeout_s")
        start = {
            "file": cfg.train.agent_func_path,
            "model": model,
            "max_length": cfg.data.max_len,
            "vocab_size": vocab_size,
            "reset_timeout_s": cfg.env.reset_timeout_s,
            "step_timeout_s": cfg.env.step_timeout_s,
            "idle_s": idle.seconds,
        }
        self.process = Process(
            start,
            self._answer,
            cfg.run_dir / "logs" / f"{name}.log",
            Deadline.of(cfg, "timeouts.start_s"),
            agent_deadline(cfg, opened),
            secrets=(ROLLOUT_TOKEN, ENV_TOKEN, "WANDB_API_KEY"),
        )

    async def _answer(self, run: Run | None, message: Message) -> Message:
        """Return what the engine samples for a request of the file.

        Args:
            run: The run that made the request; None if that is not known.
            message: The request.

        Raises:
            InfraError: The engine does not answer.
            ValueError: The prompt leaves no room for an answer.
        """
        requested = message["sampling"]
        prompt = message["prompt"]
        room = self.max_len - len(prompt)
        if room <= 0 or not prompt:
            raise ValueError(
                f"The prompt has {len(prompt)} tokens of data.max_len = {self.max_len}:"
                " it needs at least one, and room for an answer."
            )
        if run is None:
            name = f"{self._name}/{self.process.starts}/{next(self._request_numbers)}"
            requests = Requests(self.engine, name, seed_of=lambda turn: None)
        else:
            requests = run.requests
        turn = requests.turns
        requests.turns += 1
        sampling = Sampling(
            max_tokens=min(requested["max_tokens"] or room, room),
            stop=tuple(requested["stop"]),
            temperature=requested["temperature"],
            top_p=requested["top_p"],
            seed=requests.seed_of(turn),
            first_version=requests.first_version,
        )
        completion = await requests.engine.generate(prompt, sampling, request_id=f"{requests.request_id}/{turn}")
        if completion.finish_reason == "abort":
            raise Aborted("The engine aborted the request.")
        if requests.first_version is None:
            requests.first_version = completion.began
        self.record.add(prompt, sampling, completion, asyncio.get_running_loop().time())
        return {
            "token_ids": completion.token_ids.tolist(),
            "logprobs": completion.logprobs.tolist(),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }


class AgentFile:
    """An agent file, executed by `reward.workers` processes. Owned by a rollout actor."""

    def __init__(self, cfg: Config, model: str, engine: Engine, codec: Codec, name: str, vocab_size: int) -> None:
        """Prepare the workers; `start` starts their processes.

        Args:
            cfg: The run's configuration.
            model: Path of the model, for the tokenizer in the workers.
            engine: The engine for requests whose run is not known.
            codec: The tokenizer.
            name: Name of the rollout actor.
            vocab_size: Token ids of the model are below it.
        """
        self.cfg = cfg
        self.codec = codec
        self.workers = [
            _Worker(cfg, model, engine, f"{name}-agent-{number}", vocab_size) for number in range(cfg.reward.workers)
        ]

    async def start(self) -> None:
        """Start the processes and load the file in them.

        Raises:
            ConfigError: The file cannot be loaded.
        """
        await asyncio.gather(*(worker.process.up() for worker in self.workers))

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
        """Return one sample. Its reward is None if the file leaves it to the run's own reward.

        Args:
            task: The task.
            index: Index of the sample in its group.
            prompt_ids: [P] tokens of the prompt.
            engine: What samples the file's requests.
            temperature: Softmax temperature.
            request_id: Prefix of the engine's request ids.
            seed_of: Turn, from 0 -> seed of its request.
            held_by: Called with the name of the process that runs the sample. Its end hits all samples in it.

        Raises:
            AgentError: The file raised, or returned something that cannot be trained.
            EnvTimeout: A reset or step of the agent instance missed its deadline.
            AgentLost: The file gave no sign of life for too long.
            EnvLost: The process died.
            InfraError: The engine failed.
        """
        worker = min(self.workers, key=lambda worker: len(worker.process.runs))
        sampling: dict[str, Any] = {
            "temperature": temperature,
            "top_p": 1.0,
            "max_tokens": self.cfg.rollout.max_new_tokens,
        }
        await worker.process.ready()
        held_by(worker.process.identity)
        message = await worker.process.call(
            {"prompt": task.prompt, "label": task.label, "sampling": sampling},
            Requests(engine, request_id, seed_of),
        )
        try:
            return outcome.trajectory(
                message,
                index,
                prompt_ids,
                worker.record,
                self.codec,
                max_len=self.cfg.data.max_len,
                temperature=temperature,
            )
        except AgentError as e:
            raise AgentError(f"train.agent_func_path = {self.cfg.train.agent_func_path!r}: {e}") from None

    async def stop(self) -> None:
        """End the processes."""
        await asyncio.gather(*(worker.process.stop() for worker in self.workers))
