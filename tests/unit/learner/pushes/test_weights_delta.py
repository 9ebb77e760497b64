"""What the learner writes for a push, in full and as a delta: the bits that it holds, whatever it is made of, and
nothing that a failed push left."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_rank")]  # slow: importing torch and deepspeed


def model(dtype="bfloat16"):
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Linear(1500, 900), torch.nn.LayerNorm(900), torch.nn.Linear(900, 7, bias=False)
    )
    return layers.to(getattr(torch, dtype))


def step(module, lr: float) -> None:
    """One of AdamW on fp32 masters, rounded to the weights' own dtype, as DeepSpeed's."""
    import torch

    for p in module.parameters():
        master = torch.nn.Parameter(p.detach().float())
        master.grad = torch.randn_like(master)
        torch.optim.AdamW([master], lr=lr).step()
        p.data.copy_(master.detach())


def test_deltas_after_real_steps_give_the_bits_of_a_full_push(tmp_path, monkeypatch):
    from openrlhf_tir.learner.pushes.delta import write_delta
    from openrlhf_tir.learner.pushes.last_push import LastPush
    from openrlhf_tir.learner.weights_file import write_weights
    from openrlhf_tir.weights import delta_file, digest
    from openrlhf_tir.weights.node_copy import NodeCopy

    for module_of_it in (digest, delta_file):
        monkeypatch.setattr(module_of_it, "CHUNK_BYTES", 2**20)  # so that a tensor has several
    module, last, node = model(), LastPush(), NodeCopy(keep=True, root=tmp_path / "node")
    (tmp_path / "push").mkdir()
    full = tmp_path / "push" / "v0.safetensors"
    node.full(full, 0, write_weights(module, full, rank=0, last=last))
    for version in (1, 2):
        step(module, lr=1e-5)
        path = tmp_path / "push" / f"v{version}.delta"
        changes = write_delta(module, path, last, base_version=version - 1, rank=0, bucket_bytes=2**20)
        assert path.stat().st_size < full.stat().st_size / 4
        patched = node.delta(path, version, *changes)
        digest_of_full = write_weights(module, tmp_path / "full.safetensors", rank=0)
        assert (
            patched.read_bytes() == (tmp_path / "full.safetensors").read_bytes()
            and changes.digest == last.digest == digest_of_full
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_full_push_is_what_safetensors_reads_back(tmp_path, dtype):
    import torch
    from safetensors.torch import load_file

    from openrlhf_tir.learner.weights_file import write_weights
    from openrlhf_tir.weights.digest import digest_file, tensors_digest

    module, path = model(dtype), tmp_path / "w.safetensors"
    digest = write_weights(module, path, rank=0, bucket_bytes=1000)
    read = load_file(path)
    assert digest == digest_file(path) == tensors_digest(module.state_dict().items())
    assert read.keys() == module.state_dict().keys() and all(
        torch.equal(read[name], t) for name, t in module.state_dict().items()
    )


@pytest.mark.parametrize("spare", [10, 10**7], ids=["shorter", "longer"])
def test_a_push_that_is_written_over_an_earlier_one_is_that_push_alone(tmp_path, spare):
    from openrlhf_tir.learner.weights_file import write_weights
    from openrlhf_tir.weights.digest import digest_file

    (tmp_path / "spare").write_bytes(b"x" * spare)
    inode = (tmp_path / "spare").stat().st_ino
    digest = write_weights(model(), tmp_path / "v1.safetensors", rank=0)
    assert [p.name for p in tmp_path.iterdir()] == ["v1.safetensors"] and (
        tmp_path / "v1.safetensors"
    ).stat().st_ino == inode
    assert digest == digest_file(tmp_path / "v1.safetensors")


def test_there_is_no_delta_without_a_push_before_nor_when_most_weights_changed(tmp_path):
    from openrlhf_tir.learner.pushes.delta import write_delta
    from openrlhf_tir.learner.pushes.last_push import LastPush
    from openrlhf_tir.learner.weights_file import write_weights

    module, last, path = model("float32"), LastPush(), tmp_path / "v1.delta"
    assert write_delta(module, path, last, base_version=0, rank=0) is None
    write_weights(module, tmp_path / "v0.safetensors", rank=0, last=last)
    step(module, lr=1e-3)
    assert write_delta(module, path, last, base_version=0, rank=0) is None
    assert [p.name for p in tmp_path.iterdir()] == ["v0.safetensors"]
    assert last.digest == write_weights(module, tmp_path / "v1.safetensors", rank=0), (
        "what comes next continues from here"
    )


def test_what_a_chunk_gave_is_taken_while_the_next_ones_of_its_tensor_are_compared(monkeypatch):
    """One after the other would leave the cores idle while the changes of a large tensor are written."""
    import threading
    from concurrent.futures import ThreadPoolExecutor
    from types import SimpleNamespace

    import torch

    from openrlhf_tir.learner.weights_file import map_chunks
    from openrlhf_tir.weights import digest

    monkeypatch.setattr(digest, "CHUNK_BYTES", 4)
    taken = threading.Event()

    def task(weight, part, data) -> int:
        assert part.start == 0 or taken.wait(60), "the second chunk waits until the first one's result was taken"
        return part.start

    with ThreadPoolExecutor(1) as pool:
        tensor = torch.arange(8, dtype=torch.uint8)
        for _, results in map_chunks(iter([[(SimpleNamespace(name="w"), tensor)]]), task, pool):
            assert next(results) == 0
            taken.set()
            assert list(results) == [4]


def test_a_delta_goes_to_the_disk_while_it_is_written_and_a_disk_that_refuses_it_then_is_heard(tmp_path, monkeypatch):
    from openrlhf_tir.learner.pushes import write_behind
    from openrlhf_tir.learner.pushes.delta import write_delta
    from openrlhf_tir.learner.pushes.last_push import LastPush
    from openrlhf_tir.learner.weights_file import write_weights

    module, last = model(), LastPush()
    write_weights(module, tmp_path / "v0.safetensors", rank=0, last=last)
    step(module, lr=1e-5)
    monkeypatch.setattr(write_behind, "STEP_BYTES", 1)
    path, begun = tmp_path / "v1.delta", []
    with monkeypatch.context() as m:
        m.setattr(write_behind.os, "fdatasync", lambda fd: begun.append(path.exists()))
        assert write_delta(module, path, last, base_version=0, rank=0)
    assert begun and not any(begun), "before it has its name"

    def refuses(fd):
        raise OSError(5, "Input/output error")

    step(module, lr=1e-5)
    with monkeypatch.context() as m:
        m.setattr(write_behind.os, "fdatasync", refuses)
        with pytest.raises(OSError, match="Input/output"):
            write_delta(module, tmp_path / "v2.delta", last, base_version=1, rank=0)
    assert last.digest is None and not list(tmp_path.glob("v2*"))


@pytest.mark.parametrize("write", ["full", "delta"])
def test_a_push_that_failed_in_the_middle_is_continued_by_nothing(tmp_path, monkeypatch, write):
    from openrlhf_tir.learner import weights_file
    from openrlhf_tir.learner.pushes import delta as weights_delta
    from openrlhf_tir.learner.pushes.last_push import LastPush

    module, last = model(), LastPush()
    weights_file.write_weights(module, tmp_path / "v0.safetensors", rank=0, last=last)
    step(module, lr=1e-5)

    def full_disk(*args):
        raise OSError(28, "No space left on device")

    def push():
        if write == "full":
            return weights_file.write_weights(module, tmp_path / "v1.safetensors", rank=0, last=last)
        return weights_delta.write_delta(module, tmp_path / "v1.delta", last, base_version=0, rank=0)

    with monkeypatch.context() as m:
        m.setattr(weights_file, "write_at", full_disk)
        m.setattr(weights_delta.DeltaWriter, "add", full_disk)
        with pytest.raises(OSError, match="No space left"):
            push()
    assert last.digest is None and [p.name for p in tmp_path.iterdir()] == ["v0.safetensors"]
    assert weights_delta.write_delta(module, tmp_path / "v1.delta", last, base_version=0, rank=0) is None
