"""Depth: how many groups are useful at once. What staleness allows is the scheduler's business (staleness.py).

`pipeline.depth` = a number is `FixedDepth`; `auto`, the default of mode `pipeline`, is `AutoDepth`.

Slots are counted in groups, but a step needs *accepted* groups. When the filters reject most of what is rolled, a depth
that suits an acceptance of 80 % starves the learner at 10 %. `AutoDepth` measures, and asks for one more group while
all of these hold. B is a batch in groups and W the batches ahead (staleness.py); latency_s is what a group takes from
its dispatch to its verdict, and work_s what a batch takes of the learner with its weight push, both moving averages.

    staleness   buffered + training + max_accepted(rolling + 1) <= (W + 1) * B
                max_accepted(n) is the quantile 1 - OVERADMIT_RISK of how many of n rolling groups will be accepted: a
                bound. The acceptance is Beta(1 + accepted, 1 + rejected) over the last groups, in a short and a long
                window; the larger of the two beta-binomial quantiles counts. With 32 of 64 groups accepted, 100 rolling
                ones count as 69, where 50 are expected.
    demand      waiting + acceptance * rolling < B * (1 + latency_s / work_s)
                What the learner takes while one group rolls: of the groups dispatched at an earlier step,
                sum_j P(latency > j * work_s) <= E[latency] / work_s batches are still rolling just before a step, so B
                groups are ready. More would only be older when they are trained. With B = 64, groups of 120 s and
                steps of 60 s it is 192. Before the first step it is max(2, W + 1) * B. No bound while the learner
                idles: then it waits for the engines or for the gate, and a group that starts earlier is done earlier.
    engines     sequences < max_sequences + max(a tenth of it, samples of a group * engines that take groups)
                A number of groups says little about how many sequences there are: one that suits young groups starves
                engines whose groups are old. An engine with a short queue replaces a finished sequence at once. A group
                arrives as a whole, so each engine may queue one.

While a batch is ready and only the gate keeps it from the learner, no more may start than

    gate        waiting + acceptance * rolling < max(2, acceptance * (W + 1)) * B

The gate waits for the longest responses of its oldest groups, which share the engines with every group that starts
meanwhile and are slowed by them; a group that starts after the push instead gets one version more. Without this bound a
pipeline that the gate limits feeds its own delay: slots of rejected groups are filled again, more groups roll, each
slower, and the gate waits longer. Where few groups are accepted, the engines are the limit and not the gate, so they
stay busy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from ...config import Config
from .learner_timing import LearnerTiming
from .staleness import StalenessRule


class EngineLoad(NamedTuple):
    """Load of all engines as of their last reports, in sequences.

    Attributes:
        sequences: Sequences that decode or queue, and all samples of the groups placed since the last reports. Without
            those of evaluations, which keep no group from starting.
        max_sequences: Sequences that can run at once, as observed: less than configured when the KV cache is short.
        open_engines: Engines that take new groups.
    """

    sequences: float
    max_sequences: float
    open_engines: float

    @classmethod
    def from_stats(cls, stats: Mapping[str, float]) -> EngineLoad | None:
        """Return the load that `Rollout.engine_stats` tells (ports.py explains the names); None if it tells none."""
        if "width" not in stats:
            return None
        return cls(
            sequences=stats["running"] + stats["waiting"] + stats["placed"] - stats["aside"],
            max_sequences=stats["width"],
            open_engines=stats["open"],
        )


@dataclass(frozen=True, slots=True)
class FixedDepth:
    """At most `groups` groups rolling or buffered. Every rolling group may be accepted, so there is no surplus.

    It has the methods of AutoDepth and does not learn.
    """

    groups: int

    def max_accepted(self, rolling: int) -> int:
        return rolling

    def likely_accepted(self, rolling: int) -> int:
        return rolling

    def wants_more(self, rolling: int, waiting: int) -> bool:
        return rolling + waiting < self.groups

    def paused_at_gate(self, rolling: int, waiting: int) -> bool:
        return False

    def group_finished(self, accepted: bool, latency_s: float, rolling: int, load: EngineLoad | None) -> None:
        pass

    def metrics(self) -> dict[str, float]:
        return {}


class AcceptanceWindow:
    """The outcomes of the last groups, and a prediction of the next ones: beta-binomial under a flat prior."""

    def __init__(self, size: int) -> None:
        """Create a window over the last `size` groups."""
        self._outcomes: deque[bool] = deque(maxlen=size)

    def __len__(self) -> int:
        return len(self._outcomes)

    @property
    def accepted(self) -> int:
        """How many of the groups in the window were accepted."""
        return sum(self._outcomes)

    def add(self, accepted: bool) -> None:
        """Record the outcome of a group; forget the oldest one if the window is full."""
        self._outcomes.append(accepted)

    def quantile(self, n: int, z: float) -> float:
        """Return a quantile of how many of n more groups are accepted.

        Uses the Cornish-Fisher expansion up to the skewness of the beta-binomial distribution, which is exact enough
        for n >= 1 and needs no table.

        Args:
            n: Number of groups, at least 1.
            z: The quantile in standard deviations from the mean, for example 2.33 for 99 %.
        """
        a = 1 + self.accepted
        b = 2 + len(self._outcomes) - a
        c = a + b
        mean = n * a / c
        variance = n * a * b * (c + n) / (c * c * (c + 1))
        skewness = (c + 2 * n) * (b - a) / (c + 2) * math.sqrt((1 + c) / (n * a * b * (n + c)))
        return mean + math.sqrt(variance) * (z + (z * z - 1) * skewness / 6)


class AutoDepth:
    """The control law of the module's docstring. One per run; reads no clock: the loop reports durations."""

    OVERADMIT_RISK = 0.01
    """Probability that more groups are accepted than `max_accepted` says. Surplus prompts are queued again."""
    SHORT_WINDOW = 64
    LONG_WINDOW = 256
    """Finished groups from which the acceptance is measured."""
    QUEUE_SHARE = 0.1
    """Allowed queue, as a share of max_sequences."""
    IDLE_SHARE = 0.05
    """Share of its time that even a learner which is the bottleneck waits. More means that it idles."""
    GATE_BATCHES = 2
    """Batches to have accepted or expected while the gate is shut: the one that waits, and the next one."""

    def __init__(self, rule: StalenessRule, samples_per_group: int, timing: LearnerTiming) -> None:
        """Create a controller that knows nothing yet and therefore counts every rolling group as accepted.

        Args:
            rule: The staleness rule of the run.
            samples_per_group: Sequences of one group.
            timing: How long the learner's steps take, as far as it is known.
        """
        self.timing = timing
        self._batch_groups = rule.batch_groups
        self._max_groups = rule.max_groups
        self._initial_demand = max(rule.max_groups, self.GATE_BATCHES * rule.batch_groups)
        self._samples = samples_per_group
        self._z = NormalDist().inv_cdf(1 - self.OVERADMIT_RISK)
        self._short = AcceptanceWindow(self.SHORT_WINDOW)
        self._long = AcceptanceWindow(max(self.LONG_WINDOW, 2 * rule.batch_groups))
        self._latency_s: float | None = None
        self._load = EngineLoad(sequences=0.0, max_sequences=math.inf, open_engines=0.0)
        self._rolling_at_report = 0

    @property
    def acceptance(self) -> float:
        """Share of finished groups that were accepted, with one accepted group before the first.

        An expectation for `wants_more`, where `max_accepted` is a bound. It begins at 1.0; the mean of the bound's Beta
        distribution would begin at 0.5, and a run whose groups are all accepted would start twice as many.
        """
        return (1 + self._long.accepted) / (1 + len(self._long))

    def max_accepted(self, rolling: int) -> int:
        """Return how many of `rolling` groups may be accepted: a bound that the staleness rule builds on."""
        if rolling == 0 or len(self._long) == 0:
            return rolling
        # The larger of both windows: a rise of the acceptance is believed at once, a fall only once both have seen it.
        bound = max(window.quantile(rolling, self._z) for window in (self._short, self._long))
        return min(rolling, math.ceil(bound))

    def likely_accepted(self, rolling: int) -> int:
        """Return how many of `rolling` groups will be accepted, pessimistically; for the end of a run."""
        if rolling == 0 or len(self._long) == 0:
            return rolling
        one_deviation_below_mean = self._long.quantile(rolling, -1.0)
        return max(0, math.floor(min(rolling, one_deviation_below_mean)))

    def wants_more(self, rolling: int, waiting: int) -> bool:
        """Return True if one more group is useful.

        Args:
            rolling: Groups on engines.
            waiting: Accepted groups that wait for the learner, the accumulated parts of an open batch included.
        """
        expected = waiting + self.acceptance * rolling
        return expected < self._demand() and not self._engines_are_full(rolling)

    def paused_at_gate(self, rolling: int, waiting: int) -> bool:
        """Return True if no group should start while a full batch waits for the gate. Arguments as in `wants_more`."""
        expected = waiting + self.acceptance * rolling
        return expected >= max(self.GATE_BATCHES * self._batch_groups, self.acceptance * self._max_groups)

    def group_finished(self, accepted: bool, latency_s: float, rolling: int, load: EngineLoad | None) -> None:
        """Learn from a group that was evaluated.

        Args:
            accepted: True if the filters kept it.
            latency_s: Seconds since its dispatch.
            rolling: Other groups on engines.
            load: Load of the engines, if they report one.
        """
        self._short.add(accepted)
        self._long.add(accepted)
        if self._latency_s is None:
            self._latency_s = latency_s
        else:
            gain = 1 / max(self._batch_groups, 32)
            self._latency_s += gain * (latency_s - self._latency_s)
        if load is not None:
            self._load = load
            self._rolling_at_report = rolling

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the step's row: what was learned."""
        return {"acceptance": self.acceptance}

    def _demand(self) -> float:
        """Return how many accepted groups the learner has use for."""
        work_s = self.timing.work_s
        period_s = self.timing.period_s
        if work_s is None or self._latency_s is None:
            return self._initial_demand
        learner_idles = period_s is not None and period_s * (1 - self.IDLE_SHARE) > work_s
        if learner_idles:
            return math.inf
        return self._batch_groups * (1 + self._latency_s / work_s)

    def _engines_are_full(self, rolling: int) -> bool:
        """Return True if the engines have as many sequences as they should get."""
        if rolling == 0:
            return False  # The last report may be old.
        sequences = self._load.sequences + self._samples * (rolling - self._rolling_at_report)
        # Each engine may queue a group even if others have free places.
        queue = max(self.QUEUE_SHARE * self._load.max_sequences, self._samples * self._load.open_engines)
        return sequences >= self._load.max_sequences + queue


DepthController = FixedDepth | AutoDepth
"""Says how many groups are useful at once."""


def depth_controller(settings: Config, timing: LearnerTiming) -> DepthController:
    """Return the controller that pipeline.depth and pipeline.mode ask for (Config.depth_groups)."""
    depth = settings.depth_groups
    if isinstance(depth, int):
        return FixedDepth(depth)
    return AutoDepth(StalenessRule.from_config(settings), settings.rollout.n_samples_per_prompt, timing)
