"""What any fast lane could reach within a staleness bound: python -m benchmarks.pipeline.lane_bound

Beside staleness_bound.py, where all responses of an engine's time share its speed: here each response may be on another
engine at every token, engines with few sequences being faster for each and dearer in all. With n running sequences an
engine takes t(n) = n / r(n) seconds for a token of each, which costs t(n) / n = 1 / r(n) engine-seconds. A response of
unknown length that must be whole within W seconds, if it gets as far as L tokens, costs least, in expectation over the
share S(k) of responses that get to token k, when every position k has the n with the least

    S(k) / r(n) + lambda t(n)          lambda such that the times of all L positions add up to W

The least period P is the one whose responses cost no more than the engines have in it. Left out, so that nothing can be
faster: prefill, prefixes that are computed again, tools, moves, whole numbers of engines and of sequences, queues. Two
cases: all groups start right after a push (W = (S+1) P - T - (S+1) p), or throughout the period as places fall free (up
to P less). Each without and with early accumulation, where the step that waits for the longest takes one part of T. The
last line is one JSON object."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.command import command_parser
from openrlhf_tir.pipeline.scheduler.early_accumulation import MAX_PARTS
from openrlhf_tir.simulation.run import batch_rollout_s
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, EngineSpec, Workload

from .workloads import TOOLS_WORKLOAD

S, FAST_LEARNER = 4, 0.25
DRAWS, POSITIONS, PHASES, ROUNDS = 100_000, 256, 8, 40
STEP = 1.005
"""Periods that are tried are so far apart."""


def survival(w: Workload) -> tuple[np.ndarray, float]:
    """[K] share of the responses that get to each position, and the tokens between two positions."""
    import random

    rng = random.Random(0)
    lengths = np.sort([w.response_tokens.draw(rng) for _ in range(DRAWS)])
    width = w.response_tokens.max / POSITIONS
    return 1 - np.searchsorted(lengths, (np.arange(POSITIONS) + 0.5) * width) / DRAWS, width


def cost_s(engine: EngineSpec, survival_K: np.ndarray, width: float, window_s: float) -> float:
    """Engine-seconds of a response, in expectation; infinite where the longest cannot be whole in the window."""
    numbers = np.array([n for n, _ in engine.decode_tokens_per_s if n <= engine.max_running])
    rates = np.array([engine.decode_rate(int(n)) for n in numbers])

    def at(price: float) -> tuple[float, float]:
        level_K = (survival_K[:, None] / rates + price * numbers / rates).argmin(1)
        return float((numbers / rates)[level_K].sum() * width), float((survival_K / rates[level_K]).sum() * width)

    low, high = 1e-12, 1e6
    if at(low)[0] <= window_s:
        return at(low)[1]
    if at(high)[0] > window_s:
        return float("inf")
    for _ in range(ROUNDS):
        price = (low * high) ** 0.5
        low, high = (price, high) if at(price)[0] > window_s else (low, price)
    return at(high)[1]


def least_period_s(w: Workload, learner_s: float, *, throughout: bool, early: bool = False) -> float:
    survival_K, width = survival(w)
    push_s, responses = w.engine.weight_push_s, w.prompts * w.samples_per_prompt
    period = max(learner_s + push_s, w.prompts / w.saturated_groups_per_s)
    while True:
        phases = (np.arange(PHASES) + 0.5) / PHASES if throughout else [0.0]
        closing_s = learner_s / MAX_PARTS if early else learner_s
        windows = [(S + 1 - phase) * period - closing_s - (S + 1) * push_s for phase in phases]
        if responses * np.mean(
            [cost_s(w.engine, survival_K, width, window) for window in windows]
        ) <= w.engine.count * (period - push_s):
            return period
        period *= STEP


def main() -> None:
    command_parser(__doc__).parse_args()
    facts: dict[str, float] = {}
    for name, path in (("seed", SEED_WORKLOAD), ("tools", TOOLS_WORKLOAD)):
        w = Workload.read(path)
        rollout_s = batch_rollout_s(w)
        learner_s = FAST_LEARNER * rollout_s
        bound_s = max(learner_s, w.prompts / w.saturated_groups_per_s)
        for case, throughout, early in (
            ("after_a_push", False, False),
            ("throughout", True, False),
            ("after_a_push_early", False, True),
            ("throughout_early", True, True),
        ):
            period = least_period_s(w, learner_s, throughout=throughout, early=early)
            facts |= {f"{name}_{case}_step_s": round(period, 1), f"{name}_{case}_of_bound": round(bound_s / period, 3)}
            print(
                f"{name}, S = {S}, groups start {case.replace('_', ' ')}: at least {period:.1f} s a step,"
                f" {bound_s / period:.3f} of the bound",
                flush=True,
            )
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
