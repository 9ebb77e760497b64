"""OpenRLHF's own training step on CPU: its Actor, replay buffer with dynamic batches, balance over ranks, and
ActorPPOTrainer.ppo_train, on its ZeRO-3 configuration. Its Ray actor (PolicyModelActor) is left out: it asks Ray for a
GPU and adds nothing to the step.

What is changed so that it runs without CUDA:

    torch.cuda.current_device, synchronize   the code calls them whatever the device; they name the CPU and do nothing
    the process group                        gloo (ZeroStrategy.setup_distributed), as ours
    FusedAdam                                torch's AdamW, as ours: the same arithmetic, and no C++ build
    float32                                  its Actor knows bf16 and fp16 only

`attention`: "sdpa" is what its packed rows get on a machine without flash attention, one mask over the row.
"sdpa_packed" gives it ours: on GPUs both would have flash attention, and what is then compared is the rest of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

import torch
import vllm  # noqa: F401  before the stubs of flash-attn: openrlhf.trainer.ray imports it

from openrlhf_tir.learner.openrlhf_adapter import ZeroStrategy, _loading_rules
from openrlhf_tir.learner.openrlhf_imports import flash_attn_importable
from openrlhf_tir.learner.rows import batch_samples, local_moments, to_rows
from openrlhf_tir.learner.zero3 import Zero3Rank
from openrlhf_tir.types import Group, TrainBatch

with flash_attn_importable():
    from openrlhf.models.actor import Actor
    from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy


@contextmanager
def _cuda_is(device: int | str) -> Iterator[None]:
    """Within the block torch.cuda's current device has that name and is always done."""
    before = torch.cuda.current_device, torch.cuda.synchronize
    torch.cuda.current_device, torch.cuda.synchronize = lambda: device, lambda *_: None
    try:
        yield
    finally:
        torch.cuda.current_device, torch.cuda.synchronize = before


class _Strategy(DeepspeedStrategy):
    """openrlhf's strategy within the process group that is there."""

    def __init__(self, args: SimpleNamespace, ours: ZeroStrategy) -> None:
        super().__init__(seed=ours.seed, max_norm=ours.max_norm, zero_stage=3, args=args)
        self.world_size, self.ds_device_mesh, self.ring_attn_rank = ours.world_size, ours.ds_device_mesh, 0
        self.accumulated_gradient = 1

    def get_ds_train_config(self, optim_dict: dict | None = None, *, max_norm: float | None = None) -> dict:
        config = super().get_ds_train_config(optim_dict, max_norm=max_norm)
        if optim_dict is not None:
            config["optimizer"]["params"]["torch_adam"] = True
        config["steps_per_print"] = None
        return config


class OpenRlhf:
    def __init__(self, learner: Zero3Rank, attention: str) -> None:
        """`learner`: whose settings, advantages and process group are taken."""
        self.learner, cfg = learner, learner.cfg
        self.args = _args(cfg, learner.world_size)
        strategy = _Strategy(self.args, learner.strategy)
        with _loading_rules():
            actor = Actor(
                cfg.actor.model_name_or_path,
                attn_implementation=attention,
                param_dtype="fp32",
                ds_config=strategy.get_ds_train_config(),
                packing_samples=True,
                temperature=1.0,
            )
        optim = cfg.actor
        settings = {
            "optim": "adam",
            "adam": {
                "lr": optim.learning_rate,
                "betas": optim.adam_betas,
                "eps": optim.adam_eps,
                "weight_decay": optim.l2,
            },
            "lr_scheduler": "constant",
            "lr_warmup_ratio": 0.0,
            "min_lr_ratio": 0.1,
            "max_norm": optim.max_norm,
            "scheduler_steps": 1000,
        }
        actor, optimizer, scheduler = strategy.prepare((actor, settings))
        with _cuda_is(0):  # the replay buffer puts it after "cuda:"
            self.trainer = ActorPPOTrainer(
                strategy, actor, None, optimizer, scheduler, micro_train_batch_size=8, dataloader_pin_memory=False
            )

    def prepare(self, batch: TrainBatch, groups: Sequence[Group]) -> None:
        """The same sequences and advantages, over the ranks as OpenRLHF balances them: as many to each."""
        cfg = self.learner.cfg
        samples = batch_samples(batch, groups, cfg, self.learner.estimator)
        rows = to_rows(samples, local_moments(samples), 0, cfg, self.learner.estimator)
        self.args.rollout.batch_size, self.args.train.batch_size = len(rows), len(rows)
        mine = balance_experiences([_experience(row) for row in rows], self.args)[self.learner.rank]
        self.trainer.replay_buffer.clear()
        self.trainer.replay_buffer.append(mine)

    def step(self) -> float:
        with _cuda_is("cpu"):
            self.trainer.actor.train()
            return self.trainer.ppo_train(0.0)["actor_grad_norm"]


def _experience(row) -> Experience:
    """[1, L] ids and mask, [1, L-1] of what is per action, which all tokens but the first are."""

    def field(name: str) -> torch.Tensor:
        return torch.from_numpy(row.fields[name])[None]

    ids = torch.from_numpy(row.token_ids.astype("int64"))[None]
    return Experience(
        sequences=ids,
        attention_mask=torch.ones_like(ids),
        action_mask=field("trained").bool(),
        action_log_probs=field("rollout_logprobs"),
        rollout_log_probs=field("rollout_logprobs"),
        advantages=field("advantages"),
        total_length=torch.tensor([ids.shape[1]]),
        response_length=torch.tensor([ids.shape[1]]),
    )


def _args(cfg, ranks: int) -> SimpleNamespace:
    """openrlhf's command line as far as the step reads it, with the values of ours."""
    part = SimpleNamespace
    low, high = cfg.actor.eps_clip_low_high
    return part(
        local_rank=-1,
        actor=part(
            num_nodes=1,
            num_gpus_per_node=ranks,
            eps_clip_low_high=(low, high),
            dual_clip=None,
            loss_agg_mode="token-mean",
            policy_loss_type="ppo",
            aux_loss_coef=0.0,
            entropy_coef=None,
        ),
        algo=part(
            advantage=part(
                is_correction_level="off",
                is_correction_mode="clip",
                is_correction_gating="ratio",
                is_correction_threshold=(0.5, 5.0),
            ),
            kl=part(use_loss=False, init_coef=0.0),
        ),
        ds=part(
            packing_samples=True,
            ring_attn_size=1,
            tensor_parallel_size=1,
            param_dtype="fp32",
            zero_stage=3,
            grad_accum_dtype="fp32",
        ),
        train=part(
            dynamic_batch_enable=True,
            max_tokens_per_gpu=cfg.train.max_tokens_per_gpu,
            max_epochs=1,
            batch_size=0,
            async_enable=False,
            colocate_all=False,
        ),
        rollout=part(batch_size=0, n_samples_per_prompt=1),
        vllm=part(sync_backend="gloo"),
    )
