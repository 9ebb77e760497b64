"""PromptStream: the order in which prompts are issued. Deterministic by (seed, epoch), resumable, without any global RNG."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ConfigError


class PromptStream:
    """Yields (epoch, prompt index) through num_episodes passes over n_prompts.

    Each epoch is a permutation seeded by (seed, epoch) alone, so the position is two integers, and an epoch looks the same after a resume.
    """

    def __init__(self, n_prompts: int, seed: int, shuffle: bool = True, num_episodes: int = 1) -> None:
        if n_prompts < 1:
            raise ConfigError("The data set has no usable prompt. Check data.prompt_dataset, and data.max_len if all were too long.")
        self.n_prompts, self.seed, self.shuffle, self.num_episodes = n_prompts, seed, shuffle, num_episodes
        self.epoch, self.position = 0, 0
        self._order = self._permutation()

    def _permutation(self) -> np.ndarray:
        if not self.shuffle:
            return np.arange(self.n_prompts)
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.n_prompts)

    def next(self) -> tuple[int, int] | None:
        """The next prompt, or None after the last episode."""
        if self.position == self.n_prompts:
            self.epoch, self.position = self.epoch + 1, 0
            self._order = self._permutation()
        if self.epoch >= self.num_episodes:
            return None
        self.position += 1
        return self.epoch, int(self._order[self.position - 1])

    def state(self) -> dict[str, Any]:
        """JSON-ready position, with what it depends on."""
        return {"epoch": self.epoch, "position": self.position, "n_prompts": self.n_prompts, "seed": self.seed, "shuffle": self.shuffle}

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a saved position. Raises ConfigError where it belongs to another data set or order: prompts would be lost or repeated."""
        for name in ("n_prompts", "seed", "shuffle"):
            if state[name] != getattr(self, name):
                raise ConfigError(
                    f"The checkpoint's prompt order was made with {name} = {state[name]}, this run has {getattr(self, name)}. "
                    "Resume with the same data, data.shuffle and train.seed."
                )
        self.epoch, self.position = state["epoch"], state["position"]
        self._order = self._permutation()
