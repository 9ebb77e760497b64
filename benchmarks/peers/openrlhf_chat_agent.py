"""SmolLM2's task as an OpenRLHF agent, for its --train.agent_func_path: our episodes on its engine, one at a time as
its rollout actor asks for them.

Loaded by OpenRLHF's rollout actor from this path. The sandbox's place is in $PEERS_SANDBOX, the work in $PEERS_WORK."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import numpy as np
import torch
from openrlhf.utils.agent import AgentExecutorBase

from benchmarks.peers.sandbox import Client
from benchmarks.peers.tasks import NumbersTask
from benchmarks.peers.work import Work
from openrlhf_tir.types import Completion, Sampling


class OpenRlhfEngine:
    """A ports.Engine on OpenRLHF's, with its own sampling parameters."""

    def __init__(self, engine: Any, params: Any) -> None:
        self.engine = engine
        self.params = params

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        params = deepcopy(self.params)
        params.max_tokens = sampling.max_tokens
        params.stop = [*sampling.stop]
        params.include_stop_str_in_output = True
        (out,) = (await self.engine.generate(list(token_ids), params)).outputs
        logprobs = [0.0] * len(out.token_ids)
        if out.logprobs is not None:
            logprobs = [of[token].logprob for of, token in zip(out.logprobs, out.token_ids, strict=True)]
        ids = np.array(out.token_ids, np.int32)
        return Completion(
            ids, np.array(logprobs, np.float32), np.zeros_like(ids), out.text, out.finish_reason, out.stop_reason
        )


class AgentExecutor(AgentExecutorBase):
    @cached_property
    def task(self) -> NumbersTask:
        return NumbersTask(self.work)

    @cached_property
    def work(self) -> Work:
        return Work.read(os.environ["PEERS_WORK"])

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        return {self.task.prompt(row): row for row in self.work.rows("train")}

    @cached_property
    def tools(self) -> Client:
        return Client(int(os.environ["PEERS_SANDBOX"]))

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        chats = self.task.chats
        task = chats.task(self.rows[prompt])
        trajectory = await chats.episode(0, task, OpenRlhfEngine(llm_engine, sampling_params), self.tools)
        reward = torch.tensor(chats.scored(trajectory, task))
        tokens = trajectory.prompt_ids.tolist()
        logprobs = [0.0] * len(tokens)
        ranges, written = [], 0
        for segment in trajectory.segments:
            if segment.source == "model":
                ranges.append((len(tokens), len(tokens) + len(segment.token_ids)))
                written += len(segment.token_ids)
            tokens += segment.token_ids.tolist()
            logprobs += segment.logprobs.tolist()
        return {
            "prompt": prompt,
            "label": label,
            "images": images,
            "mm_train_inputs": None,
            "reward": reward.item(),
            "scores": reward,
            "observation_tokens": tokens,
            "action_ranges": ranges,
            "rollout_log_probs": logprobs if sampling_params.logprobs is not None else None,
            "truncated": trajectory.finish_reason == "length",
            "extra_logs": {"written": torch.tensor(float(written))},
        }
