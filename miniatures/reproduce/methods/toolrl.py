"""ToolRL (arXiv 2504.13958): a reward for every part of a call that is right, beside one for all or nothing."""

from __future__ import annotations

from ..arms import TWICE_THE_RATE, WARM, Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least, at_most
from .torl import GRPO

UPDATES, EVERY = 96, 8
"""With 32 updates at 5e-4 neither came far (seed 42: fine 9.8 %, coarse 6.6 % perfect), though the fine reward rose to
the end: a call has four slots to be learned, where other miniatures have one decision. With 64 at 1e-3 the fine one was
at a half after 45: a run of less than 90 cannot tell whether the coarse one takes twice as long."""
ACCURACY, RISE, SOONER = 0.5, 0.4, 0.5
SINGLE_STEP = ("--env.name", "echo", "--env.max_calls", "0", "--rollout.max_new_tokens", "160", "--data.max_len", "256")
"""A response is one call, and nobody carries it out."""
FIGURES = ("updates_to_half", "reached_half", "format")


def checks(arms: Arms) -> list[Check]:
    fine, coarse = arms["fine"], arms["coarse"]
    needed = coarse["updates_to_half"]
    there = "" if coarse["reached_half"] else f" (at least {needed:g}: it never got there; the share is at most this)"
    return [
        at_least("held-out share of perfect calls with the fine reward", fine["accuracy"], ACCURACY),
        at_least("what the fine reward adds to no training", fine["accuracy"] - fine["accuracy_before"], RISE),
        at_most(
            f"updates to a half with the fine reward, as a share of those with the coarse one{there},",
            fine["updates_to_half"] / needed,
            SOONER,
        ),
    ]


MINIATURE = Miniature(
    name="toolrl",
    title="ToolRL: the finer reward learns faster",
    claim=(
        "A reward that says how much of a call is right reaches half of the perfect calls in at most half of the"
        " updates that all or nothing needs."
    ),
    base=Base("toolrl", (*SINGLE_STEP, "--env.protocol", "toolrl", "--reward.name", "toolrl")),
    arms={
        "fine": Train((*TWICE_THE_RATE, *WARM, *GRPO), FIGURES, UPDATES, EVERY),
        "coarse": Train((*TWICE_THE_RATE, *WARM, *GRPO, "--reward.options", "coarse=true"), FIGURES, UPDATES, EVERY),
    },
    checks=checks,
    panels=(
        Panel("eval/accuracy", "Held-out share of perfect calls"),
        Panel("reward/format_ok", "Responses in the right format"),
    ),
    columns=("accuracy_before", "accuracy", "greedy_accuracy", "updates_to_half", "format"),
    by_construction=(
        "A call of the base has four slots that are right independently, mostly some and seldom all: partial credit is"
        " there to be given in nearly every group, a perfect call in one of five."
    ),
)
