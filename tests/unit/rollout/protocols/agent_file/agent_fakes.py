"""Agent files in OpenRLHF's form, written here, and an engine that answers from a script. Token ids are characters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from openrlhf_tir.errors import EngineError
from openrlhf_tir.types import Completion, Task

CUSTOM = '''
import asyncio, os, time


class AgentExecutor:
    """Asks twice, as a custom executor does; the label says what else it does."""

    runs = 0

    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine):
        self.runs += 1
        if label == "third waits" and self.runs > 2:
            await asyncio.sleep(3600)
        tokens = hf_tokenizer(text=prompt, add_special_tokens=False, return_tensors="pt")["input_ids"][0].tolist()
        ranges = []
        for turn in range(2):
            sampling_params.max_tokens = 4
            said = (await llm_engine.generate(tokens, sampling_params)).outputs[0]
            ranges.append((len(tokens), len(tokens) + len(said.token_ids)))
            tokens = tokens + said.token_ids
            if turn == 0:
                fed = hf_tokenizer(text=" env ", add_special_tokens=False, return_tensors="pt")["input_ids"][0]
                tokens = tokens + fed.tolist()
        if label == "raise":
            raise KeyError("nothing there")
        if label == "die":
            os.kill(os.getpid(), 9)
        if label == "block":
            time.sleep(3600)
        if label == "wait":
            await asyncio.sleep(3600)
        return {"prompt": prompt, "label": label, "observation_tokens": tokens, "action_ranges": ranges,
                "truncated": False, "reward": 0.5, "scores": 1.0, "extra_logs": {"turns": 2}, "rollout_log_probs": None}
'''

INSTANCE = '''
import asyncio

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    """Two steps, a reward at each; the label says what else it does."""

    def __init__(self, *args, **kwargs):
        self.steps = 0

    async def reset(self, states, **kwargs):
        return {"observation": states["observation"] + "go: "}

    async def step(self, states, **kwargs):
        said = states["observation_text"]
        assert said.startswith("Q. go: ") or states["label"] == "raise", said
        self.steps += 1
        if states["label"] == "raise":
            raise KeyError("no such row")
        if states["label"] == "slow":
            await asyncio.sleep(3600)
        if states["label"] == "plain float":
            return {"rewards": 1.0, "environment_feedback": "", "done": True}
        if states["label"] == "images":
            images = {"environment_images": ["png"]}
            return {"rewards": torch.tensor(1.0), "environment_feedback": "", "done": True, **images}
        if states["label"] == "hot":
            states["sampling_params"].temperature = 0.5
        done = self.steps == 2
        return {
            "rewards": torch.tensor(0.25),
            "scores": torch.tensor(1.0),
            "environment_feedback": "<right>" if done else "<again>",
            "done": done,
            "sampling_params": states["sampling_params"],
            "extra_logs": {"steps": torch.tensor(float(self.steps)), "lucky": 3},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
'''


def write(directory: Path, text: str, name: str = "agent.py") -> str:
    """The file, as the configuration names it."""
    (directory / name).write_text(text)
    return f"{directory / name}:AgentExecutor"


class Scripted:
    """An engine: "one", then "two", by the number of "env" or "again" in the prompt. `gate` holds answers back until a
    test opens it."""

    def __init__(self, codec) -> None:
        self.codec, self.asked, self.cancelled = codec, [], 0
        self.gate, self.arrived = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.broken = False

    async def generate(self, token_ids, sampling, *, request_id):
        self.asked.append((list(token_ids), sampling, request_id))
        self.arrived.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.broken:
            raise EngineError("the engine broke")
        text = "two" if "env" in self.codec.decode(token_ids) or "again" in self.codec.decode(token_ids) else "one"
        ids = np.array(self.codec.encode(text), np.int32)
        return Completion(ids, np.full(len(ids), -0.5, np.float32), np.full(len(ids), 3, np.int32), text, "stop", None)


def one(agent, engine, label="", **more):
    prompt = agent.codec.encode_prompt("Q. ")
    return agent.run(Task("Q. ", label), 0, prompt, engine=engine, temperature=1.0, request_id="0/0/0#0", **more)
