"""The registered rewards: everything that is known of one before its module is imported.

    REWARDS["toolrl"]     -> RewardInfo("openrlhf_tir.rewards.toolrl:toolrl", compares=("steps",), ...)
    cfg.reward.used_info  -> the same for every reward that is added up, and OWN for a user's function

A new reward is a file in rewards/ and an entry of REWARDS; nothing else lists the rewards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LabelKind = Literal["answer", "answers", "steps", "calls", "tests"]
"""Kind of a row's label; cli/checks/rows.py has an example of each."""


@dataclass(frozen=True, slots=True)
class RewardInfo:
    """What is known of a reward before its module is imported.

    Attributes:
        function: "module:function", which is imported when it is needed. "" for a user's.
        needs_label: False if it receives no label, or leaves to somebody else what to do with it.
        takes_options: False if it has no options.
        checks_format: False if it does not look at the tags of a response, since somebody else computes it.
        compares: Kinds of labels that it can compare; () if it takes any label.
        label_reader: "module:function" that reads the true calls of a label, and raises ValueError if it cannot. ""
            if a label holds none.
    """

    function: str
    needs_label: bool = True
    takes_options: bool = True
    checks_format: bool = True
    compares: tuple[LabelKind, ...] = ()
    label_reader: str = ""


REWARDS: dict[str, RewardInfo] = {
    "apibank": RewardInfo("openrlhf_tir.rewards.apibank:apibank", takes_options=False),
    "artist": RewardInfo("openrlhf_tir.rewards.artist:artist", compares=("answer",)),
    "bfcl": RewardInfo("openrlhf_tir.rewards.bfcl:bfcl"),
    "env": RewardInfo("openrlhf_tir.rewards.environment:environment", needs_label=False, checks_format=False),
    "format": RewardInfo(
        "openrlhf_tir.rewards.response_format:response_format", needs_label=False, takes_options=False
    ),
    "gsm8k": RewardInfo("openrlhf_tir.rewards.gsm8k:gsm8k"),
    "math": RewardInfo("openrlhf_tir.rewards.math_outcome:math_outcome", takes_options=False, compares=("answer",)),
    "model": RewardInfo("openrlhf_tir.rewards.served.model:model", needs_label=False, checks_format=False),
    "otc": RewardInfo("openrlhf_tir.rewards.otc:otc"),
    "remote": RewardInfo(
        "openrlhf_tir.rewards.remote:remote", needs_label=False, takes_options=False, checks_format=False
    ),
    "retool": RewardInfo("openrlhf_tir.rewards.retool:retool", compares=("answer",)),
    "searchr1": RewardInfo("openrlhf_tir.rewards.searchr1:searchr1", compares=("answer", "answers")),
    "tooln1": RewardInfo(
        "openrlhf_tir.rewards.tooln1:tooln1",
        compares=("calls",),
        label_reader="openrlhf_tir.rewards.tooln1:gold_calls",
    ),
    "toolrl": RewardInfo(
        "openrlhf_tir.rewards.toolrl:toolrl",
        compares=("steps",),
        label_reader="openrlhf_tir.rewards.toolrl:gold_calls",
    ),
    "torl": RewardInfo("openrlhf_tir.rewards.torl:torl", compares=("answer",)),
    "verl": RewardInfo("openrlhf_tir.rewards.verl_default:verl_default", takes_options=False),
    "zerotir": RewardInfo("openrlhf_tir.rewards.zerotir:zerotir", compares=("answer",)),
}
"""Name of a registered reward -> what is known of it."""
OWN = RewardInfo("", needs_label=False)
"""A user's function, which may do without a label."""
