"""The curriculum: which prompt of a lane is drawn next, by what is known about its difficulty.

It is pure and seeded, and its whole state is JSON.

    posterior  of each prompt's pass rate    Beta(1/2 + right, 1/2 + wrong), from the samples of its finished groups
    forgets                                  right and wrong are halved every `half_life` batches: the policy changes
    explore    a fixed share of the draws    the prompt that was drawn longest ago
    choose     the other draws               of the prompts whose next group is likeliest to be kept (at least nine
                                             tenths of the best chance), the one that was drawn longest ago

A group is kept if low < right / n < high. This is filter.accuracy_range, or the condition that its samples differ. A
prompt that is drawn waits for the end of its group before it is drawn again. No prompt starves: of N prompts each is
drawn at least once in N / explore draws, whatever its posterior. The epoch of a key is how often its prompt was drawn
before.

What was learned counts from the next batch on, so that with staleness 0 the draws do not depend on which group finished
first. Sources: MoPPS (arXiv 2507.04632) has a Beta posterior of each prompt's pass rate that forgets, and samples from
it; here its mean is used, and exploring is a separate share, so that the guarantee above does not depend on luck. Tasks
that are neither too easy nor too hard: arXiv 2408.15099.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError
from ..types import PromptOutcome

PRIOR = 0.5
"""Jeffreys' prior: an unknown prompt may be very easy or very hard, as most prompts are late in a run."""
NEARLY = 0.9
"""Share of the best chance that counts as equally good, so that draws are spread over all such prompts."""
EXPLORE = 0.25
"""Share of the draws that take the prompt drawn longest ago, so that none starves."""
HALF_LIFE = 8.0
"""Batches after which an outcome counts half, as the policy moves."""
EPSILON = 1e-9
"""Tolerance for comparisons of floating-point numbers."""


class Settings(NamedTuple):
    """Settings of the curriculum.

    Attributes:
        n: Samples of a group.
        explore: Share of the draws that explore.
        half_life: Batches after which what was learned counts half.
        ranges: For each prompt of the whole data (low, high); a group is kept if its mean is strictly between them.
    """

    n: int
    explore: float
    half_life: float
    ranges: Sequence[tuple[float, float]]


def chance_of_keeping(right: np.ndarray, wrong: np.ndarray, n: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the chance that low < k / n < high, where k is beta-binomial of n trials.

    The posterior is that of `right` and `wrong` samples:

    P(0) = prod_j (b + j) / (a + b + j),  P(k + 1) / P(k) = (n - k) / (k + 1) * (a + k) / (b + n - k - 1),
    a = 1/2 + right, b = 1/2 + wrong.

    Example: nothing known, n = 2, (0, 1): P(0) = P(2) = 1/2 * 3/4 = 3/8, so the chance is 1/4.

    Args:
        right: [prompts] float64, right samples.
        wrong: [prompts] float64, wrong samples.
        n: Samples of a group.
        low: [prompts] float64.
        high: [prompts] float64.

    Returns:
        [prompts] float64.
    """
    a = PRIOR + right
    b = PRIOR + wrong
    log_mass = np.zeros_like(a)  # Logarithms, because P(0) of hundreds of samples is too small for a float.
    for j in range(n):
        log_mass += np.log((b + j) / (a + b + j))
    chance = np.zeros_like(a)
    for k in range(n + 1):
        chance += np.where((k / n > low + EPSILON) & (k / n < high - EPSILON), np.exp(log_mass), 0.0)
        if k < n:
            log_mass = log_mass + np.log((n - k) / (k + 1) * (a + k) / (b + n - k - 1))
    return chance


class AdaptivePass:
    """The draws of one lane. It takes the place of an ordinary pass; `epoch` is the draws so far per prompt."""

    def __init__(self, prompts: Sequence[int], seed: list[int], shuffle: bool, settings: Settings) -> None:
        self.prompts = np.asarray(prompts, int)
        self.seed = seed
        self.settings = settings
        size = len(self.prompts)
        self.at = {int(prompt): i for i, prompt in enumerate(self.prompts)}
        ranges = np.array([settings.ranges[prompt] for prompt in self.prompts], float)
        self.low = ranges[:, 0]
        self.high = ranges[:, 1]
        self.right = np.zeros(size)
        self.wrong = np.zeros(size)
        self.draws = np.zeros(size, int)
        self.waits = np.zeros(size, bool)
        """Whether a prompt was drawn and its group has not ended."""
        order = np.random.default_rng([*seed, 0]).permutation(size) if shuffle else np.arange(size)
        self.last = np.empty(size, int)
        """The number of the draw that drew the prompt last; before the first, a negative place in line."""
        self.last[order] = np.arange(size) - size
        self.drawn = 0
        self._chance: np.ndarray | None = None
        """Each prompt's chance of a kept group; None after something was learned."""
        self._explored = 0
        self._chosen = 0
        self._expected = 0.0

    @property
    def epoch(self) -> int:
        """Draws so far per prompt, rounded down."""
        return self.drawn // len(self.prompts)

    def begin_if_through(self) -> None:
        """Do nothing: there is no order that could start again."""

    def next(self) -> tuple[int, int]:
        """Draw a prompt and return (how often it was drawn before, its index)."""
        self.drawn += 1
        place = self._oldest() if self._explores() else self._chosen_one()
        epoch = int(self.draws[place])
        self.draws[place] += 1
        self.last[place] = self.drawn
        self.waits[place] = True
        return epoch, int(self.prompts[place])

    def _explores(self) -> bool:
        """Return True if this draw explores. Of any consecutive draws the share `explore` does, to within one."""
        share = self.settings.explore
        return bool(self.waits.all()) or int(self.drawn * share + EPSILON) > int((self.drawn - 1) * share + EPSILON)

    def _oldest(self) -> int:
        self._explored += 1
        return self._longest_ago(~self.waits if not self.waits.all() else ~np.zeros_like(self.waits))

    def _chosen_one(self) -> int:
        if self._chance is None:
            self._chance = chance_of_keeping(self.right, self.wrong, self.settings.n, self.low, self.high)
        free = np.where(self.waits, -1.0, self._chance)
        place = self._longest_ago(free >= NEARLY * free.max())
        self._chosen += 1
        self._expected += float(self._chance[place])
        return place

    def _longest_ago(self, among: np.ndarray) -> int:
        places = np.flatnonzero(among)
        return int(places[np.argmin(self.last[places])])

    def learned(self, ended: Iterable[PromptOutcome]) -> None:
        """Let what is known fade a little, and add the groups that ended since the last batch. Called when a batch
        was trained."""
        self._chance = None
        fade = 0.5 ** (1 / self.settings.half_life)
        self.right *= fade
        self.wrong *= fade
        for prompt, right, samples in ended:
            place = self.at.get(prompt)
            if place is not None:
                self.right[place] += right
                self.wrong[place] += samples - right
                self.waits[place] = False

    def facts(self) -> dict[str, float]:
        """Return metrics.

        Since the last call: the share of the draws that explored, and the mean chance of the chosen prompts. Now:
        prompts that were never drawn, draws since the longest waiting prompt was drawn, and the shares of posterior
        means above 0.9 and below 0.1 among the prompts of which something is known.
        """
        total = self._explored + self._chosen
        mean = ((PRIOR + self.right) / (2 * PRIOR + self.right + self.wrong))[self.draws > 0]
        metrics = {
            "explored": self._explored / total if total else 0.0,
            "expected_kept": self._expected / self._chosen if self._chosen else 0.0,
            "easy": float((mean > 0.9).mean()) if len(mean) else 0.0,
            "hard": float((mean < 0.1).mean()) if len(mean) else 0.0,
            "never_drawn": float((self.draws == 0).sum()),
            "longest_wait": float(self.drawn - self.last.min()),
        }
        self._explored = 0
        self._chosen = 0
        self._expected = 0.0
        return metrics

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        arrays = {name: getattr(self, name).tolist() for name in ("right", "wrong", "draws", "last")}
        return {"drawn": self.drawn, "waits": np.flatnonzero(self.waits).tolist(), **arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take the state that `state` returned.

        Raises:
            ConfigError: It belongs to another number of prompts.
        """
        if len(state["draws"]) != len(self.prompts):
            raise ConfigError(
                f"The checkpoint's curriculum is of {len(state['draws'])} prompts, this run's of {len(self.prompts)}."
                " Resume with the same data and shares."
            )
        self.drawn = int(state["drawn"])
        self._chance = None
        self.right = np.array(state["right"], float)
        self.wrong = np.array(state["wrong"], float)
        self.draws = np.array(state["draws"], int)
        self.last = np.array(state["last"], int)
        self.waits = np.zeros(len(self.prompts), bool)
        self.waits[state["waits"]] = True
