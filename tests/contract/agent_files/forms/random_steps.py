"""The form of a multi-turn agent over steps without a world: made asynchronously, so many, the reward at the last."""

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    async def __init__(self, *args, **kwargs):
        self.done_steps, self.steps = 0, 2

    async def reset(self, states, **kwargs):
        return {"observation": states["observation"]}

    async def step(self, states, **kwargs):
        self.done_steps += 1
        last = self.done_steps == self.steps
        reward = torch.ones(1) if last else torch.tensor(0)
        return {
            "rewards": reward,
            "scores": reward,
            "environment_feedback": "\n\nHuman: [RIGHT]\n" if last else "\n\nHuman: [WRONG]\nTry again.\n\nAssistant: ",
            "done": last,
            "sampling_params": states.get("sampling_params"),
            "extra_logs": {"random_scores": reward},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
