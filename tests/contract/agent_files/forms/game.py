"""The form of an agent that plays a game with an interface like Gym's: five values a step, observations put into chat
turns by the file."""

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


class Guess:
    """Stands where a package's `make("game:...")` would."""

    max_turns = 3

    def reset(self, seed):
        self.secret, self.turns = "two", 0
        return "Guess a word.", {}

    def step(self, action):
        self.turns += 1
        found, over = action == self.secret, self.turns == self.max_turns
        return (
            ("Right." if found else "Wrong, guess again."),
            (1.0 if found else -0.5),
            found,
            over,
            {"turns": self.turns},
        )


class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs):
        self.game = Guess()

    async def reset(self, states, **kwargs):
        first, _ = self.game.reset(seed=kwargs.get("seed", 0))
        return {"observation": states["observation"] + TURN.format(first)}

    async def step(self, states, **kwargs):
        text, reward, terminated, truncated, info = self.game.step(states["action_text"])
        done = terminated or truncated
        return {
            "rewards": torch.tensor(reward),
            "scores": torch.tensor(float(terminated)),
            "environment_feedback": "<|im_end|>\n"
            + (f"<|im_start|>user\n{text}<|im_end|>" if done else TURN.format(text)),
            "done": done,
            "sampling_params": states.get("sampling_params"),
            "extra_logs": {"turn_count": torch.tensor(info["turns"])},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
