"""PromptStream: the order in which prompts are issued. Deterministic by seed, resumable, without any global RNG.

The prompts of one environment from one data set are a *lane*: a row of prompts that is passed through again and again,
each pass (epoch) another permutation. Where nothing is blended there is one lane, and the stream is simply its passes.

    next environment   the one that is furthest behind its share: of any B prompts in a row it has its part of B, to
                       within one
    next data set      by chance, with data.prompt_probs, seeded by how many prompts were drawn before
    next prompt        of that lane, in the order of its pass

A lane that is through begins its next pass while others are in their first: shares and probabilities hold to the end.
So `epoch` of a key is the pass over that prompt's own lane, no pass issues a prompt twice, and the stream ends when
every lane has had num_episodes passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError
from ..types import PromptOutcome
from .curriculum import AdaptivePass, Settings


class Lane(NamedTuple):
    """Prompts that are passed through together. `share` and `prob` are relative to those of other environments and
    other data sets."""

    prompts: Sequence[int] | np.ndarray
    env: str = ""
    share: float = 1.0
    dataset: int = 0
    prob: float = 1.0


class _Pass:
    """Where a lane stands. One permutation per (seed, epoch), and the lane's number where there are several."""

    def __init__(self, lane: Lane, seed: list[int], shuffle: bool) -> None:
        self.prompts, self.seed, self.shuffle = np.asarray(lane.prompts, int), seed, shuffle
        self.go_to(0, 0)

    def go_to(self, epoch: int, position: int) -> None:
        self.epoch, self.position = epoch, position
        seed, *number = self.seed
        order = (
            np.random.default_rng([seed, epoch, *number]).permutation(len(self.prompts))
            if self.shuffle
            else np.arange(len(self.prompts))
        )
        self._order = self.prompts[order]

    def begin_if_through(self) -> None:
        if self.position == len(self.prompts):
            self.go_to(self.epoch + 1, 0)

    def next(self) -> tuple[int, int]:
        self.begin_if_through()
        self.position += 1
        return self.epoch, int(self._order[self.position - 1])


class PromptStream:
    """Yields (epoch, prompt index). `n_prompts`: of the whole data; `lanes`: how they are blended (default: not at
    all); `curriculum`: the order within a lane follows what is learned of its prompts (curriculum.py)."""

    def __init__(
        self,
        n_prompts: int,
        seed: int,
        shuffle: bool = True,
        num_episodes: int = 1,
        lanes: Sequence[Lane] | None = None,
        curriculum: Settings | None = None,
    ) -> None:
        if n_prompts < 1:
            raise ConfigError(
                "The data set has no usable prompt. Check data.prompt_dataset, and data.max_len if all were too long."
            )
        self.n_prompts, self.seed, self.shuffle, self.num_episodes = n_prompts, seed, shuffle, num_episodes
        self.lanes = list(lanes or [Lane(range(n_prompts))])
        numbers: list[list[int]] = [[i] for i in range(len(self.lanes))] if len(self.lanes) > 1 else [[]]
        numbered = list(zip(self.lanes, numbers, strict=True))
        self._adaptive = (
            [
                AdaptivePass(np.asarray(lane.prompts, int).tolist(), [seed, *number], shuffle, curriculum)
                for lane, number in numbered
            ]
            if curriculum
            else []
        )
        self._ordinary = [_Pass(lane, [seed, *number], shuffle) for lane, number in numbered] if not curriculum else []
        self._passes: Sequence[_Pass | AdaptivePass] = self._adaptive or self._ordinary
        self._lane_of = np.zeros(n_prompts, np.int32)
        for number, lane in enumerate(self.lanes):
            self._lane_of[np.asarray(lane.prompts, int)] = number
        self._shares = {lane.env: lane.share for lane in self.lanes}
        self._of_env = dict.fromkeys(self._shares, 0)
        """Prompts drawn of each environment, in their turn."""
        self._drawn = 0
        """Draws so far, those out of turn too: what the next choice of a data set is seeded with."""

    def next(self) -> tuple[int, int] | None:
        """The next prompt, or None after the last episode."""
        if not self.more():
            return None
        env = max(self._shares, key=self._behind)
        self._of_env[env] += 1
        return self._draw(env)

    def more(self) -> bool:
        """Whether there is a next one. It is not drawn yet: what is learned meanwhile counts."""
        for one in self._passes:
            one.begin_if_through()
        return min(one.epoch for one in self._passes) < self.num_episodes

    def learned(self, ended: Sequence[PromptOutcome]) -> None:
        """A batch was trained; `ended` are the groups that ended since the last one."""
        for one in self._adaptive:
            one.learned(ended)

    def facts(self) -> dict[str, float]:
        """Metrics of the curriculum: sums, the longest wait, and means over the lanes. Nothing without one."""
        lanes = [one.facts() for one in self._adaptive]
        if not lanes:
            return {}
        together = {name: sum(lane[name] for lane in lanes) / len(lanes) for name in lanes[0]}
        together |= {
            "never_drawn": sum(lane["never_drawn"] for lane in lanes),
            "longest_wait": max(lane["longest_wait"] for lane in lanes),
        }
        return {f"curriculum/{name}": value for name, value in together.items()}

    def in_place_of(self, prompt: int) -> tuple[int, int] | None:
        """Another prompt of the same environment, out of turn. None where environments have no shares."""
        if len(self._shares) == 1:
            return None
        return self._draw(self.lanes[self._lane_of[prompt]].env)

    def _behind(self, env: str) -> float:
        """How many prompts the environment would lack of its share, were the next one another's."""
        return self._shares[env] / sum(self._shares.values()) * (sum(self._of_env.values()) + 1) - self._of_env[env]

    def _draw(self, env: str) -> tuple[int, int]:
        among = [i for i, lane in enumerate(self.lanes) if lane.env == env]
        self._drawn += 1
        if len(among) > 1:
            probs = np.array([self.lanes[i].prob for i in among])
            among = [
                among[
                    int(
                        np.random.default_rng([self.seed, self._drawn, len(self.lanes)]).choice(
                            len(among), p=probs / probs.sum()
                        )
                    )
                ]
            ]
        return self._passes[among[0]].next()

    def state(self) -> dict[str, Any]:
        """JSON-ready position, with what it depends on."""
        return {
            "lanes": [[one.epoch, one.position] for one in self._ordinary],
            "curriculum": [one.state() for one in self._adaptive],
            "of_env": dict(self._of_env),
            "drawn": self._drawn,
            "blend": self._blend(),
            "n_prompts": self.n_prompts,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Raises ConfigError where it belongs to another data set or order: prompts would be
        lost or repeated."""
        for name in ("n_prompts", "seed", "shuffle"):
            if state[name] != getattr(self, name):
                raise ConfigError(
                    f"The checkpoint's prompt order was made with {name} = {state[name]}, this run has"
                    f" {getattr(self, name)}. Resume with the same data, data.shuffle and train.seed."
                )
        if state["blend"] != (now := self._blend()):
            raise ConfigError(
                f"The checkpoint's prompts were blended as {state['blend']} (environment, share, data set,"
                f" probability), this run's are as {now}. Resume with the same shares and data.prompt_probs."
            )
        adaptive = state["curriculum"]
        if bool(adaptive) != bool(self._adaptive):
            was, now_is = ("difficulty", "off") if adaptive else ("off", "difficulty")
            raise ConfigError(
                f"The checkpoint's prompts were drawn with data.curriculum = {was}, this run's with {now_is}."
                f" Resume with --data.curriculum {was}."
            )
        for one, (epoch, position) in zip(self._ordinary, state["lanes"], strict=True):
            one.go_to(epoch, position)
        for lane, saved in zip(self._adaptive, adaptive, strict=True):
            lane.restore(saved)
        self._of_env, self._drawn = dict(state["of_env"]), state["drawn"]

    def _blend(self) -> list[list[Any]]:
        return [[lane.env, lane.share, lane.dataset, lane.prob] for lane in self.lanes]
