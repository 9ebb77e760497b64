"""What a staleness bound S lets any trainer reach on the workload: python -m benchmarks.pipeline.staleness_bound

A group that starts right after a push must be whole before the S-th step after the next one begins. With steps every P
seconds, of which the learner takes T and the push p, that leaves its longest response, L tokens at the workload's `max`
(every batch has some), a window of

    (S + 1) P - T - (S + 1) p            to decode L tokens in

Meanwhile an engine must write its share of the tokens of B / acceptance groups every P seconds, so on average it
decodes at that rate r. With n running sequences it decodes r(n) tokens/s, each sequence r(n) / n: the faster the
engine, the slower each sequence. The least P for which L fits:

    constant    n is the same all the time, a group starts right after a push
    ideal       n changes as it suits, so that the longest gets the most (the concave hull of the points (r(n), r(n) /
                n)); nothing can be faster
    spread      n is the same all the time, but groups start throughout the period, so the last have P less: what
                refilling freed slots at once gives

Prefill, tools and queues are left out. The last line is one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np

from benchmarks.command import command_parser
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, EngineSpec, Workload

STALENESS = (2, 3, 4)
FAST_LEARNER = 0.25
"""T of the rollout of one batch by itself."""
PRECISION_S = 0.05


def speeds(engine: EngineSpec) -> tuple[np.ndarray, np.ndarray]:
    """[n] tokens/s of an engine with 1, 2, ... sequences, and of one of them."""
    numbers = np.arange(1, engine.max_running + 1)
    rates = np.array([engine.decode_rate(int(n)) for n in numbers])
    return rates, rates / numbers


def hull(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The concave hull of points with growing x."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1 and (y[kept[-1]] - y[kept[-2]]) * (x[i] - x[kept[-2]]) <= (y[i] - y[kept[-2]]) * (
            x[kept[-1]] - x[kept[-2]]
        ):
            kept.pop()
        kept.append(i)
    return x[kept], y[kept]


def least_period_s(
    w: Workload,
    S: int,
    learner_s: float,
    speed: Callable[[float], float],
    acceptance: float = 1.0,
    late_starts: bool = False,
) -> float:
    """The least period of a step. `speed(r)`: tokens/s of a sequence while its engine decodes r. `late_starts`: groups
    start until the next push."""
    push_s, work = w.engine.weight_push_s, w.prompts * w.group_tokens / w.engine.count / acceptance
    period = max(learner_s + push_s, work / w.engine.saturated_tokens_per_s)
    while True:
        window = (S + (not late_starts)) * period - learner_s - (S + 1) * push_s
        if speed(work / period) * window >= w.response_tokens.max:
            return period
        period += PRECISION_S


def main() -> None:
    command_parser(__doc__).parse_args()
    from openrlhf_tir.simulation.run import batch_rollout_s

    w = Workload.read(SEED_WORKLOAD)
    rates, each = speeds(w.engine)
    hull_rates, hull_each = hull(rates, each)
    ways = {
        "constant": (lambda r: float(np.interp(r, rates, each)), False),
        "ideal": (lambda r: float(np.interp(r, hull_rates, hull_each)), False),
        "spread": (lambda r: float(np.interp(r, rates, each)), True),
    }
    rollout_s, saturated_s = batch_rollout_s(w), w.prompts / w.saturated_groups_per_s
    one_step_s = rollout_s + w.engine.weight_push_s
    facts: dict[str, float] = {}
    for S in STALENESS:
        for name, (speed, late) in ways.items():
            fast = least_period_s(w, S, FAST_LEARNER * rollout_s, speed, late_starts=late)
            shares = [w.late.at(step) for step in range(w.late.steps)]
            falling = sum(least_period_s(w, S, saturated_s, speed, share, late) for share in shares)
            facts |= {
                f"fast_learner_{name}_S{S}": round(one_step_s / fast, 2),
                f"late_{name}_S{S}": round(sum(saturated_s / a for a in shares) / falling, 3),
            }
            print(
                f"S = {S}, {name}: fast learner {fast:.1f} s a step, {one_step_s / fast:.2f}x one_step;"
                f" late training {facts[f'late_{name}_S{S}']:.3f}"
            )
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
