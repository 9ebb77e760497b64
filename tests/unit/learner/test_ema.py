"""The weights' average without DeepSpeed: flat tensors for an engine. Ranks: tests/e2e/learner/test_resharding.py."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.slow  # importing torch and deepspeed

SHAPES = {"a": (3, 3), "b": (2,)}


class Flat:
    """One rank's share of SHAPES, cut as ZeRO-3 does, in one sub group; `weights` is what computes."""

    def __init__(self, whole: dict, rank: int, world: int) -> None:
        import torch

        from openrlhf_tir.learner.saved.shards import cut

        flat = torch.cat([cut([whole[name].flatten()], whole[name].numel(), rank, world) for name in SHAPES])
        self.weights, self.param_names = flat.bfloat16(), {name: name for name in SHAPES}
        self.optimizer = SimpleNamespace(
            fp32_partitioned_groups_flat=[flat.clone()],
            fp16_partitioned_groups_flat=[self.weights],
            fp16_partitioned_groups=[[]],
            fp16_groups=[[*SHAPES]],
            unflatten=lambda flat, parts: [],
            checkpoint_event_prologue=lambda: None,
            checkpoint_event_epilogue=lambda: None,
        )

    def zero_optimization_stage(self) -> int:
        return 3

    @property
    def master(self):
        return self.optimizer.fp32_partitioned_groups_flat[0]


def numbers(seed: int) -> dict:
    import torch

    drawn = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=drawn) for name, shape in SHAPES.items()}


def average(rank: int = 0, world: int = 1, beta: float = 0.9):
    from openrlhf_tir.learner.ema import WeightAverage

    engine = Flat(numbers(0), rank, world)
    return engine, WeightAverage(engine, beta)


def test_three_steps_by_hand():
    engine, ema = average(beta=0.5)
    for value, expected in ((4.0, 4.0), (8.0, 6.0), (2.0, 4.0)):
        engine.master.fill_(value)
        if value == 4.0:
            ema.flat[0].fill_(4.0)
        ema.update()
        assert ema.flat[0].tolist() == [expected] * 11


@pytest.mark.parametrize("beta", [0.5, 0.992, 0.9999])
def test_two_thousand_steps_are_those_of_plain_float64(beta):
    """Relative L2. Two products and a sum in float32 are off by 3e-5 at .9999: beta and 1 - beta, each rounded, do not
    add up to 1."""
    import torch

    engine, ema = average(beta=beta)
    plain, drawn = engine.master.double().numpy().copy(), torch.Generator().manual_seed(1)
    for _ in range(2000):
        engine.master.add_(torch.randn(11, generator=drawn), alpha=0.001)
        ema.update()
        plain = beta * plain + (1 - beta) * engine.master.double().numpy()
    assert np.linalg.norm(ema.flat[0].numpy() - plain) <= 2e-6 * np.linalg.norm(plain)


def test_the_average_takes_the_place_of_the_weights_for_an_export_and_gives_it_back_bit_for_bit():
    import torch

    engine, ema = average()
    engine.master.add_(1.0)
    engine.weights.copy_(engine.master)
    ema.update()
    masters, weights, kept = engine.master.clone(), engine.weights.clone(), ema.flat[0].clone()

    def fails() -> None:
        with ema.in_place_of_weights():
            assert torch.equal(engine.weights, kept.bfloat16()) and not torch.equal(engine.weights, weights)
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fails()
    assert (
        torch.equal(engine.master, masters) and torch.equal(engine.weights, weights) and torch.equal(ema.flat[0], kept)
    )


def saved(directory, world: int) -> dict:
    """A checkpoint by `world` ranks whose average is 100 times the masters; as much as is read. Returns the masters."""
    import torch

    whole = numbers(7)
    (directory / "zero").mkdir()
    for rank in range(world):
        engine, ema = average(rank, world)
        engine = Flat(whole, rank, world)
        ema.flat[0].copy_(100 * engine.master)
        for name, content in ema.files(rank).items():
            torch.save(content, directory / name)
        torch.save({"param_shapes": [SHAPES]}, directory / f"zero/zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        torch.save({"optimizer_state_dict": {}}, directory / f"zero/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return whole


@pytest.mark.parametrize(("before", "now"), [(1, 1), (2, 2), (1, 2), (2, 1), (3, 2), (2, 5)])
def test_a_checkpoint_of_any_number_of_ranks_is_restored_bit_for_bit(tmp_path, before, now):
    import torch

    whole = saved(tmp_path, before)
    for rank in range(now):
        _, ema = average(rank, now)
        ema.load(tmp_path, tmp_path / "zero", rank=rank, world_size=now, saved=before)
        assert torch.equal(ema.flat[0], 100 * Flat(whole, rank, now).master)


def test_from_a_checkpoint_without_one_the_average_begins_at_its_weights(tmp_path):
    import torch

    engine, ema = average()
    engine.master.fill_(3.0)
    ema.load(tmp_path, tmp_path / "zero", rank=0, world_size=1, saved=2)
    assert torch.equal(ema.flat[0], engine.master) and ema.flat[0] is not engine.master
