"""Chat rollout: rows -> sampled conversations with tool calls, by Hugging Face's generate in one process.

The episodes are those of ours (openrlhf_tir/rollout/episode.py): its turn protocol, chat template, budget and reward
by the settings of the recipe. Only what samples is another: all conversations that wait for the model are continued
together by one `generate`, then those that called a tool go on with its output.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Self

import numpy as np
import torch
from transformers import AutoTokenizer, PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from openrlhf_tir.config import Config
from openrlhf_tir.engines.codec import HfCodec
from openrlhf_tir.ports import Engine
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rewards import call_now, load
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rollout import protocols
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols.chat_format import ChatFormat
from openrlhf_tir.types import Chat, Completion, Finish, Sampling, Task, Trajectory

from .sandbox import Client

Spent = Callable[[str, float], None]
"""(phase, since): what took how long."""
LAST = 8
"""Tokens at the end of a row in which a stop string is looked for; the recipe's has five characters."""


class Stops(StoppingCriteria):
    """A row ends once the text of what it wrote holds one of its stop strings, as vLLM has it."""

    def __init__(self, codec: HfCodec, stops: Sequence[str], width: int) -> None:
        """`width`: columns of the prompts, which are not looked at."""
        self.codec, self.stops, self.width = codec, tuple(stops), width
        self.done: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        if self.done is None:
            self.done = torch.zeros(len(input_ids), dtype=torch.bool)
        ends = input_ids[:, max(self.width, input_ids.shape[1] - LAST) :]
        for row in (~self.done).nonzero().flatten().tolist():
            self.done[row] = stop_in(self.codec, ends[row].tolist(), self.stops) is not None
        return self.done


def stop_in(codec: HfCodec, ids: Sequence[int], stops: Sequence[str]) -> str | None:
    """Return the stop string that the text of `ids` holds; None if it holds none."""
    text = codec.decode(ids)
    return next((stop for stop in stops if stop in text), None)


class Batched:
    """A ports.Engine: it answers when all conversations under way have asked, all of them by one `generate`."""

    def __init__(self, model: PreTrainedModel, codec: HfCodec, live: int, spent: Spent) -> None:
        """`live`: conversations under way."""
        self.model, self.codec, self.live, self.spent = model, codec, live, spent
        self._waiting: list[tuple[Sequence[int], Sampling, asyncio.Future[Completion]]] = []
        self._idle_since = time.monotonic()

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting.append((list(token_ids), sampling, answer))
        self._go()
        return await answer

    def ended(self, _: object) -> None:
        """Count a conversation as over."""
        self.live -= 1
        self._go()

    def _go(self) -> None:
        """Answer the waiting requests if all conversations under way wait. If that fails, all of them get the error:
        nobody would see it in a callback, and they would wait for ever."""
        self._waiting = [request for request in self._waiting if not request[2].cancelled()]
        if not self._waiting or len(self._waiting) < self.live:
            return
        self.spent("tools", self._idle_since)
        since = time.monotonic()
        requests = self._waiting
        self._waiting = []
        try:
            completions = self._complete(requests)
        except Exception as error:
            for _, _, answer in requests:
                answer.set_exception(error)
            return
        for (_, _, answer), completion in zip(requests, completions, strict=True):
            answer.set_result(completion)
        self.spent("generate", since)
        self._idle_since = time.monotonic()

    def _complete(self, requests: Sequence[tuple[Sequence[int], Sampling, Any]]) -> list[Completion]:
        end = self.codec.tokenizer.eos_token_id
        width = max(len(ids) for ids, _, _ in requests)
        first = requests[0][1]
        rows = self.model.generate(
            input_ids=torch.tensor([[end] * (width - len(ids)) + list(ids) for ids, _, _ in requests]),
            attention_mask=torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _, _ in requests]),
            max_new_tokens=max(sampling.max_tokens for _, sampling, _ in requests),
            do_sample=first.temperature > 0,
            temperature=first.temperature or None,
            top_k=first.top_k,
            top_p=first.top_p,
            eos_token_id=end,
            pad_token_id=end,
            stopping_criteria=StoppingCriteriaList([Stops(self.codec, first.stop, width)]),
        )[:, width:].tolist()
        return [self.completion(ids, sampling) for ids, (_, sampling, _) in zip(rows, requests, strict=True)]

    def completion(self, ids: list[int], sampling: Sampling) -> Completion:
        """Return what a row of the batch wrote, up to its stop string, its end token or its own limit.

        Behind the first two it is filled with end tokens.
        """
        end = self.codec.tokenizer.eos_token_id
        wrote = ids[: ids.index(end)] if end in ids else ids
        stop = stop_in(self.codec, wrote[-LAST:], sampling.stop)
        if stop is None and len(wrote) < len(ids):
            wrote = [*wrote, end]
        finish: Finish = "stop" if stop is not None or wrote[-1:] == [end] else "length"
        if len(wrote) > sampling.max_tokens:
            wrote, finish, stop = wrote[: sampling.max_tokens], "length", None
        nothing = np.zeros(len(wrote), np.float32)
        return Completion(
            np.array(wrote, np.int32), nothing, nothing.astype(np.int32), self.codec.decode(wrote), finish, stop
        )


class Session:
    """A ports.EnvSession on the sandbox of a peer."""

    server = None

    def __init__(self, tools: Client) -> None:
        self.tools = tools

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """The sandbox's own session ended with the call."""

    async def reset(self) -> str:
        """The sandbox says nothing at first; its session begins with the call."""
        return ""

    async def step(self, action: str, *, step_id: int) -> StepReply:
        return StepReply.model_validate(await asyncio.wrap_future(self.tools.reply(action)))


class Chats:
    """The task of a recipe with a messages protocol.

    Args:
        cfg: The recipe.
        base: Directory of the model, whose tokenizer and chat template are used.
    """

    def __init__(self, cfg: Config, base: str) -> None:
        self.cfg = cfg
        self.tokenizer = AutoTokenizer.from_pretrained(base)
        self.codec = HfCodec(self.tokenizer)
        chat_format = ChatFormat.of(cfg, cfg.env, self.codec, self.tokenizer)
        if chat_format is None:
            raise SystemExit(
                f"env.protocol = {cfg.env.protocol!r} is no messages protocol. Take a recipe that has one."
            )
        self.format = chat_format
        self.reward = load(cfg.reward.name)

    def task(self, row: Mapping[str, Any]) -> Task:
        """Return a row of the data as a task, with its prompt as the model reads it."""
        messages = tuple(row["prompt"])
        prompt = self.format.template.render(self.format.template.inert(messages))
        return Task(prompt, row["label"], meta=row["meta"], chat=Chat(messages))

    def roll(self, model: PreTrainedModel, tasks: Sequence[Task], tools: Client, spent: Spent) -> list[Trajectory]:
        """Return one scored response to each task. Raises RuntimeError if the sandbox fails, which is no reward."""
        with torch.no_grad(), autocast(model):
            trajectories = asyncio.run(self._roll(model, tasks, tools, spent))
        for trajectory, task in zip(trajectories, tasks, strict=True):
            trajectory.reward = self.scored(trajectory, task)
        return trajectories

    async def _roll(
        self, model: PreTrainedModel, tasks: Sequence[Task], tools: Client, spent: Spent
    ) -> list[Trajectory]:
        engine = Batched(model, self.codec, len(tasks), spent)
        under_way = [asyncio.ensure_future(self.episode(i, task, engine, tools)) for i, task in enumerate(tasks)]
        for episode in under_way:
            episode.add_done_callback(engine.ended)
        return await asyncio.gather(*under_way)

    async def episode(self, index: int, task: Task, engine: Engine, tools: Client) -> Trajectory:
        """Return a response to `task`, sampled by `engine` and not scored."""
        cfg = self.cfg
        protocol = protocols.make(cfg.env)
        prompt_ids = self.codec.encode_prompt(task.prompt)
        return await run_episode(
            prompt_ids,
            index=index,
            engine=engine,
            env=Session(tools),
            codec=self.codec,
            protocol=protocol,
            limits=Limits(
                max_new_tokens=min(cfg.rollout.max_new_tokens, cfg.data.max_len - len(prompt_ids)),
                output_max_tokens=cfg.env.output_max_tokens,
                temperature=cfg.rollout.temperature,
                top_p=cfg.rollout.top_p,
                top_k=cfg.rollout.top_k,
            ),
            request_id=str(index),
            renderer=self.format.renderer(protocol, task),
        )

    def scored(self, trajectory: Trajectory, task: Task) -> float:
        """Return the reward of a response. Raises RuntimeError if it failed, which is no reward."""
        if trajectory.failed:
            raise RuntimeError(f"A response failed ({trajectory.failed}): {trajectory.why}. See the sandbox's log.")
        return call_now(self.reward, trajectory, task, RewardContext.of(self.cfg.reward)).reward


def autocast(model: PreTrainedModel) -> Any:
    """Return a context that computes in bf16 with a model whose weights are float32.

    Enter it around the whole of a rollout: it keeps converted weights until it is left.
    """
    return torch.autocast("cpu", torch.bfloat16) if model.dtype == torch.float32 else nullcontext()
