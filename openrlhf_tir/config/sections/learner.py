"""The policy, its optimiser and the ranks that train it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from .base import Beta, NonNegative, Option, Section

ALL_LINEAR = "all-linear"


class Lora(Section):
    """Low-rank adapters. Engines and the export get merged weights; the export holds the adapter besides."""

    rank: int = Field(
        0, ge=0, description="of the update that is trained in place of a layer's weights; 0: all weights train"
    )
    alpha: int = Field(16, ge=1, description="the update is scaled by alpha / rank")
    target_modules: list[str] = Field(
        [ALL_LINEAR],
        min_length=1,
        description="names of the layers that get one, e.g. q_proj v_proj; all-linear: all but the head",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="of what an update sees while it trains; ratios then start near 1 instead of at it"
    )


def target_fault(target: str, known: Iterable[str]) -> str:
    """That ds.lora.target_modules has a name that no layer of the model has; `known`: those that it has."""
    return (
        f"ds.lora.target_modules names {target!r}, and the model has no such layer. Known: {', '.join(known)}. Use some"
        f" of them, or {ALL_LINEAR}."
    )


class Muon(Section):
    """With optim = muon: of the matrices between embedding and head. What else there is has AdamW."""

    lr: float = Field(
        0.02, gt=0, description="step size at the end of warm-up, under the same schedule as learning_rate"
    )
    momentum: float = Field(0.95, ge=0, lt=1)
    ns_steps: int = Field(5, ge=1, description="steps of Newton-Schulz by which an update is orthogonalised")
    nesterov: bool = Field(
        True, description="orthogonalise the gradient moved towards its momentum; False: the momentum itself"
    )


class Actor(Section):
    """The policy and its optimiser."""

    model_name_or_path: str = Field("", description="HF directory or name of the policy to start from")
    num_nodes: int = Field(1, ge=1)
    num_gpus_per_node: int = Field(
        8,
        ge=0,
        description=(
            "learner ranks per node; on a machine without GPUs: processes. Unset on one machine: the GPUs that engines"
            " and reward models leave, or one process where there are none"
        ),
    )
    learning_rate: float = Field(1e-6, gt=0, description="Adam step size at the end of warm-up")
    lr_scheduler: Literal["constant", "linear", "cosine", "inverse_sqrt"] = Field(
        "constant", description="shape after warm-up, over train.max_steps"
    )
    lr_warmup_ratio: float = Field(0.0, ge=0, lt=1)
    min_lr_ratio: float = Field(
        0.1, ge=0, le=1, description="final learning rate / learning_rate for linear and cosine"
    )
    adam_betas: tuple[Beta, Beta] = Field(
        (0.9, 0.95), description="what Adam's first and second moment keep of the past, each 0 to less than 1"
    )
    adam_eps: float = Field(1e-8, gt=0, description="added to the root of Adam's second moment")
    l2: float = Field(0.0, ge=0, description="weight decay")
    max_norm: float = Field(1.0, gt=0, description="gradient clipping")
    optim: Literal["adam", "muon"] = "adam"
    muon: Muon = Field(default_factory=Muon)
    eps_clip: float = Field(0.2, gt=0, description="PPO clip range, both sides, when eps_clip_low_high is unset")
    eps_clip_low_high: tuple[NonNegative, NonNegative] | None = Field(
        (0.2, 0.28), description="clip-higher: the upper side is wider, so rare tokens can grow"
    )
    dual_clip: float | None = Field(None, gt=1, description="bounds the loss of negative advantages at c * A")
    policy_loss_type: Literal["ppo", "gspo", "cispo", "pg"] = Field(
        "ppo",
        description=(
            "ppo and gspo are OpenRLHF's; cispo clips the weight instead of the update; pg is the plain policy gradient"
        ),
    )
    pi_old: Literal["engine", "learner"] | None = Field(
        None,
        description=(
            "policy in the denominator of the ratio: 'engine', the one that sampled, by its recorded log-probs;"
            " 'learner', the learner's weights at the start of the batch (a forward pass more where it makes several"
            " updates); unset: engine, or learner with an IS correction"
        ),
    )
    policy_loss: str | None = Field(
        None,
        description=(
            "policy loss of one's own in place of policy_loss_type, 'path/file.py:function' (docs/algorithms.md)"
        ),
    )
    policy_loss_options: dict[str, Option] = Field(
        default_factory=dict, description="what that loss is told, as LossInputs.options"
    )
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"] = Field(
        "token-mean",
        description=(
            "token-mean: over all trained tokens of the update; seq-mean-token-mean: over its sequences, of each one's"
            " mean; seq-mean-token-sum-norm (Dr. GRPO): over its sequences, of each one's sum divided by"
            " loss_agg_constant, so that a token weighs the same in short and long ones"
        ),
    )
    loss_agg_constant: float | None = Field(
        None, gt=0, description="what seq-mean-token-sum-norm divides sums by; default: rollout.max_new_tokens"
    )
    entropy_coef: float | None = Field(
        None, description="entropy bonus; 0 only logs it; unset: logged as well, never in the loss"
    )
    aux_loss_coef: float = Field(
        0.0, ge=0, description="weight of the loss that balances the experts of a mixture, in the policy's loss"
    )
    gradient_checkpointing_enable: bool = False
    gradient_checkpointing_layers: Annotated[int, Field(ge=0)] | Literal["auto"] | None = Field(
        None,
        description=(
            "with gradient_checkpointing_enable: so many layers compute their activations again in the backward pass,"
            " the others keep them, which is faster and takes memory; auto: as few as the memory plan says fit into the"
            " GPU; unset: all"
        ),
    )
    gradient_checkpointing_reentrant: bool = Field(
        False,
        description=(
            "with gradient_checkpointing_enable: torch's older form, which runs a"
            " layer's forward pass without recording it"
        ),
    )

    @property
    def clip(self) -> tuple[float, float]:
        return self.eps_clip_low_high or (self.eps_clip, self.eps_clip)

    @property
    def world_size(self) -> int:
        return self.num_nodes * max(1, self.num_gpus_per_node)


class Ds(Section):
    """DeepSpeed."""

    zero_stage: Literal[2, 3] = 3
    param_dtype: Literal["bf16", "fp16", "fp32"] = Field("bf16", description="fp32 only makes sense on CPU")
    attn_implementation: str = Field(
        "flash_attention_2",
        description=(
            "'sdpa' on CPU; flash_attention_2 or _3 on GPU. Without the package flash-attn flash_attention_2 uses"
            " torch's own flash kernels"
        ),
    )
    adam_offload: bool = Field(False, description="optimiser states in host memory")
    packing_samples: bool = Field(
        False,
        description=(
            "several sequences in one row without padding; needs flash attention or sdpa,"
            " and a model of attention alone"
        ),
    )
    share_prompts: bool = Field(
        True,
        description=(
            "with packing_samples: compute a prompt that several responses in one micro batch follow once, forwards and"
            " backwards; the gradient stays the same"
        ),
    )
    ring_attn_size: int = Field(
        1,
        ge=1,
        description=(
            "learner ranks that share each sequence (DeepSpeed's Ulysses);"
            " multiplies what max_tokens_per_gpu allows; needs packing and sdpa"
        ),
    )
    keep_logits_mib: int = Field(
        0,
        ge=0,
        description=(
            "memory of a rank for logits that the forward pass keeps for the backward, which computes the others again;"
            " all of them (tokens * vocabulary * 2 bytes in bf16) spare a quarter of the head's arithmetic, and change"
            " no result"
        ),
    )
    overlap_comm: bool = False
    experts_implementation: Literal["eager", "batched_mm", "grouped_mm", "deepgemm"] | None = Field(
        None, description="how the experts of a mixture are computed; unset: what transformers finds best"
    )
    zpg: int = Field(1, ge=1)
    grad_accum_dtype: Literal["bf16", "fp16", "fp32"] | None = Field(
        None, description="dtype in which gradients add up over micro batches; default: fp32 (fp16 beside fp16 weights)"
    )
    use_liger_kernel: bool | None = Field(
        None,
        description=(
            "Liger's kernels for norms, rotary embedding and gated MLPs, which read and write activations once; unset:"
            " on a GPU where the package liger-kernel is installed"
        ),
    )
    value_head_prefix: str = Field(
        "score", description="name of the head of a critic or reward model, unless its config.json says another"
    )
    lora: Lora = Field(default_factory=Lora)
