"""Interaction scaling (ZeroTIR, arXiv 2505.07773): accuracy grows with N, the calls a response has, and saturates."""

from __future__ import annotations

from ..arms import Sweep, Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least, at_most

N = 4
SWEPT = (0, 2, N, 20)
NONE, HALF, HALF_WITHIN, ALL, SATURATED = 0.10, 0.50, 0.12, 0.88, 0.02


def checks(arms: Arms) -> list[Check]:
    at = arms["sweep"]
    return [
        at_most("accuracy without calls", at["accuracy_0"], NONE),
        at_most("the distance of the accuracy with 2 calls from a half", abs(at["accuracy_2"] - HALF), HALF_WITHIN),
        at_least("accuracy with 4 calls", at["accuracy_4"], ALL),
        at_most(
            "the distance of the accuracy with 20 calls from that with 4",
            abs(at["accuracy_20"] - at["accuracy_4"]),
            SATURATED,
        ),
    ]


ENVIRONMENT = (
    "--env.name",
    "calculator",
    "--env.file",
    "env_servers.calculator:CalculatorEnv",
    "--env.max_calls",
    str(N),
)
LENGTHS = ("--rollout.max_new_tokens", "280", "--data.max_len", "360")

MINIATURE = Miniature(
    name="interaction_scaling",
    title="Interaction scaling: accuracy by the number of calls",
    claim="The same model solves more with more calls, up to the number that the problems need, and no more beyond.",
    base=Base("calculator", (*ENVIRONMENT, *LENGTHS)),
    arms={"rl": Train(figures=("calls_before", "calls")), "sweep": Sweep("rl", SWEPT)},
    checks=checks,
    panels=(
        Panel("eval/accuracy", "Held-out accuracy, trained with 4 calls"),
        Panel("accuracy by N", "Accuracy by N", "N, calls at most"),
        Panel("calls by N", "Calls per response by N", "N, calls at most"),
    ),
    columns=("accuracy_before", "accuracy", *(f"accuracy_{n}" for n in SWEPT)),
    by_construction=(
        "The problems need one to four calls, equally many each, so half of them can be solved with two: the shape"
        " follows from the task. What is seen is that the model makes the calls that it needs, and stops."
    ),
)
