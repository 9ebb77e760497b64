"""Depth: how many groups are under way at once. `pipeline.depth` = a number is FixedDepth, `auto` is AutoDepth, the
default of mode `pipeline`.

Slots are counted in groups, but steps need *accepted* groups. When the filters reject most of what is rolled, a depth
that suits their acceptance of 80 % starves the learner at 10 %. AutoDepth measures and admits one more group while all
three hold:

    staleness   buffered + training + possible(rolling + 1) <= (S+1) B
                possible(n): the 1 - pipeline.overadmit_risk quantile of how many of n rolling groups will be accepted.
                FixedDepth counts all n.
    demand      buffered + a * rolling < B (1 + E[L] / T), unless the learner idles
                a: acceptance; L: latency of a group; T: seconds of a learner step and its push. What the learner takes
                while a group rolls: of the groups dispatched at an earlier step, sum_j P(L > jT) <= E[L] / T batches
                are still rolling just before a step, so B are ready. More would only be older when trained. But where
                steps begin every P > T / (1 - IDLE) seconds, it is the engines or the gate that the learner waits for,
                and a group that starts earlier has the longer until its deadline; nor is T known before the first step.
    engines     sequences < width + max(queue * width, n * open)
                sequences: running and waiting as the engines said last, and all samples of the groups admitted since,
                without those of evaluations; width: how many they run at once (actors/router.py). A place that falls
                free is taken at once. (A number of groups says little of how many sequences there are: one that is
                right for young groups starves engines of old ones.)
                One group may wait at each that gets any: it comes there whole, so that some queue while others have
                gaps.
                queue = QUEUE / a, from LEAST to MOST: a token waits that share of the time that it takes to write a
                response, and a period of the engines is 1 / a times as long, so the versions that it ages stay the
                same. After a preemption for lack of KV also rolling < cap, AIMD as TCP finds the width of a path: 0.7
                of what rolled, then B/8 more per round of cap groups.

While a batch is ready and only the gate keeps it (`holds_at_gate`, asked by RunState), no more may start than

    gate        buffered + a * rolling < max(AT_GATE, a (W+1)) B

W as in budget.py: this batch and the next, or, where most are accepted, what a fixed depth of (W+1) B would have. What
the gate waits for, the longest responses of its oldest groups, shares the engines with all that starts meanwhile and is
slowed by it, and a group that starts after the push instead has one version more until its own deadline. Without this a
pipeline that the gate bounds feeds its own delay: slots of rejected groups are filled again, more roll, each slower,
and the gate waits longer. Where few are accepted, the engines are the bound and not the gate: the next batch is not
under way yet, so they are kept busy.

Acceptance is Beta(1 + accepted, 1 + rejected) over the last groups, in a short and a long window; `possible` takes the
larger of their beta-binomial quantiles, so a rise is believed at once and a fall only when both have seen it: while
acceptance is constant or falls, what was admitted fits. What is too much after a rise is surplus (surplus.py).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import NormalDist
from typing import Literal, Protocol

from ..config import Config

QUEUE, LEAST, MOST = 0.05, 0.1, 0.5
"""The queue at full acceptance as a share of what runs, and its bounds."""
GROW, CUT = 1 / 8, 0.7
AT_GATE = 2
"""Batches: the one that waits for the gate, one that rolls meanwhile."""
IDLE = 0.05
"""Share of its time that a learner which is the bound waits all the same."""
SHORT, LONG = 64, 256
"""Finished groups from which acceptance is measured."""


class Depth(Protocol):
    def possible(self, rolling: int) -> int:
        """As many of `rolling` groups as may be accepted: a bound that staleness can be built on."""

    def likely(self, rolling: int) -> int:
        """As many of `rolling` groups as will be accepted at the end of a run, when no more are needed."""

    def wants(self, rolling: int, buffered: int) -> bool:
        """Whether one more group is useful; whether it is allowed is the budget's."""

    def holds_at_gate(self, rolling: int, buffered: int) -> bool:
        """Whether nothing may start while a batch is ready and only the staleness gate keeps the learner from it."""

    def finished(self, accepted: bool, seconds: float, rolling: int, engines: Mapping[str, float]) -> None:
        """A group was judged `seconds` after dispatch; `rolling` others are on `engines` (Rollout.engine_stats)."""

    def stepped(self, seconds: float, period: float | None = None) -> None:
        """To be told how many seconds a learner step and its push took, and how many after the one before it had begun;
        None: it was the first."""

    def facts(self) -> dict[str, float]:
        """What it is guided by, as metrics of the step."""


class FixedDepth:
    """At most `depth` groups rolling or buffered. Every rolling group may be accepted, so none is ever surplus."""

    def __init__(self, depth: int) -> None:
        self.depth = depth

    def possible(self, rolling: int) -> int:
        return rolling

    likely = possible

    def wants(self, rolling: int, buffered: int) -> bool:
        return rolling + buffered < self.depth

    def holds_at_gate(self, rolling: int, buffered: int) -> bool:
        return False

    def finished(self, accepted: bool, seconds: float, rolling: int, engines: Mapping[str, float]) -> None:
        """Does nothing: a fixed depth learns from no outcome."""

    def stepped(self, seconds: float, period: float | None = None) -> None:
        """Does nothing: a fixed depth learns from no outcome."""

    def facts(self) -> dict[str, float]:
        return {}


class Window:
    """The last n outcomes, and how many of them are good."""

    def __init__(self, n: int) -> None:
        self.outcomes: deque[bool] = deque(maxlen=n)
        self.good = 0

    def add(self, outcome: bool) -> None:
        if len(self.outcomes) == self.outcomes.maxlen:
            self.good -= self.outcomes[0]
        self.outcomes.append(outcome)
        self.good += outcome

    def predict(self, n: int, z: float) -> float:
        """Quantile (z normal deviates from the mean) of how many of n more are good: beta-binomial(n, a, b) under a
        flat prior.

        Cornish and Fisher's expansion to the skewness, from the distribution's own moments.
        """
        a, b = 1 + self.good, 1 + len(self.outcomes) - self.good
        c = a + b
        mean = n * a / c
        variance = n * a * b * (c + n) / (c * c * (c + 1))
        skew = (c + 2 * n) * (b - a) / (c + 2) * math.sqrt((1 + c) / (n * a * b * (n + c)))
        return mean + math.sqrt(variance) * (z + (z * z - 1) * skew / 6)


class AutoDepth:
    """The control law above. One per run, fed by the loop; reads no clock."""

    def __init__(self, *, batch_groups: int, samples: int, risk: float, limit: int = 0) -> None:
        """`samples`: n, of a group; `limit`: (W+1) B, what staleness allows."""
        self.B, self.n, self.limit = batch_groups, samples, max(limit, AT_GATE * batch_groups)
        self.z = NormalDist().inv_cdf(1 - risk)
        self.short, self.long = Window(SHORT), Window(max(LONG, 2 * batch_groups))
        self.latency_s: float | None = None
        self.step_s: float | None = None
        self.period_s: float | None = None
        self.sequences, self.width, self.engines = 0.0, math.inf, 0.0
        """In the engines when they told last, with `_then` groups rolling; how many run at once; engines that get
        groups."""
        self._then = 0
        self._preemptions = 0.0
        self.cap = math.inf
        self._since_cut = 0

    # --- acceptance

    @property
    def acceptance(self) -> float:
        """Share of the long window, and one accepted group before it: until something is known, all count."""
        return (1 + self.long.good) / (1 + len(self.long.outcomes))

    def possible(self, rolling: int) -> int:
        if not rolling:
            return 0
        if not self.long.outcomes:
            return rolling
        return min(rolling, math.ceil(max(w.predict(rolling, self.z) for w in (self.short, self.long))))

    def likely(self, rolling: int) -> int:
        return (
            max(0, math.floor(min(rolling, self.long.predict(rolling, -1.0))))
            if rolling and self.long.outcomes
            else rolling
        )

    # --- demand and engines

    def wants(self, rolling: int, buffered: int) -> bool:
        return buffered + self.acceptance * rolling < self.demand and rolling < self.cap and not self.full(rolling)

    @property
    def demand(self) -> float:
        """Accepted groups that the learner has use for."""
        if self.step_s is None or self.latency_s is None:
            return self.limit
        if self.period_s is not None and self.period_s * (1 - IDLE) > self.step_s:
            return math.inf
        return self.B * (1 + self.latency_s / self.step_s)

    def full(self, rolling: int) -> bool:
        """Whether the engines have enough to do. Never with nothing under way: they may have told long ago."""
        sequences = self.sequences + self.n * (rolling - self._then)
        queue = min(MOST, max(LEAST, QUEUE / self.acceptance))
        return rolling > 0 and sequences >= self.width + max(queue * self.width, self.n * self.engines)

    def holds_at_gate(self, rolling: int, buffered: int) -> bool:
        return buffered + self.acceptance * rolling >= max(AT_GATE * self.B, self.acceptance * self.limit)

    def finished(self, accepted: bool, seconds: float, rolling: int, engines: Mapping[str, float]) -> None:
        self.short.add(accepted)
        self.long.add(accepted)
        gain = 1 / max(self.B, 32)
        self.latency_s = seconds if self.latency_s is None else self.latency_s + gain * (seconds - self.latency_s)
        self._since_cut += 1
        if "width" in engines:
            self._look(rolling, engines)

    def _look(self, rolling: int, engines: Mapping[str, float]) -> None:
        self.sequences = engines["running"] + engines["waiting"] + engines["placed"] - engines["aside"]
        self._then, self.width, self.engines = rolling, engines["width"], engines["open"]
        preempted = engines.get("preemptions", 0.0) > self._preemptions
        self._preemptions = engines.get("preemptions", 0.0)
        if preempted and self._since_cut >= rolling / 2:  # a cut needs half a round to show
            self.cap, self._since_cut = max(1.0, CUT * min(self.cap, rolling + 1)), 0
        elif not preempted and rolling + 1 >= self.cap * (1 - GROW):  # only a cap that binds says that more may fit
            self.cap += self.B * GROW / self.cap

    def stepped(self, seconds: float, period: float | None = None) -> None:
        self.step_s = seconds if self.step_s is None else 0.5 * (self.step_s + seconds)
        if period is not None:
            self.period_s = period if self.period_s is None else 0.5 * (self.period_s + period)

    def facts(self) -> dict[str, float]:
        facts = {"acceptance": self.acceptance}
        return facts | {"depth_cap": self.cap} if math.isfinite(self.cap) else facts


def depth_for(cfg: Config) -> Depth:
    """What `pipeline.depth` asks for, else the mode: one batch, `auto`, or with drained pushes by staleness."""
    B, limit = cfg.rollout.batch_size, (cfg.batches_ahead + 1) * cfg.rollout.batch_size
    defaults: dict[str, int | Literal["auto"]] = {"sync": B, "one_step": B, "pipeline": "auto", "pipeline_drain": limit}
    depth = cfg.pipeline.depth or defaults[cfg.pipeline.mode]
    if depth == "auto":
        n = cfg.rollout.n_samples_per_prompt + cfg.rollout.oversample
        return AutoDepth(batch_groups=B, samples=n, risk=cfg.pipeline.overadmit_risk, limit=limit)
    return FixedDepth(depth)
