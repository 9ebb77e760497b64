"""Compute what each GPU, host and disk must hold, from a Config and a model's config.json. Nothing is loaded.

P: parameters, N: learner ranks, w: bytes of a weight (ds.param_dtype), G: GPUs of an engine (tp of tensor parallelism
times pp pipeline stages), T: tokens of a micro batch (`micro_batch_tokens`), h: hidden size, L: layers, V: vocabulary,
k: heads of keys of size d, E: parameters of one layer's experts (0 without experts):

    learner rank   P w / N               weights
                   4 P / N               gradients, accumulated in ds.grad_accum_dtype (fp32 unless set)
                   12 P / N              Adam's moments and master weights; in host memory with ds.adam_offload
                   w max(min(P, 1e9), E) weights of other ranks that are gathered at one time (DeepSpeed's
                                         stage3_max_live_parameters; a layer's experts are two tensors, each of which is
                                         gathered as a whole)
                   w E                   the gradient of these two tensors, before it is cut up
                   w T h L + 1 layer     activations with gradient checkpointing: each layer's input, and one layer
                                         computed again; all of a layer's where it is not computed again
                                         (actor.gradient_checkpointing_layers)
                   2 chunks              logits, never [T, V] (learner/linear_head.py), in fp32 where tokens are
                                         excluded (top-k, top-p, min-p) and on a CPU, else as weights are
                   (4 + w) V h           the head's gradient: summed up over chunks in fp32, then as weights are
                   ds.keep_logits_mib    logits kept from the forward pass for the backward, w T V at most
    engine GPU     P w / G               weights
                   the rest of vllm.gpu_memory_utilization, less ENGINE_RESERVE, for the KV cache: 2 L k d w / (pp
                   min(tp, k)) bytes a token

    host of a rank 12 P / N               with GPUs, the copy that a checkpoint is written from while training goes on;
                                          more with an average, LoRA or a critic
                   P w                    rank 0's alone, with deltas: what was pushed last

With train.colocate_all a rank and an engine share one GPU. While engines sample, the rank keeps its weights and what a
canary's scores gather on the GPU (KEPT), and its gradients and optimiser states are in host memory. While it trains,
the engine keeps ENGINE_RESERVE, and its weights are in host memory.

With ds.ring_attn_size = R, R ranks share each sequence, so each holds 1 / R of the longest one.

A layer's activations are the tensors that transformers' forward pass keeps for the backward pass. Other buffers (NCCL,
CUDA graphs, fragments) are in RESERVE. Critic and reference model are counted by their weights and states.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ..config import Config
from ..config.sections.conditions import estimator_of
from ..machine.sizes import size
from ..pushes import BUCKET_BYTES, EXPOSED_BUCKETS
from .bounds import HEAD_CHUNK_BYTES, HEAD_CHUNK_TOKENS
from .model_size import (
    AVERAGE_BYTES,
    INCOMPLETE,
    OPTIMISER_BYTES,
    WEIGHT_BYTES,
    Experts,
    Sizes,
    checkpoint_bytes,
    config_json,
    parameters,
    sizes_of,
    text_config,
)

LIVE_PARAMETERS = 10**9
"""DeepSpeed's default of stage3_max_live_parameters."""
GRADIENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, None: 4}
RESERVE = 3 << 30
"""Bytes of a learner's GPU kept for the CUDA context, NCCL's buffers and fragments. A round figure, not measured."""
ENGINE_RESERVE = 2 << 30
"""Bytes of an engine's share kept for activations of a prefill and CUDA graphs. A round figure, not measured."""
KEPT = ("weights", "gathered weights", "reserve", "reference model")
"""Parts of a learner rank that stay on its GPU while an engine beside it samples."""
CANARY_TOKENS = 512
"""Tokens of the canary whose log-probs a learner computes while the engine on the same GPU holds its memory. They
decide which part of the "logits" the learner needs then."""

SMALLER = ("quantization", "kv_cache_dtype")
"""Engine arguments that make an engine's weights or its cache smaller than counted, besides all that offload."""

REMEDIES = {
    "weights": (
        "Raise actor.num_nodes or actor.num_gpus_per_node; with ds.zero_stage = 2"
        " every rank holds all weights, with 3 a share."
    ),
    "gradients": "Raise actor.num_nodes or actor.num_gpus_per_node, or set ds.grad_accum_dtype = 'bf16' (less exact).",
    "optimiser": "Set ds.adam_offload, or raise actor.num_nodes or actor.num_gpus_per_node.",
    "activations": (
        "Set actor.gradient_checkpointing_enable, or lower train.max_tokens_per_gpu (not below data.max_len /"
        " ds.ring_attn_size) or, without ds.packing_samples, train.micro_batch_size."
    ),
    "kept logits": "Lower ds.keep_logits_mib.",
    "reference model": "Set ref.offload.",
}


@dataclass(frozen=True)
class Shape(Sizes):
    """Sizes of a decoder.

    Attributes:
        inner: Inner size of the MLP; with experts, of all experts that a token is sent to, shared ones included.
        vocabulary: Size of the vocabulary; 0 if config.json does not tell.
        copies: Experts of a layer that get a copy of a token each; 0 without experts.
        experts: Parameters of one layer's experts among which a router chooses; 0 without experts.
        expert_id_bytes: Bytes of an expert's number (rollout.routing_replay).
    """

    inner: int
    vocabulary: int
    copies: int = 0
    experts: int = 0
    expert_id_bytes: int = 0

    @classmethod
    def of(cls, config: dict[str, Any]) -> Shape | None:
        """Return the sizes in a config.json; None if it is incomplete."""
        text = text_config(config)
        try:
            sizes = sizes_of(text)
            mixture = Experts.of(config)
            if mixture is None or not mixture.chosen:
                inner = int(text["intermediate_size"])
            else:
                inner = mixture.inner * mixture.chosen + mixture.shared
            expert_id_bytes = 0
            if mixture:
                expert_id_bytes = 1 if mixture.count <= 256 else 2
            return cls(
                **vars(sizes),
                inner=inner,
                vocabulary=int(text.get("vocab_size") or 0),
                copies=mixture.chosen if mixture else 0,
                experts=3 * sizes.hidden * mixture.inner * mixture.count if mixture else 0,
                expert_id_bytes=expert_id_bytes,
            )
        except INCOMPLETE:
            return None

    def activation_bytes(self, w: int, *, fused: bool, lean: bool, fp32_attention: bool) -> int:
        """Return the bytes per token that a layer's forward pass keeps for the backward pass.

        These are two norms, each with its input in fp32 and its output (as transformers computes them); q, k, v, and
        the attention's output twice (from the kernel, and as a packed row); gate, its activation, up, and their
        product.

        Args:
            w: Bytes of a weight.
            fused: True with fused kernels (learner/liger.py), which keep less: each norm's input and output in the
                weights' type; q, k, v and the attention's output once; gate, up and their product.
            lean: True on a CPU with weights of two bytes (learner/lean_layers.py): each norm's input and output in the
                weights' type; gate and up alone, but for experts, which stay as they are.
            fp32_attention: True if the attention computes in fp32 where weights have two bytes
                (learner/attention/packed.py, on a CPU): q, k, v and the kernel's output are in fp32.
        """
        copies = 2 * self.copies * self.hidden
        if fused:
            return w * (copies + 4 * self.hidden + 2 * (self.heads + self.keys) * self.head_dim + 3 * self.inner)
        kernel = 2 * (self.heads + self.keys) * self.head_dim * (4 if fp32_attention else w)
        attention = kernel + w * self.heads * self.head_dim
        norms = 4 * w * self.hidden if lean else 2 * (4 + w) * self.hidden
        mlp = (2 if lean and not self.copies else 4) * self.inner
        return norms + w * (copies + mlp) + attention

    @property
    def kv_values(self) -> int:
        """Values in the KV cache per token."""
        return 2 * self.layers * self.keys * self.head_dim

    @property
    def routing_bytes(self) -> int:
        """Bytes of the experts of one token in all layers, as rollout.routing_replay keeps them."""
        return self.layers * self.copies * self.expert_id_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of a run, in bytes unless another unit is given.

    Attributes:
        parameters: Number of the model's parameters.
        ranks: Number of learner ranks.
        learner: One rank's GPU, by parts.
        learner_host: One rank's host memory.
        engine: One of an engine's GPUs, by parts.
        kv_tokens: Tokens that one engine's KV cache holds.
        longest: Tokens of the longest sequence: data.max_len.
        push: Two files of weights: the one that is served and the one that arrives.
        checkpoints: All checkpoints that are kept, and the one that is being written.
        shared: True if a rank and an engine use each GPU in turns.
        at_once: True if a rank and an engine use each GPU at the same time.
        layers: Decoder layers of the model.
        engine_known: True if the engine holds weights and KV cache as counted: neither quantised nor offloaded.
    """

    parameters: int
    ranks: int
    learner: dict[str, int]
    learner_host: int
    engine: dict[str, int]
    kv_tokens: int
    longest: int
    push: int
    checkpoints: int
    shared: bool = False
    at_once: bool = False
    layers: int = 0
    engine_known: bool = True

    @property
    def kept(self) -> int:
        """Bytes that a rank keeps on a GPU while an engine samples on it."""
        if not self.shared:
            return 0
        logits = self.learner["logits"] * CANARY_TOKENS // HEAD_CHUNK_TOKENS["cuda"]
        return sum(n for part, n in self.learner.items() if part in KEPT) + logits

    @property
    def asleep(self) -> int:
        """Bytes that a sleeping engine keeps on a GPU on which a rank trains: CUDA's context, graphs."""
        return ENGINE_RESERVE if self.shared else 0

    @property
    def beside_learner(self) -> int:
        """Bytes that an engine holds on a rank's GPU while the rank trains."""
        return self.engine_gpu if self.at_once else self.asleep

    @property
    def learner_gpu(self) -> int:
        """Bytes of one rank's GPU."""
        return sum(self.learner.values())

    @property
    def engine_gpu(self) -> int:
        """Bytes of one of an engine's GPUs."""
        return sum(self.engine.values())

    @property
    def sequences(self) -> float:
        """Number of sequences of the greatest length that one engine's KV cache holds."""
        return self.kv_tokens / self.longest

    def faults(self, gpu_bytes: int) -> list[str]:
        """Return a sentence for everything that does not fit, with the settings that help.

        An engine is judged only if its memory is known.

        Args:
            gpu_bytes: Bytes of one GPU.
        """
        faults = []
        if self.learner_gpu + self.asleep > gpu_bytes:
            largest = max((name for name in self.learner if name in REMEDIES), key=lambda name: self.learner[name])
            beside = f" beside {size(self.asleep)} of a sleeping engine" if self.shared else ""
            faults.append(
                f"a learner rank needs {size(self.learner_gpu)}{beside} of {size(gpu_bytes)}, most of what can be"
                f" changed for {largest}. {REMEDIES[largest]}"
            )
        if not self.engine_known:
            return faults
        if self.shared and self.engine_gpu + self.kept > gpu_bytes:
            most = max(0, (gpu_bytes - self.kept) * 100 // gpu_bytes) / 100
            faults.append(
                f"an engine's {size(self.engine_gpu)} and the {size(self.kept)} that the learner rank beside it keeps"
                f" are more than {size(gpu_bytes)}. Lower vllm.gpu_memory_utilization to {most:g} or less."
            )
        if self.at_once and self.engine_gpu + self.learner_gpu > gpu_bytes:
            faults.append(
                f"a learner rank's {size(self.learner_gpu)} and the {size(self.engine_gpu)} of the engine beside it"
                f" (train.share_gpus) are more than {size(gpu_bytes)}. Lower vllm.kv_cache_mib or"
                " train.max_tokens_per_gpu, or set train.colocate_all instead, with which they take turns."
            )
        if self.kv_tokens < self.longest:
            faults.append(
                f"an engine's KV cache holds {self.kv_tokens:,} tokens, one sequence may have {self.longest:,}"
                " (data.max_len). Raise vllm.tensor_parallel_size or vllm.gpu_memory_utilization,"
                " or lower data.max_len."
            )
        return faults


def memory_plan(cfg: Config, gpu_bytes: int) -> MemoryPlan | None:
    """Return the plan for GPUs of `gpu_bytes` each; None if the model's size or shape cannot be read here."""
    model = cfg.actor.model_name_or_path
    n, shape = parameters(model), Shape.of(config_json(model))
    if not n or shape is None:
        return None
    w, ranks = WEIGHT_BYTES[cfg.ds.param_dtype], cfg.actor.world_size
    tp, gpus = cfg.vllm.tensor_parallel_size, cfg.vllm.world_size
    weights = math.ceil(n * w / gpus)
    learner, host = learner_parts(cfg, n, shape, w, ranks)
    if cfg.train.colocate_all:
        host += learner.get("gradients", 0) + learner.get("optimiser", 0) + weights
    cache = int(gpu_bytes * cfg.vllm.gpu_memory_utilization) - weights - ENGINE_RESERVE
    if cfg.vllm.kv_cache_mib is not None:
        cache = cfg.vllm.kv_cache_mib << 20
    return MemoryPlan(
        parameters=n,
        ranks=ranks,
        learner=learner,
        learner_host=host,
        engine={"weights": weights, "KV cache": max(0, cache), "reserve": ENGINE_RESERVE},
        kv_tokens=max(0, cache) * min(tp, shape.keys) * (gpus // tp) // (shape.kv_values * w),
        longest=cfg.data.max_len,
        push=2 * n * w,
        checkpoints=checkpoint_bytes(cfg) * (cfg.ckpt.max_num + 1) if cfg.ckpt.max_num else 0,
        shared=cfg.train.colocate_all,
        at_once=cfg.train.share_gpus,
        layers=shape.layers,
        engine_known=not any(name in SMALLER or "offload" in name for name in cfg.vllm.engine_args),
    )


def micro_batch_tokens(cfg: Config) -> int:
    """Return the largest number of tokens in one rank's micro batch (learner/packing.py).

    Packed rows fill train.max_tokens_per_gpu. Without packing, a micro batch has at most train.micro_batch_size rows,
    each padded to the longest. A sequence of data.max_len tokens is always accepted, alone if it exceeds the limit.
    """
    longest = math.ceil(cfg.data.max_len / cfg.ds.ring_attn_size)
    limit = cfg.train.max_tokens_per_gpu
    if not cfg.ds.packing_samples:
        limit = min(limit, cfg.train.micro_batch_size * longest)
    return max(longest, limit)


def recomputed_layers(cfg: Config, shape: Shape) -> int:
    """Return how many layers recompute their activations. "auto" counts as all layers, which takes the least memory."""
    if not cfg.actor.gradient_checkpointing_enable:
        return 0
    number = cfg.actor.gradient_checkpointing_layers
    return min(number, shape.layers) if isinstance(number, int) else shape.layers


def wants_liger(cfg: Config, installed: bool | None = None) -> bool:
    """Return True if a learner with a GPU computes its layers by Liger: as ds.use_liger_kernel says.

    Unset, it does where the package is installed; with sequence parallelism, which was not tested with it, it does not.

    Args:
        cfg: The configuration.
        installed: Whether the learner's node has the package; None if that is this node.
    """
    if cfg.ds.use_liger_kernel is not None:
        return cfg.ds.use_liger_kernel
    if installed is None:
        installed = find_spec("liger_kernel") is not None
    return installed and cfg.ds.ring_attn_size == 1


def learner_parts(
    cfg: Config, n: int, shape: Shape, w: int, ranks: int, *, on_gpu: bool = True
) -> tuple[dict[str, int], int]:
    """Return one rank's GPU by parts, and its host memory.

    Args:
        cfg: The configuration.
        n: Parameters of the model.
        shape: Its shape.
        w: Bytes of a weight.
        ranks: Learner ranks.
        on_gpu: The rank has a GPU, with kernels that keep less than those of a CPU.
    """
    share = math.ceil(n / ranks)
    tokens = micro_batch_tokens(cfg)
    critics = int(estimator_of(cfg).critic)
    trained = critics + (cfg.ds.lora.rank == 0)  # LoRA's own are a hundredth: left out
    models = 1 + critics
    # fp32 weights that ZeRO-3 cuts up are their own master weights
    own_masters = 4 if w == 4 and cfg.ds.zero_stage == 3 else 0
    states = share * (OPTIMISER_BYTES - own_masters) * trained
    recomputed = recomputed_layers(cfg, shape)
    of_layer = tokens * shape.activation_bytes(
        w,
        fused=on_gpu and wants_liger(cfg),
        lean=not on_gpu and w < 4,
        fp32_attention=not on_gpu and cfg.ds.packing_samples,
    )
    activations = w * tokens * shape.hidden * recomputed + of_layer * (shape.layers - recomputed + (recomputed > 0))
    sampling = cfg.rollout
    is_truncated = bool(sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0)
    logit_bytes = w if on_gpu and not is_truncated else 4
    chunk = HEAD_CHUNK_TOKENS["cuda" if on_gpu else "cpu"]
    chunk_bytes = max(HEAD_CHUNK_BYTES, logit_bytes * chunk * shape.vocabulary)
    head = (4 + (w if w < 4 else 0)) * shape.vocabulary * shape.hidden
    parts = {
        "weights": (share * w if cfg.ds.zero_stage == 3 else n * w) * models,
        "gradients": share * GRADIENT_BYTES[cfg.ds.grad_accum_dtype] * trained,
        "optimiser": 0 if cfg.ds.adam_offload else states,
        "gathered weights": w * max(min(n, LIVE_PARAMETERS), shape.experts) if cfg.ds.zero_stage == 3 else 0,
        "activations": activations,
        "logits": 2 * (chunk_bytes if on_gpu else min(chunk_bytes, logit_bytes * tokens * shape.vocabulary)),
        "head's gradient": head * (cfg.ds.lora.rank == 0),
        "experts' gradient": w * shape.experts * (cfg.ds.lora.rank == 0),
        "kept logits": min(cfg.ds.keep_logits_mib << 20, w * tokens * shape.vocabulary),
        "reserve": RESERVE,
    }
    if cfg.push_backend == "ipc":  # the learner keeps the buffers that engines map
        parts["push buffers"] = min(n * w, EXPOSED_BUCKETS * BUCKET_BYTES)
    host = states if cfg.ds.adam_offload else 0
    if cfg.ckpt.max_num:
        host += math.ceil(checkpoint_bytes(cfg) / ranks)
    if cfg.vllm.pushes_changes:
        host += n * w
    if cfg.train.ema_beta and cfg.ds.lora.rank == 0:
        host += share * AVERAGE_BYTES
    if cfg.needs_reference:
        if cfg.ref.offload:
            host += share * w
        else:
            parts["reference model"] = share * w if cfg.ds.zero_stage == 3 else n * w
    return {name: n for name, n in parts.items() if n}, host
