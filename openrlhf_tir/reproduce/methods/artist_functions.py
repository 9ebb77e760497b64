"""ARTIST, function calling (arXiv 2505.01441): state and calls over the whole episode are rewarded, in two domains."""

from __future__ import annotations

from ..arms import TWICE_THE_RATE, Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least, at_most
from .artist import METHOD

BEFORE, AFTER = 0.30, 0.80
TURNS = (
    "--env.name", "functions", "--env.protocol", "tool", "--env.max_calls", "2", "--reward.name", "artist",
    "--reward.options", "functions=true",
)  # fmt: skip
LENGTHS = ("--rollout.max_new_tokens", "330", "--data.max_len", "400")


def checks(arms: Arms) -> list[Check]:
    rl = arms["rl"]
    return [
        at_most(
            "held-out share of episodes with the whole state and every call before RL", rl["accuracy_before"], BEFORE
        ),
        at_least("the same after RL", rl["accuracy"], AFTER),
    ]


MINIATURE = Miniature(
    name="artist_functions",
    title="ARTIST: state and calls",
    claim=(
        "Rewarded for the state that it leaves and the calls that it makes, the model comes to leave the right state by"
        " the right calls."
    ),
    base=Base("functions", (*TURNS, *LENGTHS)),
    arms={"rl": Train((*TWICE_THE_RATE, *METHOD, "--filter.sample", "over_length"), ("calls_before", "calls"))},
    checks=checks,
    panels=(
        Panel("eval/accuracy", "Held-out share with the right state and calls"),
        Panel("eval/calls", "Turns with calls per response"),
    ),
    columns=("accuracy_before", "accuracy", "greedy_accuracy", "calls_before", "calls"),
)
