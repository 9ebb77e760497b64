"""The policy, its optimiser and the ranks that train it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from ...algorithms.losses import LOSSES
from ...algorithms.losses.base import Aggregation
from ..setting import ALLOWED, Condition, Fault, Resume, refused, rule, setting
from . import sequence_parallel
from .base import Beta, NonNegative, Option, Section
from .conditions import is_user_code

if TYPE_CHECKING:
    from ..schema import Config

ALL_LINEAR = "all-linear"
SAVED_WITH_IT = refused("the weights were saved with it")

# What becomes of it depends on the checkpoint as well: pipeline/checkpoints/ranks.py decides.
ANY_RANKS = Resume(
    "allowed", "each rank reads its share of the files of all; refused with ds.zero_stage 2 and with Muon"
)


class Lora(Section):
    """Low-rank adapters. Engines and the export get merged weights; the export also holds the adapter."""

    FINE_TUNING: ClassVar[bool] = True

    rank: int = setting(
        0,
        ge=0,
        description="Rank of the update that is trained in place of a layer's weights. 0: all weights train.",
        resume=SAVED_WITH_IT,
        openrlhf=True,
    )
    alpha: int = setting(
        16,
        ge=1,
        description="The update is scaled by alpha / rank.",
        active_when=Condition("with ds.lora.rank above 0", lambda c: c.ds.lora.rank > 0),
        resume=SAVED_WITH_IT,
        openrlhf=True,
    )
    target_modules: list[str] = setting(
        [ALL_LINEAR],
        min_length=1,
        description="Names of the layers that get an adapter, e.g. q_proj v_proj. all-linear: all but the head.",
        active_when=Condition("with ds.lora.rank above 0", lambda c: c.ds.lora.rank > 0),
        resume=SAVED_WITH_IT,
        openrlhf=True,
    )
    dropout: float = setting(
        0.0,
        ge=0,
        lt=1,
        description="Dropout at the adapter's input while it trains. Ratios then start near 1 instead of at it.",
        active_when=Condition("with ds.lora.rank above 0", lambda c: c.ds.lora.rank > 0),
        openrlhf=True,
    )


def target_fault(target: str, known: Iterable[str]) -> str:
    """Return the message about a name in ds.lora.target_modules that no layer of the model has.

    Args:
        target: The name.
        known: The names that the model has.
    """
    return (
        f"ds.lora.target_modules names {target!r}, and the model has no such layer. Known: {', '.join(known)}. Use some"
        f" of them, or {ALL_LINEAR}."
    )


class Muon(Section):
    """Muon's settings, for the matrices between embedding and head. All other weights are trained by AdamW."""

    lr: float = setting(
        0.02,
        gt=0,
        description="Step size at the end of warm-up, under the same schedule as learning_rate.",
        openrlhf=True,
    )
    momentum: float = setting(0.95, ge=0, lt=1, description="Momentum of the gradient.", openrlhf=True)
    ns_steps: int = setting(
        5, ge=1, description="Newton-Schulz steps that orthogonalise an update.", unit="steps", openrlhf=True
    )
    nesterov: bool = setting(
        True,
        description="Orthogonalise the gradient moved towards its momentum. False: the momentum itself.",
        openrlhf=True,
    )


def _has_ratio(c: Config) -> bool:
    return c.policy_loss.has_ratio


WITH_RATIO = Condition("with a loss that has a ratio to clip, unlike actor.policy_loss_type = pg", _has_ratio)
WITH_CHECKPOINTING = Condition(
    "with actor.gradient_checkpointing_enable", lambda c: c.actor.gradient_checkpointing_enable
)


_LOSSES_IN_WORDS = "; ".join(f"{name}: {loss.summary} ({loss.source})" for name, loss in LOSSES.items())


class Actor(Section):
    """The policy and its optimiser."""

    model_name_or_path: str = setting(
        "",
        description="HF directory or name of the policy to start from.",
        short="the model: a directory, or a name on the hub",
        resume=ALLOWED,
        openrlhf=True,
        names="input_files",
        fine_tuning=True,
    )
    num_nodes: int = setting(
        1, ge=1, description="Nodes with learner ranks.", resume=ANY_RANKS, openrlhf=True, fine_tuning=True
    )
    num_gpus_per_node: int = setting(
        8,
        ge=0,
        description=(
            "Learner ranks per node, one GPU each; on a machine without GPUs they are processes. Unset on one machine:"
            " the GPUs that engines and reward models leave, or one process if there are none."
        ),
        resume=ANY_RANKS,
        openrlhf=True,
        fine_tuning=True,
    )
    learning_rate: float = setting(
        1e-6,
        gt=0,
        description="Adam step size at the end of warm-up.",
        short="the policy's learning rate",
        openrlhf="actor.adam.lr",
    )
    lr_scheduler: Literal["constant", "linear", "cosine", "inverse_sqrt"] = setting(
        "constant", description="Shape of the learning rate after warm-up, over train.max_steps."
    )
    lr_warmup_ratio: float = setting(
        0.0,
        ge=0,
        lt=1,
        description="Share of train.max_steps in which the learning rate rises to its value.",
        openrlhf=True,
    )
    min_lr_ratio: float = setting(
        0.1,
        ge=0,
        le=1,
        description="Final learning rate divided by learning_rate.",
        active_when=Condition(
            "with actor.lr_scheduler = linear or cosine", lambda c: c.actor.lr_scheduler in ("linear", "cosine")
        ),
        openrlhf=True,
    )
    adam_betas: tuple[Beta, Beta] = setting(
        (0.9, 0.95),
        description="Adam beta1 and beta2, each in [0, 1).",
        openrlhf="actor.adam.betas",
        fine_tuning=True,
    )
    adam_eps: float = setting(
        1e-8,
        gt=0,
        description="Adam epsilon, added to the root of the second moment.",
        openrlhf="actor.adam.eps",
        fine_tuning=True,
    )
    l2: float = setting(0.0, ge=0, description="Weight decay.", openrlhf="actor.adam.weight_decay", fine_tuning=True)
    max_norm: float = setting(
        1.0,
        gt=0,
        description="Clip the gradient to this norm.",
        active_when=Condition(
            "with actor.optim = adam, since the updates of muon have a fixed norm", lambda c: c.actor.optim != "muon"
        ),
        openrlhf=True,
        fine_tuning=True,
    )
    optim: Literal["adam", "muon"] = setting(
        "adam",
        description="Optimiser.",
        resume=refused("the optimiser's state was saved as that one's"),
        openrlhf=True,
    )
    muon: Muon = setting(
        default_factory=Muon,
        description="Settings of Muon.",
        active_when=Condition("with actor.optim = muon", lambda c: c.actor.optim == "muon"),
    )
    eps_clip_low_high: tuple[NonNegative, NonNegative] = setting(
        (0.2, 0.28),
        description="PPO clip range below and above 1. The upper side is wider, so that rare tokens can grow.",
        active_when=WITH_RATIO,
        openrlhf=True,
    )
    dual_clip: float | None = setting(
        None,
        gt=1,
        description="Bound the loss of a negative advantage A at dual_clip * |A|. Unset: no bound.",
        active_when=Condition(
            f"with actor.policy_loss_type = {' or '.join(name for name, loss in LOSSES.items() if loss.has_dual_clip)}",
            lambda c: not c.actor.own_loss and c.policy_loss.has_dual_clip,
        ),
        openrlhf=True,
    )
    policy_loss_type: str = setting(
        "ppo",
        description=(
            f"Policy loss: {_LOSSES_IN_WORDS}; or your own function, 'path/file.py:function' (docs/algorithms.md)."
        ),
        openrlhf=True,
        names="user_code",
    )
    pi_old: Literal["engine", "learner"] | None = setting(
        None,
        description=(
            "Policy in the denominator of the ratio. 'engine': the policy that sampled, by its recorded log-probs."
            " 'learner': the learner's weights at the start of the batch, at the cost of a forward pass if the batch"
            " makes several updates. Unset: engine, or learner with an IS correction."
        ),
        active_when=Condition(
            "with a loss that has a ratio, unlike actor.policy_loss_type = pg, or with an IS correction",
            lambda c: _has_ratio(c) or c.algo.advantage.is_correction_level != "off",
        ),
    )
    policy_loss_options: dict[str, Option] = setting(
        default_factory=dict,
        description="Options of your own loss, which receives them as LossInputs.options.",
        active_when=Condition(
            "with a loss of your own in actor.policy_loss_type", lambda c: c.actor.own_loss is not None
        ),
    )
    loss_agg_mode: Aggregation = setting(
        "token-mean",
        description=(
            "How the losses of tokens become one. token-mean: mean over all trained tokens of the update."
            " seq-mean-token-mean: mean over its sequences of each one's mean. seq-mean-token-sum-norm (Dr. GRPO): mean"
            " over its sequences of each one's sum divided by loss_agg_constant, so that a token weighs the same in"
            " short and long sequences."
        ),
        active_when=Condition(
            "with a loss that is not a mean over sequences already, as actor.policy_loss_type = gspo is",
            lambda c: not c.policy_loss.over_sequences,
            of_default=True,
        ),
        openrlhf=True,
    )
    loss_agg_constant: float | None = setting(
        None,
        gt=0,
        description="Divisor of the sums. Unset: rollout.max_new_tokens.",
        active_when=Condition(
            "with actor.loss_agg_mode = seq-mean-token-sum-norm",
            lambda c: c.loss_agg_mode == "seq-mean-token-sum-norm",
        ),
    )
    entropy_coef: float | None = setting(
        None, description="Weight of the entropy bonus. Unset or 0: the entropy is only logged.", openrlhf=True
    )
    aux_loss_coef: float = setting(
        0.0,
        ge=0,
        description="Weight of the loss that balances the experts of a mixture, added to the policy's loss.",
        openrlhf=True,
    )
    gradient_checkpointing_enable: bool = setting(
        False,
        description="Compute activations again in the backward pass instead of keeping them: slower, less memory.",
        openrlhf=True,
        fine_tuning=True,
    )
    gradient_checkpointing_layers: Annotated[int, Field(ge=0)] | Literal["auto"] | None = setting(
        None,
        description=(
            "Number of layers that compute their activations again; the others keep them, which is faster and takes"
            " memory. auto: as few as the memory plan says fit into the GPU. Unset: all."
        ),
        unit="layers",
        active_when=WITH_CHECKPOINTING,
    )

    @field_validator("policy_loss_type")
    @classmethod
    def _loss_is_known(cls, name: str) -> str:
        if name not in LOSSES and not is_user_code(name):
            raise ValueError(
                f"actor.policy_loss_type = {name!r} is not registered. Use {', '.join(LOSSES)}, or name a function of"
                " your own: path/file.py:function."
            )
        return name

    @property
    def own_loss(self) -> str | None:
        """The name of a user's own policy loss; None with a registered one."""
        return None if self.policy_loss_type in LOSSES else self.policy_loss_type

    @property
    def world_size(self) -> int:
        """Number of learner ranks."""
        return self.num_nodes * max(1, self.num_gpus_per_node)


class Ds(Section):
    """DeepSpeed."""

    FINE_TUNING: ClassVar[bool] = True

    zero_stage: Literal[2, 3] = setting(
        3,
        description="ZeRO stage. 3 partitions weights, gradients and optimiser states; 2 keeps the weights whole.",
        resume=refused("the optimiser's shards were cut for it"),
        openrlhf=True,
    )
    param_dtype: Literal["bf16", "fp16", "fp32"] = setting(
        "bf16",
        description="Data type of the weights. fp32 only makes sense on CPU.",
        resume=refused("the weights were saved in it"),
        openrlhf=True,
    )
    attn_implementation: str = setting(
        "flash_attention_2",
        description=(
            "Attention kernels: 'sdpa' on CPU, flash_attention_2 or _3 on GPU. Without the package flash-attn,"
            " flash_attention_2 uses torch's own flash kernels."
        ),
        openrlhf=True,
    )
    adam_offload: bool = setting(False, description="Keep optimiser states in host memory.", openrlhf=True)
    packing_samples: bool = setting(
        False,
        description=(
            "Pack several sequences into one row without padding. Needs flash attention or sdpa, and a model of"
            " attention layers only."
        ),
        openrlhf=True,
    )
    share_prompts: bool = setting(
        True,
        description=(
            "Compute a prompt that several responses in one micro batch follow once, forwards and backwards. The"
            " gradient stays the same."
        ),
        active_when=Condition("with ds.packing_samples", lambda c: c.ds.packing_samples),
    )
    ring_attn_size: int = setting(
        1,
        ge=1,
        description=(
            "Learner ranks that share each sequence (DeepSpeed's Ulysses). Multiplies what max_tokens_per_gpu allows;"
            " needs packing and sdpa."
        ),
        unit="ranks",
        openrlhf=True,
    )
    keep_logits_mib: int = setting(
        0,
        ge=0,
        description=(
            "Memory of a rank for logits that the forward pass keeps for the backward pass, which computes the others"
            " again. All of them (tokens * vocabulary * 2 bytes in bf16) save a quarter of the head's arithmetic; no"
            " result changes."
        ),
        unit="MiB",
        resume=ALLOWED,
    )
    overlap_comm: bool = setting(
        False,
        description="Overlap the communication of gradients with the backward pass.",
        resume=ALLOWED,
        openrlhf=True,
    )
    experts_implementation: Literal["eager", "batched_mm", "grouped_mm", "deepgemm"] | None = setting(
        None,
        description="How the experts of a mixture are computed. Unset: what transformers considers best.",
        openrlhf=True,
    )
    zpg: int = setting(
        1,
        ge=1,
        description="Ranks that share one copy of the weights in ZeRO++'s secondary partition. 1: none.",
        unit="ranks",
        active_when=Condition("with ds.zero_stage = 3, whose weights it partitions", lambda c: c.ds.zero_stage == 3),
        openrlhf=True,
    )
    grad_accum_dtype: Literal["bf16", "fp16", "fp32"] | None = setting(
        None,
        description="Data type in which gradients add up over micro batches. Unset: fp32, or fp16 with fp16 weights.",
        openrlhf=True,
    )
    use_liger_kernel: bool | None = setting(
        None,
        description=(
            "Use Liger's kernels for norms, rotary embedding and gated MLPs, which read and write activations once."
            " Unset: on a GPU with the package liger-kernel."
        ),
        openrlhf=True,
    )
    value_head_prefix: str = setting(
        "score",
        description="Name of the head of a critic or reward model, unless its config.json has another.",
        resume=refused("the critic's weights were saved with it"),
        openrlhf=True,
    )
    lora: Lora = Field(default_factory=Lora)


rule("ds.ring_attn_size", commands=("train", "sft"))(sequence_parallel.shared_sequences_are_supported)
rule("ds.ring_attn_size", reads_estimator=True)(sequence_parallel.critic_sees_whole_sequences)


@rule("ds.zpg", commands=("train", "sft"))
def secondary_partition_divides_the_ranks(c: Config) -> Iterator[Fault]:
    ranks = c.actor.world_size
    if ranks % min(c.ds.zpg, ranks):
        yield (
            f"ds.zpg = {c.ds.zpg} does not divide the {ranks} learner ranks, so ZeRO cannot partition by it. Use a"
            " divisor of actor.num_nodes * actor.num_gpus_per_node, or 1."
        )
