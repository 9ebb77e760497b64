"""Exports in one file and in several: what transformers loads of them, what is left of an earlier one, and a disk that
refuses or lies."""

from __future__ import annotations

import json

import pytest

from tests.e2e.support.tiny_model import make_model

pytestmark = pytest.mark.slow  # importing transformers and DeepSpeed takes seconds


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory):
    """A process group of one: what is written is agreed upon."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path_factory.mktemp('group')}/at", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def model():
    return make_model(0)


def export(model, directory, size: int) -> None:
    from openrlhf_tir.learner.lora import hf_weights
    from openrlhf_tir.learner.weight_shards import write_shards

    write_shards(hf_weights(model), directory, rank=0, max_bytes=size, bucket_bytes=50_000)
    model.config.save_pretrained(directory)


def loaded_as(model, directory) -> bool:
    """Whether plain transformers finds the model's own weights in the directory."""
    import torch
    from transformers import AutoModelForCausalLM

    found = AutoModelForCausalLM.from_pretrained(directory).state_dict()
    own = model.state_dict()
    return found.keys() == own.keys() and all(torch.equal(found[name], own[name]) for name in own)


def files(directory) -> set[str]:
    return {p.name for p in directory.iterdir()} - {"config.json"}


def test_a_model_that_fits_into_one_file_is_one_file_without_an_index(model, tmp_path):
    export(model, tmp_path, 5 * 10**9)
    assert files(tmp_path) == {"model.safetensors"} and loaded_as(model, tmp_path)


def test_a_larger_one_is_several_files_of_at_most_that_size_and_an_index_of_every_tensor(model, tmp_path):
    from safetensors import safe_open

    export(model, tmp_path, 200_000)
    shards = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    n = len(shards)
    assert n > 2 and shards == [f"model-{i:05d}-of-{n:05d}.safetensors" for i in range(1, n + 1)]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == shards
    total = 0
    for shard in shards:
        with safe_open(tmp_path / shard, "np") as tensors:
            assert {name for name, file in index["weight_map"].items() if file == shard} == set(tensors.keys())
            held = sum(tensors.get_tensor(name).nbytes for name in tensors.keys())  # noqa: SIM118  it is no mapping
        assert held <= 200_000
        total += held
    assert index["metadata"]["total_size"] == total == sum(p.numel() for p in model.parameters()) * 4
    assert loaded_as(model, tmp_path)


def test_a_tensor_that_is_larger_than_a_file_may_be_has_one_to_itself(model, tmp_path):
    export(model, tmp_path, 1)
    assert len(list(tmp_path.glob("*.safetensors"))) == len({p.data_ptr() for p in model.parameters()}) and loaded_as(
        model, tmp_path
    )


@pytest.mark.parametrize(
    ("before", "after"), [(200_000, 5 * 10**9), (5 * 10**9, 200_000), (200_000, 150_000), (200_000, 200_000)]
)
def test_an_export_takes_the_place_of_another_and_leaves_nothing_of_it(model, tmp_path, before, after):
    other = make_model(1)
    export(other, tmp_path, before)
    export(model, tmp_path, after)
    export(model, tmp_path / "alone", after)
    assert files(tmp_path) - {"alone"} == files(tmp_path / "alone") and loaded_as(model, tmp_path)


@pytest.mark.parametrize("size", [5 * 10**9, 200_000])
def test_what_the_disk_gives_back_otherwise_is_refused_and_the_earlier_export_stays(model, tmp_path, monkeypatch, size):
    from openrlhf_tir.learner import weights_file

    export(model, tmp_path, 200_000)
    real = weights_file.os.replace

    def faulty(source, target):
        with open(source, "r+b") as f:
            f.seek(-1, 2)
            last = f.read(1)[0]
            f.seek(-1, 2)
            f.write(bytes([last ^ 1]))
        real(source, target)

    monkeypatch.setattr(weights_file.os, "replace", faulty)
    with pytest.raises(OSError, match="safetensors"):
        export(make_model(1), tmp_path, size)
    assert loaded_as(model, tmp_path) and not (tmp_path / ".export").exists()


def test_an_export_that_is_cut_off_in_the_middle_leaves_no_index_of_a_mixture(model, tmp_path, monkeypatch):
    from openrlhf_tir.learner import weight_shards

    export(model, tmp_path, 200_000)
    real, moved = weight_shards.os.replace, []

    def cut_off(source, target):
        if target.parent == tmp_path:
            moved.append(target.name)
            if len(moved) == 2:
                raise OSError("the machine is gone")
        real(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(weight_shards.os, "replace", cut_off)
        with pytest.raises(OSError, match="gone"):
            export(make_model(1), tmp_path, 200_000)
    assert not (tmp_path / "model.safetensors.index.json").exists()
    export(make_model(1), tmp_path, 200_000)
    assert loaded_as(make_model(1), tmp_path)


def test_an_export_that_does_not_fit_is_refused_before_anything_is_gathered(model, tmp_path, monkeypatch):
    from openrlhf_tir.learner import weight_shards

    monkeypatch.setattr(weight_shards, "free_bytes", lambda path: 1000)
    with pytest.raises(OSError, match=r"0\.6 MiB.*0\.0 MiB"):
        export(model, tmp_path, 5 * 10**9)
    assert files(tmp_path) == set()
