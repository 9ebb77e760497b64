"""How one rank of m takes its elements out of the files of n ranks. Cut by hand, or as DeepSpeed cuts them."""

from __future__ import annotations

from itertools import product

import pytest

from openrlhf_tir.errors import CheckpointDamaged

pytestmark = pytest.mark.slow  # importing torch


def parts_of(numbers: list[float], ranks: int):
    """As ZeRO-3 cuts: equal parts, the padding is garbage."""
    import torch

    size = -(-len(numbers) // ranks)
    padded = torch.tensor(numbers + [-99.0] * (size * ranks - len(numbers)))
    return list(padded.split(size))


def test_five_numbers_of_two_ranks_are_cut_for_three_by_hand():
    from openrlhf_tir.learner.saved.shards import cut

    parts = parts_of([1, 2, 3, 4, 5], 2)
    assert [p.tolist() for p in parts] == [[1, 2, 3], [4, 5, -99]]
    assert [cut(parts, 5, rank, 3).tolist() for rank in range(3)] == [[1, 2], [3, 4], [5, 0]]


@pytest.mark.parametrize("saved", [1, 2, 3, 5, 8])
def test_the_cut_parts_are_the_numbers_and_no_padding_of_the_saved_ones(saved):
    import torch

    from openrlhf_tir.learner.saved.shards import cut, part_numel

    for numel, ranks in product([1, 2, 3, 7, 64], [1, 2, 3, 5, 8]):
        numbers = [float(i + 1) for i in range(numel)]
        made = [cut(parts_of(numbers, saved), numel, rank, ranks) for rank in range(ranks)]
        assert {len(part) for part in made} == {part_numel(numel, ranks)}
        assert torch.cat(made).tolist() == numbers + [0.0] * (ranks * part_numel(numel, ranks) - numel)


def test_parameters_are_found_behind_the_padding_of_those_before():
    from openrlhf_tir.learner.saved.shards import Place, places

    shapes = [{"a": (3, 3), "b": (2,)}, {"c": (5,)}]
    assert places(shapes, 2) == {"a": Place(0, 0, 9), "b": Place(0, 5, 2), "c": Place(1, 0, 5)}


def written(directory, ranks: int) -> None:
    """What DeepSpeed writes, as far as it is read: a [3, 3] and b [2] trained in one group, c [4] frozen. Master i is
    i, moments 10 i and 100 i."""
    import torch

    a, b, c = (parts_of([float(i) for i in r], ranks) for r in (range(1, 10), range(10, 12), range(20, 24)))
    for r in range(ranks):
        flat = torch.cat([a[r], b[r]])
        state = {0: {"exp_avg": 10 * flat, "exp_avg_sq": 100 * flat, "step": 7}}
        optimiser = {"fp32_flat_groups": [flat], "optimizer_state_dict": {"state": state}}
        torch.save({"optimizer_state_dict": optimiser}, directory / f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt")
        model = {
            "param_shapes": [{"a": (3, 3), "b": (2,)}],
            "frozen_param_shapes": {"c": (4,)},
            "frozen_param_fragments": {"c": c[r]},
            "global_steps": 7,
        }
        torch.save(model, directory / f"zero_pp_rank_{r}_mp_rank_00_model_states.pt")


def test_a_rank_of_three_reads_its_share_of_two(tmp_path):
    from openrlhf_tir.learner.saved.shards import Shards

    written(tmp_path, 2)
    last = Shards(tmp_path, 2, rank=2, world=3)
    assert last.master("a").tolist() == [7, 8, 9] and last.master("b").tolist() == [0]
    assert last.moment("exp_avg", "a").tolist() == [70, 80, 90] and last.moment("exp_avg_sq", "a").tolist() == [
        700,
        800,
        900,
    ]
    assert last.state_kinds("b") == {"exp_avg": True, "exp_avg_sq": True, "step": False}
    assert {name: part.tolist() for name, part in last.frozen()} == {"c": [0, 0]}
    assert (last.scalar_state("step", "b"), last.model["global_steps"]) == (7, 7)
    first = Shards(tmp_path, 2, rank=0, world=3)
    assert first.master("b").tolist() == [10] and dict(first.frozen())["c"].tolist() == [20, 21]


def test_a_missing_file_of_a_saved_rank_is_named(tmp_path):
    from openrlhf_tir.learner.saved.shards import Shards

    written(tmp_path, 2)
    (tmp_path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointDamaged, match=r"optim_states \w+ \w+ 1\b") as refused:
        Shards(tmp_path, 2, 0, 1)
    assert refused.value.code == "file_missing"
