"""An agent in OpenRLHF's form (docs/openrlhf_files.md): one more try for whoever's last number is not the label."""

import re

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs):
        self.tries = 0

    async def reset(self, states, **kwargs):
        return {"observation": states["observation"]}

    async def step(self, states, **kwargs):
        self.tries += 1
        found = re.findall(r"-?\d+", states["action_text"])
        right = bool(found) and found[-1] == states["label"].strip()
        score = torch.tensor(1.0 if right else 0.0)
        return {
            "rewards": score,
            "scores": score,
            "environment_feedback": "" if right else "\nThat is wrong. Try again:\n",
            "done": right or self.tries == 2,
            "sampling_params": states.get("sampling_params"),
            "extra_logs": {"tries": self.tries},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
