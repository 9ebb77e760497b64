"""What each flag of OpenRLHF 0.11.2's train_ppo_ray means here. A test walks the installed parser and finds none
missing.

    SAME              the same name in Config, the same meaning
    Becomes(keys)     accepted, sets these config keys
    Implied(reason)      accepted: what it asks for is what happens in any case
    Only(value, reason)  accepted at its neutral value, refused at any other
    Refused(reason)      refused with the replacement or the reason

The first three are honoured: the flag has its effect, with whatever value.

The flags that are settings here, most of them under the same name, are declared at the setting (`openrlhf`,
setting.py); this module adds the others. `openrlhf-tir import-openrlhf` reads the table, and OpenRLHF's defaults beside
it (integrations/openrlhf_import.py). On our own command line these names are refused, with the names to use
(foreign_names.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_origin

from .catalog import all_settings
from .problems import Problems

Values = Sequence[str]


@dataclass(frozen=True)
class Same:
    pass


@dataclass(frozen=True)
class Becomes:
    """`to` maps the flag's values to config keys. A later `rank` wins where two flags set the same key.

    preset: it switches something on whose details another flag may change. values: what it accepts, for the message.
    """

    to: Callable[[Values], dict[str, Any]]
    rank: int = 0
    preset: bool = False
    values: str = ""


@dataclass(frozen=True)
class Only:
    value: str
    reason: str


@dataclass(frozen=True)
class Implied:
    reason: str


@dataclass(frozen=True)
class Refused:
    reason: str


Rule = Same | Becomes | Only | Implied | Refused
SAME = Same()


def _one(key: str) -> Becomes:
    return Becomes(lambda v: {key: v[0]})


def _many(key: str) -> Becomes:
    return Becomes(lambda v: {key: list(v)}, rank=1)


def _sets(rank: int = 0, /, **keys: Any) -> Becomes:
    fixed = {k.replace("__", "."): v for k, v in keys.items()}
    return Becomes(lambda v: fixed, rank, preset=True)


def _each(section: str, names: str, rule: Rule) -> dict[str, Rule]:
    return {f"{section}.{name}": rule for name in names.split()}


def _declared() -> dict[str, Rule]:
    """Return the rules of OpenRLHF's flags that are settings here, under the same name or another one.

    OpenRLHF's name is declared at the setting (`openrlhf`, setting.py).
    """
    rules: dict[str, Rule] = {}
    for setting in all_settings():
        name = setting.metadata.openrlhf
        if name is True:
            rules[setting.name] = SAME
        elif name:
            takes_several = get_origin(setting.info.annotation) is tuple
            rules[name] = _many(setting.name) if takes_several else _one(setting.name)
    return rules


SCHEDULERS = {
    "cosine_with_min_lr": "cosine",
    "cosine_warmup_with_min_lr": "cosine",
    "cosine_with_restarts": "cosine",
    "polynomial": "linear",
    "constant_with_warmup": "constant",
}
"""transformers' names -> ours. OpenRLHF hands on no options: one cycle, and a polynomial of power 1. What needs some
(warmup_stable_decay), or a loss at each step (reduce_lr_on_plateau), runs neither there."""
_SLEEPS = (
    "with train.colocate_all engines sleep while the learner trains, and its states are in host memory while they"
    " sample; who has GPUs of its own leaves them to nobody, in OpenRLHF neither"
)
_VLM = "Images are not supported: tasks are text."
_PARALLEL = (
    "Tensor parallel learners are not supported. Add ranks with --actor.num_gpus_per_node, and share long sequences"
    " with --ds.ring_attn_size."
)

RULES: dict[str, Rule] = {
    **_declared(),
    "local_rank": Only("-1", "Ranks are assigned by the launcher."),
    "use_ms": Refused("ModelScope is not supported. Download the model and give its path."),
    # policy and optimiser
    "actor.eps_clip": Becomes(lambda v: {"actor.eps_clip_low_high": [v[0], v[0]]}, preset=True),
    "actor.gradient_checkpointing_reentrant": Refused(
        "Layers are always checkpointed by torch's newer form, which gives the same gradient. Leave it out."
    ),
    "actor.lr_scheduler": Becomes(lambda v: {"actor.lr_scheduler": SCHEDULERS.get(v[0], v[0])}),
    "actor.muon.no_nesterov": _sets(actor__muon__nesterov="false"),
    "actor.freeze_visual_encoder": Refused(_VLM),
    # DeepSpeed
    "ds.load_in_4bit": Refused(
        "The base of LoRA is kept in ds.param_dtype: weights are merged for every push. Leave it out."
    ),
    "ds.ring_attn_head_stride": Only(
        "1",
        "Sequences are shared by heads (DeepSpeed's Ulysses): there is no ring that takes several at a time."
        " Leave it out.",
    ),
    "ds.tensor_parallel_size": Only("1", _PARALLEL),
    "ds.deepcompile": Refused("DeepCompile is not supported. Leave it out."),
    "ds.enable_sleep": Implied(_SLEEPS),
    "ds.use_universal_ckpt": Implied(
        "every checkpoint of ds.zero_stage 3 is resumed on any number of ranks, without converting it"
    ),
    # rollout
    "vllm.enable_sleep": Implied(_SLEEPS),
    "vllm.sync_with_ray": Refused("Weight pushes have their own transports. Choose one with --vllm.sync_backend."),
    # algorithm
    "algo.dynamic_filtering_enable": _sets(filter__accuracy_range=(0.0, 1.0), filter__names=["accuracy"]),
    "algo.dynamic_filtering_range": _many("filter.accuracy_range"),
    # training
    "train.async_enable": _sets(1, pipeline__mode="one_step"),
    "train.partial_rollout_enable": _sets(2, pipeline__mode="pipeline"),
    # Its unit is batches; the import multiplies by the updates of a batch (integrations/openrlhf_import.py).
    "train.async_queue_size": Becomes(lambda v: {"pipeline.max_staleness": v[0]}, preset=True),
    "train.dynamic_batch_enable": _sets(ds__packing_samples="true"),
    "train.colocate_critic_reward": Refused(
        "The critic lives on the policy's ranks, and reward models have GPUs of their own: size them with"
        " --reward.num_gpus_per_node. Leave it out."
    ),
    "train.colocate_actor_ref": Implied("the reference lives on the policy's ranks"),
    "train.enable_ema": _sets(train__ema_beta="0.992"),
    # data
    "data.dataloader_num_workers": Only("0", "Prompts are read and rendered once, before the run. Leave it out."),
    "data.disable_fast_tokenizer": Refused(
        "transformers 5 has no slow tokenizers, and so OpenRLHF 0.11.2 on it none either. Leave it out."
    ),
    "data.image_key": Refused(_VLM),
    "data.max_images_per_prompt": Only("0", _VLM),
    # checkpoints
    "ckpt.max_mem": Only(
        "inf", "The number of checkpoints that are kept is limited by --ckpt.max_num alone. Leave it out."
    ),
    "ckpt.disable_ds": _sets(ckpt__max_num="0"),
    "ckpt.load_enable": _sets(train__resume="true", train__resume_or_start="true"),
    # models beside the policy
    **_each("ref", "num_nodes num_gpus_per_node", Implied("the reference lives on the policy's ranks")),
    **_each("critic", "num_nodes num_gpus_per_node", Implied("the critic lives on the policy's ranks")),
    "critic.lr_scheduler": Becomes(lambda v: {"critic.lr_scheduler": SCHEDULERS.get(v[0], v[0])}),
    "critic.muon.no_nesterov": _sets(critic__muon__nesterov="false"),
    "reward.offload": Implied("a reward model has a GPU of its own, whose memory nobody else can use"),
    "reward.model_name_or_path": Becomes(
        lambda v: {"reward.model_name_or_path": v[0], "reward.name": "model"}, preset=True
    ),
}
"""Name of a flag of OpenRLHF 0.11.2 -> what it means here."""


@cache
def translated() -> frozenset[str]:
    """Return the flags that `translate` must see: all but those that mean the same here."""
    return frozenset(name for name, rule in RULES.items() if not isinstance(rule, Same))


def honoured() -> frozenset[str]:
    """Return the flags that have their effect here with any value, not only with a neutral one."""
    return frozenset(name for name, rule in RULES.items() if isinstance(rule, Same | Becomes | Implied))


def flags_honoured() -> int:
    """Return how many flags are `honoured`."""
    return len(honoured())


_CORRECTION_0_11_0 = {"tis": ("token", "clip"), "icepop": ("token", "mask"), "seq-mask-tis": ("seq", "mask")}
"""is_correction_type of OpenRLHF 0.11.0 -> level and mode since 0.11.2 (openrlhf/models/loss.py of both)."""


def _correction(kind: str) -> dict[str, Any]:
    level, mode = _CORRECTION_0_11_0[kind]
    return {"algo.advantage.is_correction_level": level, "algo.advantage.is_correction_mode": mode}


RULES_0_11_0: dict[str, Rule] = {
    "algo.advantage.is_correction_enable": Becomes(lambda v: _correction("tis"), preset=True),
    "algo.advantage.is_correction_type": Becomes(lambda v: _correction(v[0]), 1, values=" | ".join(_CORRECTION_0_11_0)),
}
"""Flags of 0.10 to 0.11.1 that 0.11.2 no longer has."""
ALL_RULES: dict[str, Rule] = RULES | RULES_0_11_0


def translate(given: Mapping[str, Any], ours: Mapping[str, Any], problems: Problems) -> dict[str, Any]:
    """Return the overrides that OpenRLHF's flags amount to; flags without a meaning here are added to `problems`.

    Args:
        given: Name of a flag -> its value or values as text.
        ours: Overrides under our own names. If one contradicts a translated flag, that is a problem: only one of them
            can have an effect.
        problems: Collects the mistakes.
    """
    ranked: list[tuple[int, str, Becomes, dict[str, Any]]] = []
    for name, given_values in given.items():
        values = [given_values] if isinstance(given_values, str) else list(given_values or ())
        match ALL_RULES[name]:
            case Refused(reason):
                problems.add(f"--{name} is a flag of OpenRLHF that is not taken over. {reason}", code="foreign_flag")
            case Only(value, reason) if not _equal(values, value):
                problems.add(
                    f"--{name} {' '.join(values)} is not supported, only {value}. {reason}", code="invalid_value"
                )
            case Becomes() as rule:
                try:
                    ranked.append((rule.rank, name, rule, rule.to(values)))
                except (IndexError, KeyError, ValueError):
                    fact = f"{' '.join(values)!r}, which is none of its values" if values else "no value"
                    problems.add(f"--{name} has {fact}. Write --{name} {rule.values or 'VALUE'}.", code="invalid_value")
    out: dict[str, Any] = {}
    for _, name, rule, sets in sorted(ranked, key=lambda r: r[0]):
        for key, value in sets.items():
            if not rule.preset and key in ours and ours[key] != value:
                problems.add(
                    f"--{name} {_text(value)} has no effect: it is --{key} here, and that is given as"
                    f" {_text(ours[key])}. Leave one of them out."
                )
        out.update(sets)
    if "train.async_queue_size" in given:
        _queue(out, problems)
    if "algo.advantage.is_correction_type" in given and "algo.advantage.is_correction_enable" not in given:
        problems.add(
            "--algo.advantage.is_correction_type has no effect without --algo.advantage.is_correction_enable (OpenRLHF"
            " 0.11.0). Give both, or --algo.advantage.is_correction_level."
        )
    return out


def _queue(out: dict[str, Any], problems: Problems) -> None:
    """Translate a queue of N batches, with which rollout is up to N batches ahead.

    OpenRLHF samples a batch with one version unless rollouts are partial. Its default of 1 is a mode of its own here.
    """
    mode = out.get("pipeline.mode")
    if mode is None:
        problems.add(
            "--train.async_queue_size has no effect without --train.async_enable."
            " Give both, or --pipeline.mode and --pipeline.max_staleness."
        )
    elif mode == "one_step" and out["pipeline.max_staleness"] == "1":
        del out["pipeline.max_staleness"]
    elif mode == "one_step":
        out["pipeline.mode"] = "pipeline_drain"


def _text(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def _equal(values: Values, neutral: str) -> bool:
    if len(values) != 1:
        return False
    try:
        return float(values[0]) == float(neutral)
    except ValueError:
        return values[0] == neutral
