"""Curriculum: which prompt of a lane is drawn next, by what is known of its difficulty. Pure, seeded, and its whole
state is JSON.

    posterior  of each prompt's pass rate    Beta(1/2 + right, 1/2 + wrong), from the samples of its groups that ended
    forgets                                  right and wrong are halved every `half_life` batches: the policy moves
    explore    a fixed share of the draws    the prompt that was drawn longest ago
    choose     the others                    of the prompts whose next group is likeliest to be kept (nine tenths of
                                             the best chance, or more), the one that was drawn longest ago

A group is kept when low < right / n < high, which is filter.accuracy_range, or that its samples differ. A prompt that
is drawn waits for its group to end before it is drawn again. So no prompt starves: of N prompts each is drawn at least
once in N / explore draws, whatever its posterior. The epoch of a key is how often its prompt was drawn before.

What was learned counts from the next batch on, not at once: then, with staleness 0, the draws do not depend on which
group finished first. Sources: a Beta posterior of each prompt's pass rate that forgets, MoPPS (arXiv 2507.04632), which
samples from it; here the chance is its mean, and exploring is a share of its own, so that the promise does not rest on
luck. Tasks that are neither too easy nor too hard: arXiv 2408.15099."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError
from ..types import PromptOutcome

PRIOR = 0.5
"""Jeffreys': what is not known may be very easy or very hard, as most prompts are late in a run."""
NEARLY = 0.9
"""Share of the best chance that is as good: draws are spread over all such prompts."""
EXPLORE = 0.25
"""Share of the draws that take the prompt drawn longest ago, so that none starves."""
HALF_LIFE = 8.0
"""Batches after which an outcome counts half, as the policy moves."""
EPSILON = 1e-9


class Settings(NamedTuple):
    """`n`: samples of a group; `ranges`: by prompt of the whole data, the means (low, high) between which a group is
    kept, both strict."""

    n: int
    explore: float
    half_life: float
    ranges: Sequence[tuple[float, float]]


def kept(right: np.ndarray, wrong: np.ndarray, n: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """[N] chance that low < k / n < high, k being beta-binomial of n trials with the posterior of `right` and `wrong`
    samples; all arrays [N].

    P(0) = prod_j (b + j) / (a + b + j),  P(k + 1) / P(k) = (n - k) / (k + 1) * (a + k) / (b + n - k - 1),  a = 1/2 +
                                          right, b = 1/2 + wrong.
    Example: nothing known, n = 2, (0, 1): P(0) = P(2) = 1/2 * 3/4 = 3/8, so 1/4.
    """
    a, b = PRIOR + right, PRIOR + wrong
    log_mass = np.zeros_like(a)  # P(0) of hundreds of samples is below what a float holds
    for j in range(n):
        log_mass += np.log((b + j) / (a + b + j))
    chance = np.zeros_like(a)
    for k in range(n + 1):
        chance += np.where((k / n > low + EPSILON) & (k / n < high - EPSILON), np.exp(log_mass), 0.0)
        if k < n:
            log_mass = log_mass + np.log((n - k) / (k + 1) * (a + k) / (b + n - k - 1))
    return chance


class AdaptivePass:
    """One lane. Has the place of an ordinary pass: `epoch` is the draws so far over the number of prompts."""

    def __init__(self, prompts: Sequence[int], seed: list[int], shuffle: bool, settings: Settings) -> None:
        self.prompts, self.seed, self.settings = np.asarray(prompts, int), seed, settings
        size = len(self.prompts)
        self.at = {int(prompt): i for i, prompt in enumerate(self.prompts)}
        ranges = np.array([settings.ranges[prompt] for prompt in self.prompts], float)
        self.low, self.high = ranges[:, 0], ranges[:, 1]
        self.right, self.wrong = np.zeros(size), np.zeros(size)
        self.draws = np.zeros(size, int)
        self.waits = np.zeros(size, bool)
        """Drawn, and its group has not ended."""
        order = np.random.default_rng([*seed, 0]).permutation(size) if shuffle else np.arange(size)
        self.last = np.empty(size, int)
        """The draw at which it was drawn last; before the first, a place in line."""
        self.last[order] = np.arange(size) - size
        self.drawn = 0
        self._chance: np.ndarray | None = None
        """Each prompt's chance of a kept group; None until something is learned."""
        self._explored, self._chosen, self._expected = 0, 0, 0.0

    @property
    def epoch(self) -> int:
        return self.drawn // len(self.prompts)

    def begin_if_through(self) -> None:
        """Nothing: there is no order to begin anew."""

    def next(self) -> tuple[int, int]:
        self.drawn += 1
        i = self._oldest() if self._explores() else self._chosen_one()
        epoch = int(self.draws[i])
        self.draws[i] += 1
        self.last[i], self.waits[i] = self.drawn, True
        return epoch, int(self.prompts[i])

    def _explores(self) -> bool:
        """Evenly: `explore` of any draws in a row, to within one."""
        share = self.settings.explore
        return bool(self.waits.all()) or int(self.drawn * share + EPSILON) > int((self.drawn - 1) * share + EPSILON)

    def _oldest(self) -> int:
        self._explored += 1
        return self._longest_ago(~self.waits if not self.waits.all() else ~np.zeros_like(self.waits))

    def _chosen_one(self) -> int:
        if self._chance is None:
            self._chance = kept(self.right, self.wrong, self.settings.n, self.low, self.high)
        free = np.where(self.waits, -1.0, self._chance)
        i = self._longest_ago(free >= NEARLY * free.max())
        self._chosen += 1
        self._expected += float(self._chance[i])
        return i

    def _longest_ago(self, among: np.ndarray) -> int:
        places = np.flatnonzero(among)
        return int(places[np.argmin(self.last[places])])

    def learned(self, ended: Iterable[PromptOutcome]) -> None:
        """A batch was trained: what is known fades a little, and what ended since the last one is added."""
        self._chance = None
        fade = 0.5 ** (1 / self.settings.half_life)
        self.right *= fade
        self.wrong *= fade
        for prompt, right, samples in ended:
            if (i := self.at.get(prompt)) is not None:
                self.right[i] += right
                self.wrong[i] += samples - right
                self.waits[i] = False

    def facts(self) -> dict[str, float]:
        """Since the last call: share of the draws that explored, and how likely to be kept the chosen were thought.
        Now: prompts never drawn, draws since the one that waits longest was drawn, and posterior means above .9 and
        below .1 of those of which something is known."""
        total, chosen = self._explored + self._chosen, self._chosen
        found = {
            "explored": self._explored / total if total else 0.0,
            "expected_kept": self._expected / chosen if chosen else 0.0,
        }
        self._explored, self._chosen, self._expected = 0, 0, 0.0
        mean = ((PRIOR + self.right) / (2 * PRIOR + self.right + self.wrong))[self.draws > 0]
        found |= {
            "easy": float((mean > 0.9).mean()) if len(mean) else 0.0,
            "hard": float((mean < 0.1).mean()) if len(mean) else 0.0,
        }
        return found | {
            "never_drawn": float((self.draws == 0).sum()),
            "longest_wait": float(self.drawn - self.last.min()),
        }

    def state(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in ("right", "wrong", "draws", "last")}
        return {"drawn": self.drawn, "waits": np.flatnonzero(self.waits).tolist(), **arrays}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` gave, by way of JSON. Raises ConfigError for another number of prompts."""
        if len(state["draws"]) != len(self.prompts):
            raise ConfigError(
                f"The checkpoint's curriculum is of {len(state['draws'])} prompts, this run's of {len(self.prompts)}."
                " Resume with the same data and shares."
            )
        self.drawn, self._chance = int(state["drawn"]), None
        self.right, self.wrong = np.array(state["right"], float), np.array(state["wrong"], float)
        self.draws, self.last = np.array(state["draws"], int), np.array(state["last"], int)
        self.waits = np.zeros(len(self.prompts), bool)
        self.waits[state["waits"]] = True
