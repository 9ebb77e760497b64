"""Depth: how many groups are under way at once. `pipeline.depth` = a number is FixedDepth, `auto` is AutoDepth, the
default of mode `pipeline`.

Slots are counted in groups, but steps need *accepted* groups. When the filters reject most of what is rolled, a depth
that suits their acceptance of 80 % starves the learner at 10 %. AutoDepth measures and admits one more group while all
three hold:

    staleness   buffered + training + possible(rolling + 1) <= (S+1) B
                possible(n): the 1 - pipeline.overadmit_risk quantile of how many of n rolling groups will be accepted.
                FixedDepth counts all n.
    demand      buffered + a * rolling < B (1 + E[L] / T)
                a: acceptance; L: latency of a group; T: seconds of a learner step and its push. What the learner takes
                while a group rolls: of the groups dispatched at an earlier step, sum_j P(L > jT) <= E[L] / T batches
                are still rolling just before a step, so B are ready. More would only be older when trained. (START B
                before the first step.) In an engine-bound run L grows with depth, and what holds it is:
    engines     rolling < cap
                AIMD on what the engines say, as TCP finds the width of a path: cap starts at START B and grows while
                nothing queues (by one per finished group until the first queue, then by B/8 per round of cap groups),
                * 0.95 when more sequences wait than QUEUE of those running, * 0.7 when one was preempted for lack of
                KV; a cut needs a round's half to show, so none follows earlier. The first step sets it to (W+1) B once
                (W in budget.py): the groups of a start are all young, most of their samples still to be written, and
                queue where twice as many groups of all ages do not. From above, the cap comes down to the engines'
                width in some rounds; from below it climbs for as many steps, the learner waiting.

While a batch is ready and only the gate keeps it (`holds_at_gate`, asked by RunState), demand is START B, whatever
E[L] / T: this batch and the next. What the gate waits for, the longest responses of its oldest groups, shares the
engines with all that starts meanwhile and is slowed by it, and a group that starts after the push instead has one
version more until its own deadline. Without this a pipeline that the gate bounds feeds its own delay: slots of rejected
groups are filled again, more roll, each slower, and the gate waits longer. Where few are accepted, the engines are the
bound and not the gate: the next batch is not under way yet, so they are kept busy.

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

QUEUE = 0.3
"""Waiting / running sequences, of all engines, at which they are full: a place that falls free is taken at once. A
group comes to one engine whole, so some queue while others have gaps: with 0.1 saturated engines decode at 0.9 of their
rate late in the seed workload's training, with 0.3 at 0.95."""
GROW, CUT, CUT_PREEMPTED = 1 / 8, 0.95, 0.7
START = 2
"""Batches: one to train, one that rolls meanwhile. From (S+1) B, small engines begin with a queue, whose latency then
asks for more, and the first step comes later."""
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

    def stepped(self, seconds: float) -> None:
        """To be told how many seconds a learner step and its push took."""

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

    def stepped(self, seconds: float) -> None:
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

    def __init__(self, *, batch_groups: int, risk: float, most: int = 0) -> None:
        """`most`: what the cap is set to by the first step, (W+1) B."""
        self.B, self.most = batch_groups, most
        self.z = NormalDist().inv_cdf(1 - risk)
        self.cap = float(START * batch_groups)
        self.short, self.long = Window(SHORT), Window(max(LONG, 2 * batch_groups))
        self.latency_s: float | None = None
        self.period_s: float | None = None
        self._preemptions = 0.0
        self._since_cut = 0
        self._congested = False

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
        if rolling >= self.cap:
            return False
        batches = START if self.latency_s is None or self.period_s is None else 1 + self.latency_s / self.period_s
        return buffered + self.acceptance * rolling < self.B * batches

    def holds_at_gate(self, rolling: int, buffered: int) -> bool:
        return buffered + self.acceptance * rolling >= START * self.B

    def finished(self, accepted: bool, seconds: float, rolling: int, engines: Mapping[str, float]) -> None:
        self.short.add(accepted)
        self.long.add(accepted)
        gain = 1 / max(self.B, 32)
        self.latency_s = seconds if self.latency_s is None else self.latency_s + gain * (seconds - self.latency_s)
        self._since_cut += 1
        self._steer(rolling, engines)

    def _steer(self, rolling: int, engines: Mapping[str, float]) -> None:
        if "waiting" not in engines:  # nobody tells: then staleness and demand are the only bounds
            self.cap = math.inf
            return
        preempted = engines.get("preemptions", 0.0) > self._preemptions
        self._preemptions = engines.get("preemptions", 0.0)
        if preempted or engines["waiting"] > QUEUE * engines["running"]:
            self._congested = True
            if self._since_cut >= self.cap / 2:
                self.cap = max(1.0, min(self.cap, rolling + 1) * (CUT_PREEMPTED if preempted else CUT))
                self._since_cut = 0
        elif rolling + 1 >= self.cap * (1 - GROW):  # only a cap that binds says that the engines could hold more
            self.cap += self.B * GROW / self.cap if self._congested else 1.0

    def stepped(self, seconds: float) -> None:
        if self.period_s is None:
            self.cap = max(self.cap, float(self.most))
        self.period_s = seconds if self.period_s is None else 0.5 * (self.period_s + seconds)

    def facts(self) -> dict[str, float]:
        facts = {"acceptance": self.acceptance}
        return facts | {"depth_cap": self.cap} if math.isfinite(self.cap) else facts


def depth_for(cfg: Config) -> Depth:
    """What `pipeline.depth` asks for, else the mode: one batch, `auto`, or with drained pushes by staleness."""
    B, limit = cfg.rollout.batch_size, (cfg.batches_ahead + 1) * cfg.rollout.batch_size
    defaults: dict[str, int | Literal["auto"]] = {"sync": B, "one_step": B, "pipeline": "auto", "pipeline_drain": limit}
    depth = cfg.pipeline.depth or defaults[cfg.pipeline.mode]
    if depth == "auto":
        return AutoDepth(batch_groups=B, risk=cfg.pipeline.overadmit_risk, most=limit)
    return FixedDepth(depth)
