"""ARTIST, maths (arXiv 2505.01441): a reward composed of answer, format and tool success, beside the answer alone."""

from __future__ import annotations

from ..arms import Train
from ..miniature import Arms, Base, Check, Miniature, Panel, at_least

STRICT, TOOL, FASTER = 0.95, 0.95, 0.1
UPDATES, EVERY = 36, 9
"""Half as many again as the quickstart's, whose 24 took the strict format of seed 11 to 93.5 %."""
FIGURES = ("format_before", "format_halfway", "format", "pass_before", "pass_halfway", "pass")
TURNS = (
    "--env.protocol", "artist", "--env.max_calls", "2", "--rollout.max_new_tokens", "260", "--data.max_len", "340",
    "--reward.name", "artist",
)  # fmt: skip
METHOD = (
    *("--algo.advantage.estimator", "group_norm", "--actor.eps_clip_low_high", "0.2", "0.2", "--filter.names"),
    *("--actor.loss_agg_mode", "seq-mean-token-mean"),
)


def checks(arms: Arms) -> list[Check]:
    composite, answer = arms["composite"], arms["answer_only"]
    return [
        at_least("strict format at the end with the composite reward", composite["format"], STRICT),
        at_least("calls that ran at the end with the composite reward", composite["pass"], TOOL),
        at_least(
            "strict format halfway, composite minus answer alone",
            composite["format_halfway"] - answer["format_halfway"],
            FASTER,
        ),
        at_least(
            "calls that ran halfway, composite minus answer alone",
            composite["pass_halfway"] - answer["pass_halfway"],
            0.0,
        ),
    ]


MINIATURE = Miniature(
    name="artist",
    title="ARTIST: a composite reward",
    claim=(
        "With rewards for format and tool success beside the answer's, both rise to 95 %,"
        " and faster than with the answer alone."
    ),
    base=Base("artist", TURNS),
    arms={
        "composite": Train(METHOD, FIGURES, UPDATES, EVERY),
        "answer_only": Train((*METHOD, "--reward.options", "answer_only=true"), FIGURES, UPDATES, EVERY),
    },
    checks=checks,
    panels=(
        Panel("reward/format_ok", "Strict format"),
        Panel("reward/code_ok", "Calls that ran"),
        Panel("eval/accuracy", "Held-out accuracy"),
    ),
    columns=("accuracy_before", "accuracy", *FIGURES),
    by_construction=(
        "The thought that the strict format asks for changes no answer of this model:"
        " the answer's reward alone has no reason to ask for it."
    ),
)
