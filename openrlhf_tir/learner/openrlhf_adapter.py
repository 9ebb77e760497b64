"""The only module that imports openrlhf (0.11.2, exact pin). What it gives: models, losses and the DeepSpeed strategy,
on CPU and CUDA alike.

    PolicyModel         openrlhf's Actor; also fp32; returns log-probs and entropy of every position
    value_model         openrlhf's critic: a transformer with a head of one number per position; also fp32
    ZeroStrategy        openrlhf's DeepspeedStrategy; also gloo on CPU; no C++ build on the way to the first step
    PolicyLoss, SFTLoss, ValueLoss, aggregate_loss    as they are
    policy_loss(cfg)    PolicyLoss with this project's configuration

tests/unit/test_openrlhf_signatures.py holds the signatures relied on here, so an upgrade fails there and not in a run.
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
import peft  # noqa: F401  before the stubs, see flash_attn_importable
import torch
import torch.distributed as dist
import transformers.integrations.deepspeed
import transformers.integrations.flash_attention
import transformers.modeling_utils
import transformers.trainer
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch.distributed.device_mesh import init_device_mesh

from ..config import Actor as ActorConfig
from ..config import Config, Critic, Lora
from ..config.sections.learner import ALL_LINEAR
from ..errors import ConfigError
from .attention.choice import attention_implementation
from .attention.packed import SDPA_PACKED, SequenceLayout, check_packing, set_layout
from .attention.sequence_parallel import ULYSSES, SequenceParallel, check_heads
from .compile_environment import nvcc_major, prepare_compilation
from .flash_attn_shim import flash_attn_importable
from .host_memory import bounded
from .linear_head import ScoringHead
from .lora import checked, unmatched
from .optim import muon
from .packing import MicroBatch
from .roles.value_head import has_scalar_head
from .truncation import Truncation

with flash_attn_importable():
    import openrlhf.utils.utils as openrlhf_utils
    from openrlhf.models.actor import Actor
    from openrlhf.models.loss import PolicyLoss, SFTLoss, ValueLoss, aggregate_loss
    from openrlhf.models.model import get_llm_for_sequence_regression
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

__all__ = [
    "PolicyLoss", "PolicyModel", "SFTLoss", "ValueLoss", "ZeroStrategy", "aggregate_loss", "policy_loss", "value_model",
]  # fmt: skip

CPU_ROW_MULTIPLE = 64
"""Tokens to a multiple of which packed rows are filled up on a CPU. oneDNN compiles and keeps a kernel for every shape:
with rows of any length a rank of a model with 5 million parameters grew by 11 MB an update."""
PERSISTENT_BELOW = DeepSpeedZeroConfig().param_persistence_threshold
"""Parameters of fewer elements are not cut up over the ranks (DeepSpeed's default)."""


@contextmanager
def _fp32_allowed() -> Iterator[None]:
    """Actor looks up its dtype in a table that knows bf16 and fp16 only; within the block it knows fp32 too."""
    original = openrlhf_utils.convert_to_torch_dtype
    openrlhf_utils.convert_to_torch_dtype = lambda name: torch.float32 if name == "fp32" else original(name)
    try:
        yield
    finally:
        openrlhf_utils.convert_to_torch_dtype = original


@contextmanager
def _targets_told(actor: Actor, cfg: Config) -> Iterator[None]:
    """peft's complaint about targets of which none is there, in our words."""
    try:
        yield
    except ValueError as e:
        if not cfg.ds.lora.rank or "not found in the base model" not in str(e):
            raise
        raise unmatched(", ".join(cfg.ds.lora.target_modules), actor.model) from e


def _attention(cfg: Config) -> str:
    """Return the name by which transformers knows the attention kernel of this run."""
    if cfg.ds.ring_attn_size > 1:
        return ULYSSES
    implementation = attention_implementation(cfg.ds.attn_implementation)
    return SDPA_PACKED if cfg.ds.packing_samples and implementation == "sdpa" else implementation


class PolicyModel(Actor):
    """openrlhf's Actor, built from a path. use_cache is off: with it, packed sequences see each other (0.6 off)."""

    def __init__(self, cfg: Config, strategy: ZeroStrategy, *, frozen: bool = False) -> None:
        """`frozen`: never trained, so without gradient or checkpointed activation; may be offloaded (ref.offload)."""
        lora = cfg.ds.lora if not frozen else Lora()
        with _fp32_allowed(), _targets_told(self, cfg):
            super().__init__(
                cfg.actor.model_name_or_path,
                attn_implementation=_attention(cfg),
                param_dtype=cfg.ds.param_dtype,
                ds_config=strategy.get_ds_eval_config(cfg.ref.offload) if frozen else strategy.get_ds_train_config(),
                packing_samples=cfg.ds.packing_samples,
                use_liger_kernel=cfg.ds.use_liger_kernel,
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
            checked(self.model, lora.target_modules)
        if cfg.actor.aux_loss_coef and not getattr(self.model.config, "output_router_logits", False):
            raise ConfigError(
                f"actor.aux_loss_coef = {cfg.actor.aux_loss_coef:g} balances the experts of a mixture, and"
                f" {type(self.model).__name__} has none that say how they were chosen. Leave it out."
            )
        self.aux_loss: torch.Tensor | None = None
        """How unevenly the last forward pass used the experts of a mixture; None for other models."""
        self.truncation, self.sequence_parallel = Truncation.of(cfg), strategy.sequence_parallel
        fills = strategy.device == "cpu" and cfg.ds.ring_attn_size == 1 and not cfg.actor.aux_loss_coef
        self.row_multiple = CPU_ROW_MULTIPLE if fills else 1
        """Packed rows are filled up to a multiple of so many tokens. The balance of experts would count the filling."""
        self.shares_prompts = cfg.shares_prompts and self.model.config._attn_implementation == SDPA_PACKED
        """Whether rows with the same prompt may compute it once."""
        self.hf_config = self.model.config
        self.head = ScoringHead(_output_layer(self.model), cfg.ds.keep_logits_mib << 20)
        join_small_layers(self.model)
        if frozen:
            self._offload = cfg.ref.offload  # where openrlhf's strategy looks for it
            self.requires_grad_(False)
        elif cfg.actor.gradient_checkpointing_enable:
            self.gradient_checkpointing_enable(_recomputing(cfg))

    def log_probs(self, micro: MicroBatch, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """[b, L-1] float32: entry t is the log-prob of token t+1, temperature 1; 0 where `wanted` [b, L-1] is False."""
        return self.score(micro, wanted=wanted, as_sampled=False)[0]

    def score(
        self,
        micro: MicroBatch,
        *,
        entropy_grad: bool = False,
        wanted: torch.Tensor | None = None,
        as_sampled: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(log_probs, entropy), both [b, L-1] float32: entry t is about token t+1, and 0 where `wanted` [b, L-1] bool
        is False.

        `as_sampled`: of the distribution that the rollout samples from (its temperature, top-k, top-p, min-p), else of
        the plain softmax. Entropy carries a gradient only when asked to. The logits of all positions never exist at
        once (linear_head.py)."""
        sequences = micro.sequences
        targets = sequences.roll(-1, dims=1)
        if wanted is not None:
            wanted = torch.nn.functional.pad(wanted, (0, 1))  # what follows the last token is never wanted
        how: dict[str, Any] = {"entropy_grad": entropy_grad}
        if as_sampled:
            how |= {"temperature": self.temperature, "truncation": self.truncation}
        if self.packing_samples:
            log_probs, entropy = self._score_packed(micro, targets, wanted, how)
        else:
            mask = micro.attention_mask
            positions = (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 1)
            log_probs, entropy = self._scores(sequences, positions, targets, wanted, how, mask)
        return log_probs[:, :-1], entropy[:, :-1]

    def _score_packed(
        self, micro: MicroBatch, targets: torch.Tensor, wanted: torch.Tensor | None, how: dict[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[b, L] each: the micro batch is computed as one row [1, T], of which each rank of a sequence-parallel group
        has a slice."""
        source, positions = _packed_places(micro)
        cut = self.sequence_parallel
        filling = -len(source) % self.row_multiple

        def packed(values: torch.Tensor) -> torch.Tensor:
            row = values.flatten()[source][None]
            return cut.slice(torch.nn.functional.pad(row, (0, filling)))

        inputs = packed(micro.sequences)
        # what fills the row up is a sequence of its own, which no other token sees
        filled = torch.cat([positions, torch.arange(filling, device=positions.device)[None]], dim=1)
        sliced = cut.positions(filled)
        if micro.packed:
            lengths = list(micro.packed.lengths) + [filling] * bool(filling)
            continues = list(micro.packed.continues) + [-1] * bool(filling)
            set_layout(sliced, SequenceLayout.of_segments(lengths, continues, sliced.device))
        answers = self._scores(inputs, sliced, packed(targets), None if wanted is None else packed(wanted), how, None)
        shape = micro.sequences.shape
        whole = (cut.gather(answer, filled.shape[1])[0, : len(source)] for answer in answers)
        log_probs, entropy = (x.new_zeros(shape.numel()).index_copy(0, source, x).view(shape) for x in whole)
        return log_probs, entropy

    def _scores(
        self,
        inputs: torch.Tensor,
        positions: torch.Tensor,
        targets: torch.Tensor,
        wanted: torch.Tensor | None,
        how: dict[str, Any],
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run the model with its head scoring `targets` instead of making logits; all arguments and results [b, L]."""
        with self.head.scoring(targets, wanted=wanted, **how):
            out = self.model(inputs, attention_mask=mask, position_ids=positions)
        self.aux_loss = out.get("aux_loss")
        log_probs, entropy = out["logits"].unbind(-1)
        return log_probs, entropy


def _packed_places(micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the tokens of the packed row are in the flattened sequences [T], and their position ids [1, T]."""
    if micro.packed:
        return micro.packed.source, micro.packed.positions
    source = micro.attention_mask.flatten().nonzero().squeeze(-1)
    positions = (micro.attention_mask.long().cumsum(-1) - 1).flatten()[source]
    return source, positions[None]


def join_small_layers(model: torch.nn.Module) -> None:
    """Treat a decoder layer as one unit when DeepSpeed keeps all its weights on every rank anyway (each below its
    persistence threshold): hooks per submodule would gather nothing, and cost a third of a 0.2 M model's step."""
    names = set(model._no_split_modules or ())
    layers = [m for m in model.modules() if type(m).__name__ in names]
    if layers and all(
        getattr(p, "ds_numel", p.numel()) < PERSISTENT_BELOW for layer in layers for p in layer.parameters()
    ):
        deepspeed.utils.set_z3_leaf_modules(model, list({type(layer) for layer in layers}))


def value_model(cfg: Config, strategy: ZeroStrategy) -> torch.nn.Module:
    """openrlhf's critic from critic.model_name_or_path, or from the policy's with a new head: called with (sequences,
    mask [b, L-1], attention_mask) it gives [b, L-1] values, entry t of the prefix that ends before token t+1.

    A new head is drawn from train.seed alone, so that it is the same on any number of ranks.
    """
    name = cfg.critic.model_name_or_path or cfg.actor.model_name_or_path
    with _fp32_allowed():
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
    join_small_layers(model)
    if name == cfg.actor.model_name_or_path or not has_scalar_head(name, model.value_head_prefix):
        _new_head(getattr(model, model.value_head_prefix).weight, cfg.train.seed)
    if cfg.actor.gradient_checkpointing_enable:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=_recomputing(cfg))
    return model


def _recomputing(cfg: Config) -> dict[str, bool]:
    """How torch recomputes activations."""
    return {"use_reentrant": cfg.actor.gradient_checkpointing_reentrant}


def _new_head(weight: torch.nn.Parameter, seed: int) -> None:
    """Normal of standard deviation 1 / (hidden size + 1), as openrlhf's."""
    with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
        drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
        weight.data.copy_(drawn / (weight.shape[-1] + 1))


def _output_layer(model: torch.nn.Module) -> torch.nn.Linear:
    """Raises ConfigError for a model whose logits are more than one matrix product, as log-probs would be of others."""
    layer = model.get_output_embeddings()
    capped = getattr(model.config, "final_logit_softcapping", None) or getattr(model.config, "logit_scale", None)
    if not isinstance(layer, torch.nn.Linear) or capped:
        raise ConfigError(
            f"{type(model).__name__} turns hidden states into logits by"
            f" {type(layer).__name__}{' and a cap or scale' if capped else ''}; the learner knows models whose head is"
            " one linear layer (Qwen, Llama, Mistral, ...). Choose another actor.model_name_or_path."
        )
    return layer


class ZeroStrategy(DeepspeedStrategy):
    """openrlhf's strategy on whichever device torch has. A step takes as many micro batches as the caller runs."""

    def __init__(self, cfg: Config) -> None:
        # dynamic_batch_enable: DeepSpeed is configured with accumulation 1 and does not divide the loss
        # (see algorithms/aggregate.py).
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

    def setup_distributed(
        self, rank: int, world_size: int, master_addr: str, master_port: int, timeout: timedelta = timedelta(minutes=60)
    ) -> None:
        """Join the process group through the store that listens there (rendezvous.py); seeds torch, numpy and
        python."""
        seed = transformers.enable_full_determinism if self.full_determinism else transformers.set_seed
        seed(self.seed)
        local_rank = 0
        if torch.cuda.is_available():
            local_rank = rank % torch.cuda.device_count()
            torch.cuda.set_device(local_rank)
            self.device = f"cuda:{local_rank}"
            compiles = self.colocated or self.args.ds.adam_offload
            prepare_compilation(nvcc_major() if compiles else None, torch.version.cuda)
        # DeepSpeed looks for these in every initialize() and, when one is missing, goes looking for MPI.
        env = {
            "RANK": rank,
            "WORLD_SIZE": world_size,
            "LOCAL_RANK": local_rank,
            "MASTER_ADDR": master_addr,
            "MASTER_PORT": master_port,
            "TORCHELASTIC_USE_AGENT_STORE": True,  # the store is there; else rank 0 would listen
        }
        os.environ.update({name: str(value) for name, value in env.items()})
        # torch 2.13 renames the collectives that DeepSpeed 0.19 calls; it says so at every call.
        warnings.filterwarnings(
            "ignore", message=".*(reduce_scatter_tensor|all_gather_into_tensor)", category=FutureWarning
        )
        # The op serves inference all-reduces only; without this line every fresh machine spends 45 s building it, in
        # the first step.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(
            dist_backend="nccl" if self.device != "cpu" else "gloo", timeout=timeout, rank=rank, world_size=world_size
        )
        self.world_size = world_size
        cut = self.args.ds.ring_attn_size
        self.ds_device_mesh = init_device_mesh(
            self.device.split(":")[0], (world_size // cut, cut, 1), mesh_dim_names=("dp", "sp", "tp")
        )
        self.ring_attn_rank = 0  # openrlhf's ring attention, which needs flash-attn, is not used
        if cut > 1:
            self.sequence_parallel = SequenceParallel(self.ds_device_mesh["sp"].get_group())

    @property
    def shard(self) -> int:
        """Which share of a batch this rank trains: that of all ranks of its sequence-parallel group."""
        return dist.get_rank() // self.sequence_parallel.size

    def sum_over_rows(self, local: torch.Tensor) -> torch.Tensor:
        """Adds up over the ranks what each says of its rows; rows that ranks share count once. Collective."""
        total = self.sequence_parallel.once(local).clone()
        dist.all_reduce(total)
        return total

    def get_ds_train_config(self, optim_dict: dict | None = None, *, max_norm: float | None = None) -> dict:
        """openrlhf's, with torch's AdamW: the same arithmetic as FusedAdam, and nothing to compile (unless states are
        offloaded, or move: device_states.py)."""
        config = super().get_ds_train_config(optim_dict, max_norm=max_norm)
        moves = self.colocated and self.device != "cpu"  # DeepSpeed moves the states of its own FusedAdam only
        if optim_dict is not None and not self.adam_offload and not moves:
            config["optimizer"]["params"]["torch_adam"] = True
        if optim_dict is not None and optim_dict["type"] == "Muon":
            config = muon.deepspeed_config(config)
        config["steps_per_print"] = None
        # Sums over 64 to 256 micro batches lose 1 to 2 % in bf16.
        # (DeepSpeed knows no float32 sums beside fp16 weights.)
        if self.args.ds.param_dtype != "fp16":
            config["data_types"]["grad_accum_dtype"] = self.grad_accum_dtype or "fp32"
        # DeepSpeed's own linear saves the memory of gathered weights; on CPU it is a tenth slower than torch's, and
        # there is nothing to save.
        config["zero_optimization"]["memory_efficient_linear"] = self.device != "cpu"
        # Muon orthogonalises whole matrices and gathers a sub-group's at a time: left as DeepSpeed has it.
        is_muon = optim_dict is not None and optim_dict["type"] == "Muon"
        bounded(config["zero_optimization"], self.device, sub_groups=not is_muon)
        return config

    def get_ds_eval_config(self, offload: bool = False) -> dict:
        """openrlhf's; the batch size, which nothing frozen has, is one that fits any number of ranks."""
        config = super().get_ds_eval_config(offload)
        del config["train_batch_size"]
        config["train_micro_batch_size_per_gpu"] = 1
        config["steps_per_print"] = None
        config["zero_optimization"]["memory_efficient_linear"] = self.device != "cpu"
        config["zero_optimization"]["offload_param"]["pin_memory"] = self.device != "cpu"
        return config

    def prepare_training(
        self, model: torch.nn.Module, cfg: Config, optim: ActorConfig | Critic
    ) -> tuple[Any, torch.optim.Optimizer]:
        """Wrap `model` in a DeepSpeed engine with the optimiser that `optim` says. The learning rate is set by the
        caller before each step."""
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
    """PolicyLoss as configured. A single is_correction_threshold is an upper bound, as on openrlhf's command line."""
    adv = cfg.algo.advantage
    bounds = adv.is_correction_threshold
    low, high = cfg.actor.clip
    return PolicyLoss(
        clip_eps_low=low,
        clip_eps_high=high,
        dual_clip=cfg.actor.dual_clip,
        # sum-norm is a token mean over another count (aggregate.py)
        token_level_loss=cfg.actor.loss_agg_mode != "seq-mean-token-mean",
        policy_loss_type=cfg.actor.policy_loss_type,
        is_correction_level=adv.is_correction_level,
        is_correction_mode=adv.is_correction_mode,
        is_correction_gating=adv.is_correction_gating,
        is_correction_threshold=(0.0, bounds[0]) if len(bounds) == 1 else bounds,
    )
