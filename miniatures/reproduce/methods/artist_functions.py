"""ARTIST, function calling (arXiv 2505.01441): state and calls over the whole episode are rewarded, in two domains."""

from __future__ import annotations

from ..arms import Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least, at_most
from .artist import METHOD

BEFORE, AFTER = 0.30, 0.80
TURNS = (
    "--env.name",
    "functions",
    "--env.protocol",
    "tool",
    "--env.max_calls",
    "2",
    "--reward.name",
    "artist",
    "--reward.options",
    "functions=true",
)
UPDATES, EVERY = 80, 8
RATE = ("--actor.lr_warmup_ratio", "0.1")
"""A call of the base has two or three values that are right independently, each to be learned from what all of them are
worth: with 24 updates at 3e-4 the share of the right ones came from 18 % to 36 % halfway (seed 42). Adam's first steps
are as long as the rate, however small the gradient: at 1e-3 two of them took this base, which is nearly sure of every
letter (entropy .03 nats), to a share of 0 that it never left."""
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
    arms={"rl": Train((*RATE, *METHOD, "--filter.sample", "over_length"), ("calls_before", "calls"), UPDATES, EVERY)},
    checks=checks,
    panels=(
        Panel("eval/accuracy", "Held-out share with the right state and calls"),
        Panel("eval/calls", "Turns with calls per response"),
    ),
    columns=("accuracy_before", "accuracy", "greedy_accuracy", "calls_before", "calls"),
)
