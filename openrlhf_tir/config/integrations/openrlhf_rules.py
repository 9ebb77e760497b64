"""What OpenRLHF does with its arguments after it has parsed them (the ends of its train_ppo_ray.py and train_sft.py).

A command line may hold flags that OpenRLHF itself does not read beside others. They are left out here as well, each
with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...algorithms.advantages import ESTIMATORS
from .openrlhf_command_flags import CommandFlags


class NotRead(NamedTuple):
    """Flags that OpenRLHF does not read in some command lines.

    Attributes:
        names: The flags.
        when: Tells whether it is so in this command line.
        why: What is said of it; empty for flags that change nothing.
    """

    names: tuple[str, ...]
    when: Callable[[CommandFlags], bool]
    why: str


def has_critic(estimator: str) -> bool:
    """Return True if the estimator of this name has a critic; False for a name that nobody knows."""
    return estimator in ESTIMATORS and ESTIMATORS[estimator].critic


def given(name: str) -> Callable[[CommandFlags], bool]:
    """Return a `NotRead.when` that is true if a flag is given."""
    return lambda flags: name in flags


def not_given(name: str) -> Callable[[CommandFlags], bool]:
    """Return a `NotRead.when` that is true if a flag is not given."""
    return lambda flags: name not in flags


def _packs_without_flash_attention(flags: CommandFlags) -> bool:
    packs = "ds.packing_samples" in flags or "train.dynamic_batch_enable" in flags
    return packs and "flash_attention" not in flags.first("ds.attn_implementation")


def _template_has_no_place(flags: CommandFlags) -> bool:
    template = flags.first("data.input_template")
    return bool(template) and "{}" not in template


def _has_no_kl(flags: CommandFlags) -> bool:
    return flags.first("algo.kl.init_coef") == 0


NOT_READ_BY_BOTH = (
    NotRead(
        ("ds.attn_implementation",),
        _packs_without_flash_attention,
        "OpenRLHF takes flash_attention_2 where samples are packed.",
    ),
    NotRead(
        ("data.input_template",),
        _template_has_no_place,
        "It has no {} for the prompt: OpenRLHF leaves it out as well.",
    ),
)
_NO_DATASET = "There is no --eval.dataset."
_AGENT_REWARDS = "The agent file gives the rewards: OpenRLHF does not read it beside one."
NOT_READ_BY_PPO = (
    NotRead(
        ("actor.eps_clip",),
        given("actor.eps_clip_low_high"),
        "OpenRLHF looks at --actor.eps_clip_low_high alone where both are given.",
    ),
    *NOT_READ_BY_BOTH,
    NotRead(
        ("data.input_template",),
        given("data.apply_chat_template"),
        "OpenRLHF does not read it beside --data.apply_chat_template.",
    ),
    NotRead(("reward.remote_url", "reward.model_name_or_path"), given("train.agent_func_path"), _AGENT_REWARDS),
    NotRead(
        ("reward.model_name_or_path",),
        given("reward.remote_url"),
        "OpenRLHF loads no reward model beside --reward.remote_url.",
    ),
    NotRead(
        ("reward.normalize_enable",),
        not_given("reward.model_name_or_path"),
        "It is about the scores of a reward model, and there is none.",
    ),
    NotRead(("reward.num_nodes", "reward.num_gpus_per_node"), not_given("reward.model_name_or_path"), ""),
    NotRead(
        ("algo.kl.use_loss", "algo.kl.target", "algo.kl.horizon", "algo.kl.estimator", "ref.offload"),
        _has_no_kl,
        "algo.kl.init_coef is 0: no reference model is loaded, here as in OpenRLHF.",
    ),
    NotRead(("algo.kl.horizon",), not_given("algo.kl.target"), ""),
    NotRead(("ref.num_nodes", "ref.num_gpus_per_node"), _has_no_kl, ""),
    NotRead(
        ("algo.dynamic_filtering_range",),
        not_given("algo.dynamic_filtering_enable"),
        "--algo.dynamic_filtering_enable is not given.",
    ),
    NotRead(
        ("algo.advantage.is_correction_type",),
        not_given("algo.advantage.is_correction_enable"),
        "--algo.advantage.is_correction_enable is not given.",
    ),
    NotRead(
        ("train.partial_rollout_enable",),
        not_given("train.async_enable"),
        "OpenRLHF refuses it without --train.async_enable.",
    ),
    NotRead(("ckpt.max_num",), given("ckpt.disable_ds"), ""),
    NotRead(("train.ema_beta",), not_given("train.enable_ema"), "It counts only with --train.enable_ema."),
    NotRead(("train.async_queue_size",), not_given("train.async_enable"), "It counts only with --train.async_enable."),
    NotRead(("eval.split", "eval.temperature", "eval.n_samples_per_prompt"), not_given("eval.dataset"), _NO_DATASET),
    NotRead(
        ("eval.steps",),
        lambda flags: "eval.dataset" not in flags and flags.first("eval.steps") != -1,
        _NO_DATASET,
    ),
    NotRead(("eval.steps",), not_given("eval.dataset"), ""),
)
"""In this order: a flag that is left out counts as not given below."""
NOT_READ_BY_SFT = (
    *NOT_READ_BY_BOTH,
    NotRead(("data.input_template",), given("data.apply_chat_template"), ""),
    NotRead(("optim",), lambda flags: flags.first("optim") == "adam", ""),
    NotRead(("eval.split",), not_given("eval.dataset"), _NO_DATASET),
    NotRead(("eval.steps",), not_given("eval.dataset"), ""),
)


def apply_rules_of_ppo(flags: CommandFlags) -> None:
    """Change flags as train_ppo_ray does, and leave out what it does not read."""
    if flags.first("ds.ring_attn_size") > 1 and "train.dynamic_batch_enable" not in flags:
        flags.values["ds.packing_samples"] = []
    _leave_out(NOT_READ_BY_PPO, flags)
    if "actor.eps_clip" in flags:  # one number for both sides
        flags.values["actor.eps_clip_low_high"] = flags.values.pop("actor.eps_clip") * 2
    if flags.first("algo.advantage.estimator") == "grpo":
        flags.notes.append(
            f"{flags.text('algo.advantage.estimator')}: group_norm, OpenRLHF's name of GRPO. It would refuse this one."
        )
        flags.values["algo.advantage.estimator"] = ["group_norm"]
    _leave_out_critic(flags)
    _shard(flags)


def apply_rules_of_sft(flags: CommandFlags) -> None:
    """Change flags as train_sft does, and leave out what it does not read."""
    _leave_out(NOT_READ_BY_SFT, flags)
    _shard(flags)
    size = flags.first("ds.ring_attn_size")
    if size > 1:
        flags.values["ds.attn_implementation"] = ["sdpa"]
        flags.notes.append(shared_by_heads(size))


def shared_by_heads(size: int) -> str:
    """Return what is said of a ring of ranks that share sequences."""
    return (
        f"--ds.ring_attn_size {size}: sequences are shared by heads (DeepSpeed's Ulysses) with"
        " ds.attn_implementation = sdpa, not by a ring of flash attention."
    )


def _leave_out(rows: Iterable[NotRead], flags: CommandFlags) -> None:
    for row in rows:
        if row.when(flags):
            for name in row.names:
                flags.drop(name, row.why)
    if "\\n" in str(flags.first("data.input_template")) and "data.input_template" in flags:
        flags.notes.append(
            f"{flags.text('data.input_template')}: its \\n are a backslash and an n each, as OpenRLHF takes them with a"
            " warning. For line breaks write $'...' around it in bash, and import again."
        )


def _leave_out_critic(flags: CommandFlags) -> None:
    """Leave out what is about a critic where there is none."""
    estimator = flags.first("algo.advantage.estimator")
    names = [name for name in flags.values if name.startswith("critic.")]
    if has_critic(estimator) or not names:
        return
    written = ", ".join(map(flags.text, names))
    flags.notes.append(f"{written}: left out, with the estimator {estimator} there is no critic, in OpenRLHF neither.")
    for name in names:
        flags.drop(name)


def _shard(flags: CommandFlags) -> None:
    """Take stage 2 of ZeRO in place of 0 and 1."""
    if flags.first("ds.zero_stage") not in (2, 3):
        flags.notes.append(f"{flags.text('ds.zero_stage')}: ds.zero_stage = 2, this project shards with 2 or 3.")
        flags.values["ds.zero_stage"] = [2]
