"""The toy task as an OpenRLHF agent, for its --train.agent_func_path: ZeroTIR's turns, the sandbox, the recipe's
reward.

Loaded by OpenRLHF's rollout actor from this path. The sandbox's place is in $PEERS_SANDBOX, the work in $PEERS_WORK."""

from __future__ import annotations

import asyncio
import os
from copy import deepcopy
from functools import cache

import numpy as np
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from benchmarks.peers.reward import correct
from benchmarks.peers.sandbox import Client
from benchmarks.peers.work import Work
from miniatures.toy.tokenizer import EOS, encode
from openrlhf_tir.rollout.protocols import Call, End
from openrlhf_tir.rollout.protocols.zerotir import ZeroTir
from openrlhf_tir.types import Completion

NONE = np.empty(0)
"""The protocol looks at text only."""


@cache
def client() -> Client:
    return Client(int(os.environ["PEERS_SANDBOX"]))


@cache
def work() -> Work:
    return Work.read(os.environ["PEERS_WORK"])


class Toy(AgentInstanceBase):
    """An episode. Tokens are characters, so what the model wrote is as many tokens as characters, one for the end."""

    def __init__(self) -> None:
        self.turns = ZeroTir(max_calls=work().calls)
        self.written, self.text, self.left = 0, "", work().max_new_tokens

    async def step(self, state_dict: dict, **kwargs: object) -> dict:
        text, params = state_dict["action_text"], deepcopy(state_dict["sampling_params"])
        ended_by_eos = text.endswith(EOS)
        tokens = len(encode(text.removesuffix(EOS))) + ended_by_eos
        self.written += tokens
        self.left -= tokens
        self.text += text.removesuffix(EOS)
        stop = next((s for s in self.turns.stops if text.endswith(s)), None)
        action = self.turns.advance(
            Completion(NONE, NONE, NONE, text, "stop" if stop or ended_by_eos else "length", stop)
        )
        feedback = ""
        if isinstance(action, Call):
            feedback = self.turns.insertion((await asyncio.to_thread(client().run, [action.action]))[0])
            self.left -= len(encode(feedback))
        done = isinstance(action, End) or self.left <= 0
        params.stop = list(self.turns.stops)
        reward = (
            correct(self.text, bool(stop or ended_by_eos) and isinstance(action, End), state_dict["label"])
            if done
            else 0.0
        )
        return {
            "rewards": torch.tensor(reward),
            "scores": torch.tensor(reward),
            "environment_feedback": feedback,
            "done": done,
            "sampling_params": params,
            "extra_logs": {"written": torch.tensor(float(self.written))},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self) -> None:
        super().__init__(Toy)

    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None):
        """With the protocol's stops from the first turn on, and the response's budget instead of the context's."""
        params = deepcopy(sampling_params)
        params.stop, params.include_stop_str_in_output = list(ZeroTir(max_calls=work().calls).stops), True
        return await super().execute(
            prompt, label, params, len(encode(prompt)) + work().max_new_tokens, hf_tokenizer, llm_engine, images
        )
