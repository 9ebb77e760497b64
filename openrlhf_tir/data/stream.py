"""The order in which prompts are issued: deterministic by seed, resumable, without a global random generator.

The prompts of one environment from one data set are a *lane*. A lane is passed through again and again; each pass
(epoch) has another permutation. If nothing is blended there is one lane, and the stream is simply its passes.

    next environment   the one that is furthest behind its share: of any B consecutive prompts it has its part of B, to
                       within one
    next data set      by chance, with data.prompt_probs, seeded by the number of prompts drawn before
    next prompt        of that lane, in the order of its pass

A lane that ends begins its next pass while others are in their first, so shares and probabilities hold to the end. The
`epoch` of a key is the pass over that prompt's own lane, no pass issues a prompt twice, and the stream ends when every
lane has had num_episodes passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError
from ..types import PromptOutcome
from .curriculum import AdaptivePass, Settings


class PromptLane(NamedTuple):
    """Prompts that are passed through together.

    Attributes:
        prompts: Indices of the prompts.
        env: Their environment; "" if environments have no shares.
        share: Share of the environment, relative to other environments.
        dataset: Place of their data set in data.prompt_dataset.
        prob: Probability of the data set, relative to other data sets.
    """

    prompts: Sequence[int] | np.ndarray
    env: str = ""
    share: float = 1.0
    dataset: int = 0
    prob: float = 1.0


class _Pass:
    """The position in a lane. There is one permutation per seed and epoch, and lane number if there are several
    lanes."""

    def __init__(self, lane: PromptLane, seed: list[int], shuffle: bool) -> None:
        self.prompts = np.asarray(lane.prompts, int)
        self.seed = seed
        self.shuffle = shuffle
        self.go_to(0, 0)

    def go_to(self, epoch: int, position: int) -> None:
        self.epoch = epoch
        self.position = position
        self._order = self.prompts
        if self.shuffle:
            seed, *number = self.seed
            generator = np.random.default_rng([seed, epoch, *number])
            self._order = self.prompts[generator.permutation(len(self.prompts))]

    def begin_if_through(self) -> None:
        if self.position == len(self.prompts):
            self.go_to(self.epoch + 1, 0)

    def next(self) -> tuple[int, int]:
        self.begin_if_through()
        self.position += 1
        return self.epoch, int(self._order[self.position - 1])


class PromptStream:
    """Yields (epoch, prompt index).

    Args:
        n_prompts: Number of prompts of the whole data.
        seed: Seed of all orders.
        shuffle: Whether a pass is a permutation.
        num_episodes: Number of passes over every lane.
        lanes: How the prompts are blended; by default they are one lane.
        curriculum: If given, the order within a lane depends on what is learned about its prompts (curriculum.py).

    Raises:
        ConfigError: There is no prompt.
    """

    def __init__(
        self,
        n_prompts: int,
        seed: int,
        shuffle: bool = True,
        num_episodes: int = 1,
        lanes: Sequence[PromptLane] | None = None,
        curriculum: Settings | None = None,
    ) -> None:
        if n_prompts < 1:
            raise ConfigError(
                "The data set has no usable prompt. Check data.prompt_dataset, and data.max_len if all were too long."
            )
        self.n_prompts = n_prompts
        self.seed = seed
        self.shuffle = shuffle
        self.num_episodes = num_episodes
        self.lanes = list(lanes or [PromptLane(range(n_prompts))])
        self._adaptive: list[AdaptivePass] = []
        self._ordinary: list[_Pass] = []
        for number, lane in enumerate(self.lanes):
            lane_seed = [seed, number] if len(self.lanes) > 1 else [seed]
            if curriculum:
                prompts = np.asarray(lane.prompts, int).tolist()
                self._adaptive.append(AdaptivePass(prompts, lane_seed, shuffle, curriculum))
            else:
                self._ordinary.append(_Pass(lane, lane_seed, shuffle))
        self._passes: Sequence[_Pass | AdaptivePass] = self._adaptive or self._ordinary
        self._lane_of = np.zeros(n_prompts, np.int32)
        for number, lane in enumerate(self.lanes):
            self._lane_of[np.asarray(lane.prompts, int)] = number
        self._shares = {lane.env: lane.share for lane in self.lanes}
        self._of_env = dict.fromkeys(self._shares, 0)
        """Environment -> number of its prompts that were drawn in turn."""
        self._drawn = 0
        """Draws so far, including those out of turn. The next choice of a data set is seeded with it."""

    def next(self) -> tuple[int, int] | None:
        """Return the next prompt, or None after the last episode."""
        if not self.more():
            return None
        env = max(self._shares, key=self._behind)
        self._of_env[env] += 1
        return self._draw(env)

    def more(self) -> bool:
        """Return True if there is a next prompt. It is not drawn yet, so what is learned meanwhile counts."""
        for lane_pass in self._passes:
            lane_pass.begin_if_through()
        return min(lane_pass.epoch for lane_pass in self._passes) < self.num_episodes

    def learned(self, ended: Sequence[PromptOutcome]) -> None:
        """Take in the groups that `ended` since the last batch. Called when a batch was trained."""
        for lane_pass in self._adaptive:
            lane_pass.learned(ended)

    def facts(self) -> dict[str, float]:
        """Return metrics of the curriculum: sums, the longest wait, and means over the lanes; {} without a
        curriculum."""
        lanes = [lane_pass.facts() for lane_pass in self._adaptive]
        if not lanes:
            return {}
        metrics = {name: sum(lane[name] for lane in lanes) / len(lanes) for name in lanes[0]}
        metrics |= {
            "never_drawn": sum(lane["never_drawn"] for lane in lanes),
            "longest_wait": max(lane["longest_wait"] for lane in lanes),
        }
        return {f"curriculum/{name}": value for name, value in metrics.items()}

    def in_place_of(self, prompt: int) -> tuple[int, int] | None:
        """Draw another prompt of the same environment, out of turn; None if environments have no shares."""
        if len(self._shares) == 1:
            return None
        return self._draw(self.lanes[self._lane_of[prompt]].env)

    def _behind(self, env: str) -> float:
        """Return how many prompts the environment would lack of its share if the next one were another's."""
        return self._shares[env] / sum(self._shares.values()) * (sum(self._of_env.values()) + 1) - self._of_env[env]

    def _draw(self, env: str) -> tuple[int, int]:
        candidates = [number for number, lane in enumerate(self.lanes) if lane.env == env]
        self._drawn += 1
        chosen = 0
        if len(candidates) > 1:
            probs = np.array([self.lanes[number].prob for number in candidates])
            generator = np.random.default_rng([self.seed, self._drawn, len(self.lanes)])
            chosen = int(generator.choice(len(candidates), p=probs / probs.sum()))
        return self._passes[candidates[chosen]].next()

    def state(self) -> dict[str, Any]:
        """Return the position as JSON values, with everything that it depends on."""
        return {
            "lanes": [[lane_pass.epoch, lane_pass.position] for lane_pass in self._ordinary],
            "curriculum": [lane_pass.state() for lane_pass in self._adaptive],
            "of_env": dict(self._of_env),
            "drawn": self._drawn,
            "blend": self._blend(),
            "n_prompts": self.n_prompts,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position that `state` returned.

        Raises:
            ConfigError: It belongs to another data set or order, so prompts would be lost or repeated.
        """
        for name in ("n_prompts", "seed", "shuffle"):
            if state[name] != getattr(self, name):
                raise ConfigError(
                    f"The checkpoint's prompt order was made with {name} = {state[name]}, this run has"
                    f" {getattr(self, name)}. Resume with the same data, data.shuffle and train.seed."
                )
        if state["blend"] != (blend := self._blend()):
            raise ConfigError(
                f"The checkpoint's prompts were blended as {state['blend']} (environment, share, data set,"
                f" probability), this run's are as {blend}. Resume with the same shares and data.prompt_probs."
            )
        adaptive = state["curriculum"]
        if bool(adaptive) != bool(self._adaptive):
            saved_curriculum = "difficulty" if adaptive else "off"
            current = "off" if adaptive else "difficulty"
            raise ConfigError(
                f"The checkpoint's prompts were drawn with data.curriculum = {saved_curriculum}, this run's with"
                f" {current}. Resume with --data.curriculum {saved_curriculum}."
            )
        for lane_pass, (epoch, position) in zip(self._ordinary, state["lanes"], strict=True):
            lane_pass.go_to(epoch, position)
        for lane, saved in zip(self._adaptive, adaptive, strict=True):
            lane.restore(saved)
        self._of_env = dict(state["of_env"])
        self._drawn = state["drawn"]

    def _blend(self) -> list[list[Any]]:
        return [[lane.env, lane.share, lane.dataset, lane.prob] for lane in self.lanes]
