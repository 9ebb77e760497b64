"""ZERO-TIR-RL: training on tool output as well (the environment mask off), then not (on)."""

from __future__ import annotations

from ..arms import Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least

OFF_FIRST = 6
"""Updates without the mask. The notes do not tell when to switch."""
UPDATES, EVERY = 36, 9
"""With 24 all curves still rose: what lay between two arms was where the run had been cut as much as the mask."""
NEVER = ("--train.env_mask_from", "never", "--filter.names")
"""The arm without the mask, and without filters: a model that is destroyed has no group with right and wrong answers,
and with them the run would end as unproductive, without a figure."""
WITHIN, LEARNED = 0.03, 0.85


def checks(arms: Arms) -> list[Check]:
    on, scheduled = arms["on"], arms["off_then_on"]
    return [
        at_least("held-out accuracy with the mask on", on["accuracy"], LEARNED),
        at_least("accuracy off-then-on minus accuracy on", scheduled["accuracy"] - on["accuracy"], -WITHIN),
    ]


MINIATURE = Miniature(
    name="zero_tir_rl",
    title="ZERO-TIR-RL: what masking tool output does",
    claim=(
        "Training on tool output first and masking it from then on ends as high as masking it always;"
        " never masking it is reported as it is."
    ),
    base=Base("world_model"),
    arms={
        "on": Train(updates=UPDATES, every=EVERY),
        "off_then_on": Train(("--train.env_mask_from", str(OFF_FIRST)), updates=UPDATES, every=EVERY),
        "off": Train(NEVER, updates=UPDATES, every=EVERY),
    },
    checks=checks,
    panels=(Panel("eval/accuracy", "Held-out accuracy"), Panel("eval/code_ratio", "Held-out code ratio")),
    columns=("accuracy_before", "accuracy", "code_ratio"),
    by_construction=(
        "The base has learned what tool output looks like, as a pretrained model has. A base that never has is"
        " destroyed by training without the mask, within a few updates."
    ),
)
