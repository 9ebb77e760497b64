"""Adapt openrlhf's models, losses and DeepSpeed strategy, on CPU and CUDA. The only module that imports openrlhf.

    PolicyModel         openrlhf's Actor; fp32 as well; returns log-probs and entropy of every position
    value_model         openrlhf's critic: a transformer with a head of one number per position; fp32 as well
    ZeroStrategy        openrlhf's DeepspeedStrategy; gloo on CPU as well; compiles no C++ before the first step
    PolicyLoss, SFTLoss, ValueLoss, aggregate_loss    unchanged
    policy_loss(cfg)    PolicyLoss with this project's configuration

The version is pinned to 0.11.2. tests/unit/house/test_openrlhf_signatures.py checks the signatures that this module
relies on, so that an incompatible upgrade fails there and not in a run.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import deepspeed
import deepspeed.ops
import peft  # noqa: F401  imported before the stubs of flash_attn_importable exist
import torch
import torch.distributed as dist
import transformers.integrations.deepspeed
import transformers.integrations.flash_attention
import transformers.modeling_utils
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch.distributed.device_mesh import init_device_mesh
from transformers.models.auto import auto_factory, configuration_auto

from ..algorithms.losses.is_correction import band
from ..config import Actor as ActorConfig
from ..config import Config, Critic, Lora
from ..config.sections.learner import ALL_LINEAR
from ..errors import ConfigError
from ..machine.gpus import runs_on_gpus
from ..machine.replaced import replaced
from . import liger
from .attention.choice import attention_implementation
from .attention.packed import SDPA_PACKED, SequenceLayout, check_packing, set_layout
from .attention.sequence_parallel import ULYSSES, SequenceParallel, check_heads
from .compile_environment import nvcc_major, prepare_compilation
from .host_memory import limit_buffers
from .lean_layers import make_lean
from .linear_head import ScoringHead
from .lora import check_targets, unmatched_target
from .openrlhf_imports import flash_attn_importable, without_heavy_imports
from .packing import OWN_EXPERTS, MicroBatch
from .recomputation import layers_to_recompute, recompute_first_layers
from .roles.value_head import has_scalar_head
from .routing_replay import RoutingReplay
from .truncation import Truncation

with without_heavy_imports(), flash_attn_importable():
    import openrlhf.utils.utils as openrlhf_utils
    from openrlhf.models.actor import Actor
    from openrlhf.models.loss import PolicyLoss, SFTLoss, ValueLoss, aggregate_loss
    from openrlhf.models.model import get_llm_for_sequence_regression
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    if not runs_on_gpus():
        # DeepSpeed imports it with every optimizer; on a CPU its functions are not compiled anyway (muon.py).
        import deepspeed.runtime.zero.muon.original_muon

__all__ = [
    "PolicyLoss", "PolicyModel", "SFTLoss", "ValueLoss", "ZeroStrategy", "aggregate_loss", "policy_loss", "value_model",
]  # fmt: skip

CPU_ROW_MULTIPLE = 64
"""On a CPU packed rows are padded to a multiple of this many tokens. oneDNN compiles and keeps a kernel for each shape:
with rows of any length a rank of a model with 5 million parameters grew by 11 MB with every update."""
CHECKPOINTING = {"use_reentrant": False}
"""Options of activation checkpointing: torch's newer form, which records a layer's forward pass."""
PERSISTENT_BELOW = DeepSpeedZeroConfig().param_persistence_threshold
"""ZeRO-3 keeps parameters with fewer elements than this whole on every rank (DeepSpeed's default)."""


@contextmanager
def _loading_rules() -> Iterator[None]:
    """Change two habits of openrlhf's loaders inside the block.

    Their table of dtypes has only bf16 and fp16: fp32 is allowed as well. They ask for trust_remote_code=True: code in
    the model's directory (auto_map of config.json) is not run, since the engines do not run it either.
    """
    convert_to_torch_dtype = openrlhf_utils.convert_to_torch_dtype
    resolve_trust_remote_code = auto_factory.resolve_trust_remote_code

    def without_remote_code(trust_remote_code: bool | None, *args: Any, **kwargs: Any) -> Any:
        return resolve_trust_remote_code(False, *args, **kwargs)

    def with_fp32(name: str) -> torch.dtype:
        return torch.float32 if name == "fp32" else convert_to_torch_dtype(name)

    with (
        replaced(openrlhf_utils, "convert_to_torch_dtype", with_fp32),
        replaced(auto_factory, "resolve_trust_remote_code", without_remote_code),
        replaced(configuration_auto, "resolve_trust_remote_code", without_remote_code),
    ):
        yield


@contextmanager
def _explained_lora_error(actor: Actor, cfg: Config) -> Iterator[None]:
    """Turn peft's error for LoRA targets of which none exists into a ConfigError that lists the existing ones."""
    try:
        yield
    except ValueError as error:
        if not cfg.ds.lora.rank or "not found in the base model" not in str(error):
            raise
        raise unmatched_target(", ".join(cfg.ds.lora.target_modules), actor.model) from error


def _attention(cfg: Config) -> str:
    """Return the name by which transformers knows the attention kernel of this run."""
    if cfg.ds.ring_attn_size > 1:
        return ULYSSES
    implementation = attention_implementation(cfg.ds.attn_implementation)
    return SDPA_PACKED if cfg.ds.packing_samples and implementation == "sdpa" else implementation


class PolicyModel(Actor):
    """openrlhf's Actor, loaded from actor.model_name_or_path, which returns scores in place of logits.

    use_cache is off: with a cache, packed sequences see each other, and log-probs were wrong by up to 0.6.
    """

    def __init__(self, cfg: Config, strategy: ZeroStrategy, *, frozen: bool = False) -> None:
        """Load the model.

        Args:
            cfg: The configuration.
            strategy: The strategy that will wrap the model in a DeepSpeed engine.
            frozen: True for the reference: no gradients, no LoRA, no checkpointed activations. Its weights may stay in
                host memory between forward passes (ref.offload).

        Raises:
            ConfigError: The model cannot be trained with these settings (packing, LoRA targets, sequence parallelism,
                auxiliary loss), or its logits are not those of one linear layer.
        """
        lora = cfg.ds.lora if not frozen else Lora()
        if liger.is_used(cfg, on_gpu=strategy.device != "cpu"):
            liger.apply(cfg.actor.model_name_or_path)
        with _loading_rules(), _explained_lora_error(self, cfg):
            super().__init__(
                cfg.actor.model_name_or_path,
                attn_implementation=_attention(cfg),
                param_dtype=cfg.ds.param_dtype,
                ds_config=strategy.get_ds_eval_config(cfg.ref.offload) if frozen else strategy.get_ds_train_config(),
                packing_samples=cfg.ds.packing_samples,
                use_liger_kernel=False,  # liger.apply has replaced the layers' classes
                experts_implementation=cfg.ds.experts_implementation,
                temperature=cfg.rollout.temperature,
                lora_rank=lora.rank,
                lora_alpha=lora.alpha,
                lora_dropout=lora.dropout,
                target_modules=ALL_LINEAR if lora.target_modules == [ALL_LINEAR] else lora.target_modules,
            )
        check_heads(self.model.config, cfg.ds.ring_attn_size)
        if cfg.ds.packing_samples:
            check_packing(self.model)
        if lora.rank:
            check_targets(self.model, lora.target_modules)
        if cfg.actor.aux_loss_coef and not getattr(self.model.config, "output_router_logits", False):
            raise ConfigError(
                f"actor.aux_loss_coef = {cfg.actor.aux_loss_coef:g} balances the experts of a mixture, but"
                f" {type(self.model).__name__} has no experts, or does not report how they were chosen. Leave it out."
            )
        self.aux_loss: torch.Tensor | None = None
        """[] float: how unevenly the last forward pass used the experts of a mixture; None for other models."""
        self.truncation = Truncation.of(cfg)
        self.sequence_parallel = strategy.sequence_parallel
        self.row_multiple = self.sequence_parallel.size
        """Packed rows are padded to a multiple of this many tokens."""
        # The balance of a mixture's experts would count the padding as tokens.
        if strategy.device == "cpu" and self.row_multiple == 1 and not cfg.actor.aux_loss_coef:
            self.row_multiple = CPU_ROW_MULTIPLE
        self.takes_layouts = self.model.config._attn_implementation == SDPA_PACKED
        """True if the attention is told where the sequences of a packed row begin (`set_layout`)."""
        self.can_share_prompts = cfg.shares_prompts and self.takes_layouts
        """True if rows with the same prompt may compute it once."""
        self.hf_config = self.model.config
        self.routing = RoutingReplay(self.model) if cfg.rollout.routing_replay and not frozen else None
        self.head = ScoringHead(_output_layer(self.model), cfg.ds.keep_logits_mib << 20)
        join_layers(self.model)
        if _is_lean(cfg, strategy):
            make_lean(self.model)
        if frozen:
            self._offload = cfg.ref.offload  # openrlhf's strategy reads this attribute
            self.requires_grad_(False)
        elif cfg.actor.gradient_checkpointing_enable:
            self.gradient_checkpointing_enable(CHECKPOINTING)
            recompute_first_layers(self.model, layers_to_recompute(cfg, strategy.device))

    def log_probs(self, micro: MicroBatch, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """Return the log-probs at temperature 1, without truncation, [b, L-1] float32; see `score`."""
        return self.score(micro, wanted=wanted, as_sampled=False)[0]

    def score(
        self,
        micro: MicroBatch,
        *,
        entropy_grad: bool = False,
        wanted: torch.Tensor | None = None,
        as_sampled: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probs and entropies of a micro batch. The logits of all positions never exist at the same time.

        Args:
            micro: The micro batch.
            entropy_grad: True if the entropies need a gradient.
            wanted: [b, L-1] bool: the tokens to compute; None: all.
            as_sampled: Use the distribution that the rollout samples from (its temperature, top-k, top-p and min-p);
                False: the plain softmax.

        Returns:
            Log-probs and entropies, both [b, L-1] float32. Entry t is about token t+1; it is 0 where `wanted` is False.
        """
        sequences = micro.sequences
        targets = sequences.roll(-1, dims=1)
        if wanted is not None:
            wanted = torch.nn.functional.pad(wanted, (0, 1))  # the last position predicts no token
        options: dict[str, Any] = {"entropy_grad": entropy_grad}
        if as_sampled:
            options |= {"temperature": self.temperature, "truncation": self.truncation}
        if self.packing_samples:
            log_probs, entropy = self._score_packed(micro, targets, wanted, options)
        else:
            mask = micro.attention_mask
            positions = (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 1)
            self._replay(micro.experts)
            log_probs, entropy = self._scores(sequences, positions, targets, wanted, options, mask)
        return log_probs[:, :-1], entropy[:, :-1]

    def _score_packed(
        self, micro: MicroBatch, targets: torch.Tensor, wanted: torch.Tensor | None, options: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute a micro batch as one row [1, T], and return log-probs and entropies [b, L].

        Each rank of a sequence-parallel group computes a slice of the row.
        """
        tokens = micro.packed
        assert tokens is not None, "the runner packs what this model computes"
        source = tokens.source
        parallel = self.sequence_parallel
        padding = -len(source) % self.row_multiple

        def packed(values: torch.Tensor, filling: int = 0) -> torch.Tensor:
            """Return this rank's slice of the packed row, [1, S, ...], from padded values [b, L, ...]."""
            row = values.flatten(0, 1)[source]
            return parallel.slice(torch.cat([row, row.new_full((padding, *row.shape[1:]), filling)])[None])

        inputs = packed(micro.sequences)
        # The padding is a sequence of its own, which no other token sees.
        positions = parallel.slice(torch.cat([tokens.positions, torch.arange(padding, device=source.device)[None]], 1))
        if self.takes_layouts:
            lengths = list(tokens.lengths) + [padding] * bool(padding)
            continues = list(tokens.continues) + [-1] * bool(padding)
            set_layout(positions, SequenceLayout.of_segments(lengths, continues, positions.device))
        packed_wanted = None if wanted is None else packed(wanted)
        self._replay(None if micro.experts is None else packed(micro.experts, OWN_EXPERTS))
        scores = self._scores(inputs, positions, packed(targets), packed_wanted, options, None)
        shape = micro.sequences.shape
        rows = (parallel.gather(values)[0, : len(source)] for values in scores)
        log_probs, entropy = (row.new_zeros(shape.numel()).index_copy(0, source, row).view(shape) for row in rows)
        return log_probs, entropy

    def _replay(self, experts: torch.Tensor | None) -> None:
        """Make the routers use these experts, [..., layers, k], in the next forward pass and its recomputation."""
        if self.routing is not None:
            self.routing.use(None if experts is None else experts.flatten(0, -3))

    def _scores(
        self,
        inputs: torch.Tensor,
        positions: torch.Tensor,
        targets: torch.Tensor,
        wanted: torch.Tensor | None,
        options: dict[str, Any],
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model with its head scoring `targets` in place of logits. All arguments and results are [b, L]."""
        with self.head.scoring(targets, wanted=wanted, **options):
            output = self.model(inputs, attention_mask=mask, position_ids=positions)
        self.aux_loss = output.get("aux_loss")
        log_probs, entropy = output["logits"].unbind(-1)
        return log_probs, entropy


def join_layers(model: torch.nn.Module) -> None:
    """Make each decoder layer one unit for ZeRO-3 if there is nothing to gather in it.

    That is the case with one rank, and where all weights are so small that every rank keeps them. DeepSpeed's hooks on
    each submodule would only cost time: an H200 waited for them in a third of a step of a model with 0.5 billion
    parameters.
    """
    names = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in names]
    sizes = (getattr(weight, "ds_numel", weight.numel()) for layer in layers for weight in layer.parameters())
    if layers and (dist.get_world_size() == 1 or all(size < PERSISTENT_BELOW for size in sizes)):
        deepspeed.utils.set_z3_leaf_modules(model, list({type(layer) for layer in layers}))


def _is_lean(cfg: Config, strategy: ZeroStrategy) -> bool:
    """Return True if norms and MLPs keep only their inputs; the memory plan counts with it (memory_plan.py).

    In fp32, where they keep fewer copies, they stay as they are.
    """
    return strategy.device == "cpu" and cfg.ds.param_dtype != "fp32"


def value_model(cfg: Config, strategy: ZeroStrategy) -> torch.nn.Module:
    """Load openrlhf's critic from critic.model_name_or_path, or from the policy's model with a new head.

    A new head depends on train.seed only, so that it is the same with any number of ranks.

    Returns:
        A model that is called with (sequences [b, L], mask [b, L-1], attention_mask [b, L]) and returns values
        [b, L-1]. Entry t is the value of the prefix that ends before token t+1.

    Raises:
        ConfigError: With packing, the sequences of a row would see each other in this model.
    """
    name = cfg.critic.model_name_or_path or cfg.actor.model_name_or_path
    with _loading_rules():
        model = get_llm_for_sequence_regression(
            name,
            "critic",
            param_dtype=cfg.ds.param_dtype,
            attn_implementation=_attention(cfg),
            ds_config=strategy.get_ds_train_config(),
            packing_samples=cfg.ds.packing_samples,
            value_head_prefix=cfg.ds.value_head_prefix,
            experts_implementation=cfg.ds.experts_implementation,
        )
    if cfg.ds.packing_samples:
        check_packing(model)
    join_layers(model)
    if _is_lean(cfg, strategy):
        make_lean(model)
    if name == cfg.actor.model_name_or_path or not has_scalar_head(name, model.value_head_prefix):
        _initialize_head(getattr(model, model.value_head_prefix).weight, cfg.train.seed)
    if cfg.actor.gradient_checkpointing_enable:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
    return model


def _initialize_head(weight: torch.nn.Parameter, seed: int) -> None:
    """Draw a value head from a normal distribution of standard deviation 1 / (hidden size + 1), as openrlhf does."""
    with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
        values = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
        weight.data.copy_(values / (weight.shape[-1] + 1))


def _output_layer(model: torch.nn.Module) -> torch.nn.Linear:
    """Return the layer that computes the logits.

    Raises:
        ConfigError: The logits are more than the output of one linear layer, so `ScoringHead` would compute other ones.
    """
    layer = model.get_output_embeddings()
    capped = getattr(model.config, "final_logit_softcapping", None) or getattr(model.config, "logit_scale", None)
    if not isinstance(layer, torch.nn.Linear) or capped:
        raise ConfigError(
            f"{type(model).__name__} computes its logits with {type(layer).__name__}"
            f"{' and a cap or scale' if capped else ''}, but the learner supports only models whose head is one linear"
            " layer (Qwen, Llama, Mistral, ...). Choose another actor.model_name_or_path."
        )
    return layer


class ZeroStrategy(DeepspeedStrategy):
    """openrlhf's DeepSpeed strategy on the device that torch has. The caller decides the micro batches of each step."""

    def __init__(self, cfg: Config) -> None:
        # With dynamic_batch_enable openrlhf configures DeepSpeed with gradient_accumulation_steps = 1, so that
        # DeepSpeed does not divide the loss (see algorithms/global_counts.py).
        args = SimpleNamespace(ds=cfg.ds, train=SimpleNamespace(dynamic_batch_enable=True), local_rank=-1)
        super().__init__(
            seed=cfg.train.seed,
            max_norm=cfg.actor.max_norm,
            zero_stage=cfg.ds.zero_stage,
            args=args,
            full_determinism=cfg.train.full_determinism_enable,
        )
        self.device = "cpu"
        self.colocated = cfg.train.colocate_all
        self.sequence_parallel = SequenceParallel()

    def setup_distributed(self, rank: int, world_size: int, master_addr: str, master_port: int) -> None:
        """Join the process group, and seed torch, numpy and Python.

        Args:
            rank: This rank.
            world_size: Number of ranks.
            master_addr: Host of the store, which already listens (rendezvous.py).
            master_port: Port of the store.
        """
        seed = transformers.enable_full_determinism if self.full_determinism else transformers.set_seed
        seed(self.seed)
        local_rank = 0
        if torch.cuda.is_available():
            local_rank = rank % torch.cuda.device_count()
            torch.cuda.set_device(local_rank)
            self.device = f"cuda:{local_rank}"
            compiles = self.colocated or self.args.ds.adam_offload
            prepare_compilation(nvcc_major() if compiles else None, torch.version.cuda)
        # DeepSpeed reads these in every initialize(); if one is missing, it tries MPI.
        env = {
            "RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_RANK": local_rank,
            "MASTER_ADDR": master_addr,
            "MASTER_PORT": master_port,
            "TORCHELASTIC_USE_AGENT_STORE": True,  # the store exists already; otherwise rank 0 would open one
        }
        os.environ.update({name: str(value) for name, value in env.items()})
        # torch 2.13 renamed collectives that DeepSpeed 0.19 calls, and warns at every call.
        warnings.filterwarnings(
            "ignore", message=".*(reduce_scatter_tensor|all_gather_into_tensor)", category=FutureWarning
        )
        # The op is for all-reduces of inference only. Without this line a fresh machine compiles it for 45 s, in the
        # first step.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(
            dist_backend="nccl" if self.device != "cpu" else "gloo",
            timeout=timedelta(minutes=60),  # of every collective
            rank=rank,
            world_size=world_size,
        )
        self.world_size = world_size
        group_size = self.args.ds.ring_attn_size
        self.ds_device_mesh = init_device_mesh(
            self.device.split(":")[0], (world_size // group_size, group_size, 1), mesh_dim_names=("dp", "sp", "tp")
        )
        self.ring_attn_rank = 0  # turns openrlhf's ring attention off, which needs flash-attn
        if group_size > 1:
            self.sequence_parallel = SequenceParallel(self.ds_device_mesh["sp"].get_group())

    @property
    def shard(self) -> int:
        """Index of the share of a batch that this rank trains, together with its sequence-parallel group."""
        return dist.get_rank() // self.sequence_parallel.size

    def sum_over_rows(self, local: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks of what each computed on its rows. Collective.

        The rows of a sequence-parallel group count once, although each of its ranks has them.
        """
        total = self.sequence_parallel.once(local).clone()
        dist.all_reduce(total)
        return total

    def get_ds_train_config(self, optim_dict: dict | None = None, *, max_norm: float | None = None) -> dict:
        """Return openrlhf's configuration with the changes below.

        torch's fused AdamW takes the place of DeepSpeed's FusedAdam: it computes the same and needs no compilation. On
        a CPU it takes a fifth of the time of torch's default AdamW, and no arrays for intermediate results. The
        exceptions are states that are offloaded (ds.adam_offload) or moved (device_states.py).

        Args:
            optim_dict: Type and parameters of the optimizer; None for a model whose optimizer comes later.
            max_norm: Gradients are clipped to this norm; None: openrlhf's default.
        """
        config = super().get_ds_train_config(optim_dict, max_norm=max_norm)
        is_muon = optim_dict is not None and optim_dict["type"] == "Muon"
        moves = self.colocated and self.device != "cpu"  # DeepSpeed can move only the states of its own FusedAdam
        if optim_dict is not None and not self.adam_offload and not moves:
            config["optimizer"]["params"]["torch_adam"] = True
            if not is_muon:  # DeepSpeed makes Muon's AdamW, and does not pass this on
                config["optimizer"]["params"]["fused"] = True
        config["steps_per_print"] = None
        # In bf16 the sum over 64 to 256 micro batches is wrong by 1 to 2 %. DeepSpeed has no float32 sums for fp16
        # weights.
        if self.args.ds.param_dtype != "fp16":
            config["data_types"]["grad_accum_dtype"] = self.grad_accum_dtype or "fp32"
        # DeepSpeed's own linear layer saves the memory of gathered weights. On CPU and with one rank it saves none, and
        # is slower than torch's.
        config["zero_optimization"]["memory_efficient_linear"] = self.device != "cpu" and self.world_size > 1
        # Muon gathers the matrices of one sub group at a time, so it keeps DeepSpeed's size.
        limit_buffers(config["zero_optimization"], self.device, whole_gradients=is_muon)
        return config

    def get_ds_eval_config(self, offload: bool = False) -> dict:
        """Return openrlhf's configuration of a model that is not trained.

        DeepSpeed checks its batch size although it does not use it; the value here is valid for any number of ranks.
        """
        config = super().get_ds_eval_config(offload)
        del config["train_batch_size"]
        config["train_micro_batch_size_per_gpu"] = 1
        config["steps_per_print"] = None
        config["zero_optimization"]["memory_efficient_linear"] = self.device != "cpu" and self.world_size > 1
        config["zero_optimization"]["offload_param"]["pin_memory"] = self.device != "cpu"
        return config

    def prepare_training(
        self, model: torch.nn.Module, cfg: Config, optim: ActorConfig | Critic
    ) -> tuple[Any, torch.optim.Optimizer]:
        """Wrap `model` in a DeepSpeed engine with the optimizer that `optim` configures.

        The caller sets the learning rate before each step.

        Returns:
            The model (openrlhf's wrapper of the engine, or the engine), and the optimizer.
        """
        settings = {
            "optim": optim.optim,
            "muon": {"lr": optim.muon.lr, "momentum": optim.muon.momentum},
            "adam": {
                "lr": optim.learning_rate,
                "betas": optim.adam_betas,
                "eps": optim.adam_eps,
                "weight_decay": optim.l2,
            },
            "lr_scheduler": "constant",
            "scheduler_steps": cfg.train.max_steps,
            "max_norm": optim.max_norm if optim.optim == "adam" else 0.0,
        }
        model, optimizer, _ = self.prepare((model, settings))
        return model, optimizer


def policy_loss(cfg: Config) -> PolicyLoss:
    """Return openrlhf's PolicyLoss as configured."""
    advantage = cfg.algo.advantage
    low, high = cfg.actor.eps_clip_low_high
    return PolicyLoss(
        clip_eps_low=low,
        clip_eps_high=high,
        dual_clip=cfg.actor.dual_clip,
        # seq-mean-token-sum-norm is a token mean with another denominator (algorithms/global_counts.py)
        token_level_loss=cfg.loss_agg_mode != "seq-mean-token-mean",
        policy_loss_type=cfg.actor.policy_loss_type,
        is_correction_level=advantage.is_correction_level,
        is_correction_mode=advantage.is_correction_mode,
        is_correction_gating=advantage.is_correction_gating,
        is_correction_threshold=band(advantage.is_correction_threshold),
    )
