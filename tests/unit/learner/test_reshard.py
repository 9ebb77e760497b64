"""Resharding into DeepSpeed's own optimiser methods, called on a stand-in that is one rank's tensors: no process group,
no engine is started.

A plain AdamW over whole tensors says what is right. Real ranks: tests/e2e/learner/test_resharding.py.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow  # importing torch and deepspeed

SHAPES = {
    "first.weight": (5, 7),
    "second.weight": (3, 4),
    "third.weight": (9,),
    "first.bias": (5,),
    "norm.weight": (2,),
}
DECAYED = ("first.weight", "second.weight", "third.weight")
FROZEN = {"base.weight": (3, 5)}
DECAY, LR = 0.1, 0.01


class Param:
    """A parameter of ZeRO-3: `ds_tensor` is this rank's part of it."""

    def __init__(self, ds_tensor) -> None:
        self.ds_tensor = ds_tensor


def plain(seed: int):
    """(tensors by name, AdamW over them)."""
    import torch

    drawn = torch.Generator().manual_seed(seed)
    whole = {name: torch.nn.Parameter(torch.randn(shape, generator=drawn)) for name, shape in SHAPES.items()}
    groups = [
        {"params": [whole[n] for n in SHAPES if (n in DECAYED) == decayed], "weight_decay": DECAY * decayed}
        for decayed in (True, False)
    ]
    return whole, torch.optim.AdamW(groups, lr=LR, betas=(0.9, 0.95))


def gradients(seed: int):
    import torch

    drawn = torch.Generator().manual_seed(100 + seed)
    return {name: torch.randn(shape, generator=drawn) for name, shape in SHAPES.items()}


def step(whole, adam, seed: int) -> None:
    for name, grad in gradients(seed).items():
        whole[name].grad = grad
    adam.step()


def part(tensor, rank: int, world: int):
    """As ZeRO-3 cuts, with garbage for padding."""
    import torch

    size = math.ceil(tensor.numel() / world)
    padded = torch.cat([tensor.detach().flatten(), torch.full((size * world - tensor.numel(),), -77.0)])
    return padded[rank * size : (rank + 1) * size].clone()


class Rank:
    """An engine of one rank: sub groups of at most `limit` of its elements, AdamW over their flat tensors; weights
    compute in bfloat16."""

    def __init__(self, whole, frozen, rank: int, world: int, limit: int) -> None:
        import torch
        from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Stage3

        self.rank, self.world, self.groups, of_group = rank, world, [], {}
        for group, decayed in enumerate((True, False)):
            names = [n for n in SHAPES if (n in DECAYED) == decayed]
            while names:
                taken, size = [], 0
                while names and size < limit:
                    taken.append(names.pop(0))
                    size += len(part(whole[taken[-1]], rank, world))
                of_group[len(self.groups)] = group
                self.groups.append(taken)
        masters = [torch.nn.Parameter(torch.cat([part(whole[n], rank, world) for n in names])) for names in self.groups]
        adam = torch.optim.AdamW(
            [
                {
                    "params": [m for g, m in enumerate(masters) if of_group[g] == group],
                    "weight_decay": DECAY * (1 - group),
                }
                for group in (0, 1)
            ],
            lr=LR,
            betas=(0.9, 0.95),
        )
        rounded = [m.detach().bfloat16() for m in masters]
        parts = [
            list(r.split([len(part(whole[n], rank, world)) for n in names]))
            for r, names in zip(rounded, self.groups, strict=True)
        ]
        params = [[Param(p) for p in of] for of in parts]
        self.param_names = {
            p: n for of, names in zip(params, self.groups, strict=True) for p, n in zip(of, names, strict=True)
        }
        self.param_names |= {Param(part(tensor, rank, world)): name for name, tensor in frozen.items()}
        self.optimizer = stage = SimpleNamespace(
            optimizer=adam,
            fp16_groups=params,
            fp32_partitioned_groups_flat=masters,
            fp16_partitioned_groups_flat=rounded,
            fp16_partitioned_groups=parts,
            sub_group_to_group_id=of_group,
            unflatten=lambda flat, like: flat.split([p.numel() for p in like]),
            dp_process_group=None,
            partition_count=world,
            loss_scaler="scaler",
            dynamic_loss_scale=False,
            overflow=False,
            swap_optimizer=False,
            events=[],
        )
        stage._zero3_partition_group_metadata = lambda: None
        stage._set_fp32_optimizer_param_groups = lambda: Stage3._set_fp32_optimizer_param_groups(stage)
        stage._clear_fp32_optimizer_param_groups = lambda: Stage3._clear_fp32_optimizer_param_groups(stage)
        stage.state_dict = lambda: Stage3._rigid_state_dict(stage)
        stage.load_state_dict = lambda by_rank: Stage3._rigid_load_state_dict(stage, by_rank[rank])
        stage.checkpoint_event_prologue = lambda: stage.events.append("partitioned")
        stage.checkpoint_event_epilogue = lambda: stage.events.append("gathered")
        stage._clear_fp32_optimizer_param_groups()  # as between steps
        self.module = torch.nn.Module()
        self.module.register_buffer("seen", torch.zeros(2))
        self.lr_scheduler = SimpleNamespace(load_state_dict=lambda state: setattr(self, "schedule", state))

    def step(self, seed: int) -> None:
        import torch

        stage = self.optimizer
        stage._set_fp32_optimizer_param_groups()
        for names, master in zip(self.groups, stage.fp32_partitioned_groups_flat, strict=True):
            master.grad = torch.cat([part(gradients(seed)[n], self.rank, self.world) for n in names])
        stage.optimizer.step()
        stage._clear_fp32_optimizer_param_groups()

    def save(self, directory) -> None:
        import torch

        torch.save(
            {"optimizer_state_dict": self.optimizer.state_dict()},
            directory / f"zero_pp_rank_{self.rank}_mp_rank_00_optim_states.pt",
        )
        frozen = {n: p.ds_tensor for p, n in self.param_names.items() if n in FROZEN}
        model = {
            "param_shapes": [{n: torch.Size(SHAPES[n]) for n in names} for names in self.groups],
            "frozen_param_shapes": {n: torch.Size(shape) for n, shape in FROZEN.items()},
            "frozen_param_fragments": frozen,
            "buffer_names": ["seen"],
            "module": {"seen": torch.ones(2)},
            "lr_scheduler": {"last_epoch": 2},
            "global_steps": 2,
            "global_samples": 18,
            "skipped_steps": 1,
        }
        torch.save(model, directory / f"zero_pp_rank_{self.rank}_mp_rank_00_model_states.pt")

    def tensors(self, which: str) -> dict:
        """This rank's parts by name."""
        stage, out = self.optimizer, {}
        for names, master, rounded in zip(
            self.groups, stage.fp32_partitioned_groups_flat, stage.fp16_partitioned_groups_flat, strict=True
        ):
            flat = {"fp32": master.detach(), "weights": rounded}.get(which)
            flat = stage.optimizer.state[master][which] if flat is None else flat
            out |= dict(
                zip(names, flat.split([math.ceil(math.prod(SHAPES[n]) / self.world) for n in names]), strict=True)
            )
        return out


def together(ranks: list[Rank], which: str) -> dict:
    import torch

    parts = [rank.tensors(which) for rank in ranks]
    return {n: torch.cat([p[n] for p in parts])[: math.prod(shape)].reshape(shape) for n, shape in SHAPES.items()}


def frozen_tensors():
    import torch

    return {name: torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) for name, shape in FROZEN.items()}


@pytest.fixture
def load(monkeypatch):
    """load(rank, directory, saved ranks)"""
    import deepspeed

    from openrlhf_tir.learner.saved import reshard
    from openrlhf_tir.learner.saved.shards import Shards

    def one(rank: Rank, directory, saved: int) -> None:
        monkeypatch.setattr(deepspeed.comm, "get_rank", lambda group=None: rank.rank)
        reshard.load(rank, Shards(directory, saved, rank.rank, rank.world))

    return one


@pytest.mark.parametrize(("saved", "world"), [(2, 1), (1, 2), (3, 2), (2, 5), (2, 2)])
@pytest.mark.parametrize(
    ("limit", "new_limit"), [(10**9, 10**9), (12, 12), (10**9, 12)], ids=["one sub group", "several", "several now"]
)
def test_masters_moments_and_counts_are_the_saved_ones_and_the_next_step_is_that_of_plain_adam(
    load, tmp_path, saved, world, limit, new_limit
):
    import torch

    whole, adam = plain(0)
    before = [Rank(whole, frozen_tensors(), rank, saved, limit) for rank in range(saved)]
    for seed in (0, 1):
        step(whole, adam, seed)
        for rank in before:
            rank.step(seed)
    for rank in before:
        rank.optimizer.loss_scaler, rank.optimizer.overflow = "the saved one", True
        rank.save(tmp_path)
    other, _ = plain(9)
    after = [
        Rank(other, {n: torch.zeros(shape) for n, shape in FROZEN.items()}, rank, world, new_limit)
        for rank in range(world)
    ]
    for rank in after:
        load(rank, tmp_path, saved)
    for which in ("fp32", "exp_avg", "exp_avg_sq"):
        assert all(torch.equal(together(after, which)[n], together(before, which)[n]) for n in SHAPES), which
    masters = together(after, "fp32")
    assert all(
        torch.equal(masters[n], whole[n]) and torch.equal(together(after, "weights")[n], masters[n].bfloat16())
        for n in SHAPES
    )
    step(whole, adam, 2)
    for rank in after:
        assert (rank.optimizer.loss_scaler, rank.optimizer.overflow) == ("the saved one", True)
        assert rank.optimizer.events == ["partitioned", "gathered"] and rank.schedule == {"last_epoch": 2}
        assert (rank.global_steps, rank.global_samples, rank.skipped_steps) == (
            2,
            18,
            1,
        ) and rank.module.seen.tolist() == [1, 1]
        rank.step(2)
    # each with its own group's weight decay and the saved count of steps
    for name, master in together(after, "fp32").items():
        torch.testing.assert_close(master, whole[name].detach(), rtol=1e-6, atol=1e-7)
    for name, tensor in frozen_tensors().items():
        parts = [next(p.ds_tensor for p, n in rank.param_names.items() if n == name) for rank in after]
        assert torch.equal(torch.cat(parts)[: tensor.numel()].reshape(tensor.shape), tensor)


@pytest.mark.parametrize(("limit", "new_limit", "regrouped"), [(12, 12, False), (10**9, 12, True), (12, 10**9, True)])
def test_a_checkpoint_of_as_many_ranks_is_regrouped_where_its_sub_groups_are_others(
    tmp_path, limit, new_limit, regrouped
):
    from openrlhf_tir.learner.saved import reshard

    whole, _ = plain(0)
    Rank(whole, frozen_tensors(), 0, 1, limit).save(tmp_path)
    assert reshard.regrouped(Rank(whole, frozen_tensors(), 0, 1, new_limit), tmp_path, 0) is regrouped


def test_a_checkpoint_from_before_the_first_step_has_no_moments_and_gives_none(load, tmp_path):
    import torch

    whole, adam = plain(0)
    for rank in range(2):
        Rank(whole, frozen_tensors(), rank, 2, 10**9).save(tmp_path)
    (alone,) = after = [Rank(plain(9)[0], frozen_tensors(), 0, 1, 10**9)]
    load(alone, tmp_path, 2)
    assert not alone.optimizer.optimizer.state
    step(whole, adam, 0)
    alone.step(0)
    for name, master in together(after, "fp32").items():
        torch.testing.assert_close(master, whole[name].detach(), rtol=1e-6, atol=1e-7)


def test_a_resume_has_the_optimiser_settings_of_the_configuration_and_not_of_the_checkpoint():
    from openrlhf_tir.learner.saved.checkpoint import _keeping_settings

    optimizer = SimpleNamespace(
        param_groups=[
            {"weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "lr": 1.0},
            {"weight_decay": 0.0, "lr": 1.0},
        ]
    )
    with _keeping_settings(SimpleNamespace(optimizer=optimizer)):
        optimizer.param_groups = [
            {"weight_decay": 0.5, "betas": (0.8, 0.9), "eps": 1e-6, "lr": 2.0},
            {"weight_decay": 0.5, "lr": 2.0},
        ]
    assert optimizer.param_groups == [
        {"weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8, "lr": 2.0},
        {"weight_decay": 0.0, "lr": 2.0},
    ]


def test_a_checkpoint_of_the_plain_adamw_is_continued_by_the_fused_one():
    import torch

    from openrlhf_tir.learner.saved.checkpoint import _keeping_settings

    class ZeroOptimizer:
        """DeepSpeed's, around torch's."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    plain = torch.optim.AdamW([weights[0]], lr=0.1)
    fused = torch.optim.AdamW([weights[1]], lr=0.1, fused=True)

    def step(weight, optimizer):
        weight.grad = torch.full((3,), 0.5)
        optimizer.step()

    step(weights[0], plain)
    with torch.no_grad():
        weights[1].copy_(weights[0])
    with _keeping_settings(SimpleNamespace(optimizer=ZeroOptimizer(fused))):
        fused.load_state_dict(plain.state_dict())
    assert fused.param_groups[0]["fused"] is True
    step(weights[0], plain)
    step(weights[1], fused)
    torch.testing.assert_close(weights[0], weights[1])
