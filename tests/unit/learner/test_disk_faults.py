"""A disk that refuses one learner rank fails the call on all of them, by name, with every collective gone through.
Ranks are threads."""

from __future__ import annotations

import errno
import re
import threading
from itertools import count
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.slow  # importing torch and deepspeed
HANGS_S = 60.0
"""A rank that waits so long for another would wait for ever; reached only where a test fails."""


class Ranks:
    """Collectives over threads."""

    def __init__(self, n: int) -> None:
        self.n, self.gate, self.said = n, threading.Barrier(n), [None] * n
        self.me = threading.local()

    def get_world_size(self) -> int:
        return self.n

    def barrier(self) -> None:
        self.gate.wait(HANGS_S)

    def all_gather_object(self, parts: list, part) -> None:
        self.said[self.me.rank] = part
        self.barrier()
        parts[:] = self.said
        self.barrier()

    def run(self, call) -> list:
        """`call(rank)` on each, at once: what it returned or raised."""
        out: list = [None] * self.n

        def one(rank: int) -> None:
            self.me.rank = rank
            try:
                out[rank] = call(rank)
            except Exception as e:
                out[rank] = e
                if not isinstance(e, OSError):
                    self.gate.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.n)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return out


@pytest.fixture
def ranks(monkeypatch):
    from openrlhf_tir.learner import agreement

    ranks = Ranks(3)
    monkeypatch.setattr(agreement, "dist", ranks)
    return ranks


def engine_of(ranks: Ranks, refuses: str | None = None):
    """DeepSpeed's order of directories, files and barriers. `refuses`: what the disk does to this rank."""
    from openrlhf_tir.learner.saved.background import BackgroundWriter

    class Engine:
        def __init__(self) -> None:
            self.checkpoint_engine = BackgroundWriter()

        def save_checkpoint(self, directory, tag, save_latest):
            self.checkpoint_engine.makedirs(f"{directory}/{tag}", exist_ok=True)
            ranks.barrier()
            self.checkpoint_engine.save({}, f"{directory}/{tag}/shard{ranks.me.rank}.pt")
            self._copy_recovery_script(directory)
            ranks.barrier()

        def _copy_recovery_script(self, directory):
            if refuses == "copy":
                raise OSError(28, "No space left on device")

    return Engine()


def of_rank(error: BaseException | None, rank: int, number: int) -> bool:
    """Whether `error` is the disk's error `number`, and names the rank that had it."""
    return (
        isinstance(error, OSError)
        and error.errno == number
        and re.match(rf"\[Errno {number}\] \D* {rank}: \[Errno {number}\]", str(error)) is not None
    )


@pytest.mark.parametrize(
    ("bad", "refuses", "number"),
    [
        (1, "mkdir", errno.ENOTDIR),
        (0, "copy", errno.ENOSPC),
        (0, "learner.json", errno.EISDIR),
        (2, None, 0),
    ],
)
def test_a_checkpoint_that_one_rank_cannot_begin_fails_on_all_ranks_with_its_name(
    ranks, tmp_path, bad, refuses, number
):
    from openrlhf_tir.learner.saved.checkpoint import save_rank

    (tmp_path / "file").write_text("")
    engines = [engine_of(ranks, refuses if rank == bad else None) for rank in range(3)]
    if refuses == "learner.json":
        (tmp_path / "step" / "learner.json").mkdir(parents=True)

    def save(rank: int) -> None:
        directory = tmp_path / "file" / "below" if (rank, refuses) == (bad, "mkdir") else tmp_path / "step"
        save_rank(
            {"policy": engines[rank]},
            engines[rank].checkpoint_engine,
            directory,
            rank=rank,
            world_size=3,
            counters={"version": 4},
            extra_files={},
        )

    ended = ranks.run(save)
    if refuses is None:
        assert ended == [None] * 3
        for engine in engines:
            engine.checkpoint_engine.written()
        assert {f.name for f in (tmp_path / "step").rglob("*.pt")} >= {"rank0.pt", "rank1.pt", "rank2.pt"}
        return
    assert all(of_rank(e, bad, number) for e in ended), ended
    assert all(engine.checkpoint_engine.written() == {} for engine in engines), (
        "something of the failed checkpoint is still being written"
    )


def test_weights_that_rank_0_cannot_write_fail_on_all_ranks_after_the_last_bucket(ranks, tmp_path, monkeypatch):
    import torch

    from openrlhf_tir.learner import weights_file

    class Gathered:
        """ZeRO-3's: every rank must come to every bucket."""

        def __init__(self, params):
            ranks.barrier()

        def __enter__(self): ...
        def __exit__(self, *exc): ...

    monkeypatch.setattr(weights_file, "deepspeed", SimpleNamespace(zero=SimpleNamespace(GatheredParameters=Gathered)))
    monkeypatch.setattr(weights_file.os, "fsync", lambda fd: None)
    module = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])

    def publish(path):
        return ranks.run(lambda rank: weights_file.write_weights(module, path, rank=rank, bucket_bytes=1))

    (tmp_path / "file").write_text("")
    ended = publish(tmp_path / "file" / "weights")
    assert all(of_rank(e, 0, errno.EEXIST) for e in ended), ended

    real, calls = weights_file.write_at, count()

    def full(fd, data, at):
        if next(calls) == 3:
            raise OSError(28, "No space left on device")
        real(fd, data, at)

    monkeypatch.setattr(weights_file, "write_at", full)
    ended = publish(tmp_path / "weights")
    assert all(of_rank(e, 0, errno.ENOSPC) for e in ended), ended
    assert list(tmp_path.iterdir()) == [tmp_path / "file"], "what was written of it takes the room that is missing"

    monkeypatch.setattr(weights_file, "write_at", real)
    digest, *others = publish(tmp_path / "weights")
    assert isinstance(digest, str) and others == [None, None]


def test_a_step_of_rank_0_alone_that_its_disk_refuses_fails_on_all_ranks(ranks):
    from openrlhf_tir.learner.agreement import only_on_rank_0

    done = []

    def step(number: int | None) -> None:
        done.append(ranks.me.rank)
        if number is not None:
            raise OSError(number, "refused")

    assert ranks.run(lambda rank: only_on_rank_0(rank, step, None)) == [None] * 3
    ended = ranks.run(lambda rank: only_on_rank_0(rank, step, errno.ENOSPC))
    assert all(of_rank(e, 0, errno.ENOSPC) for e in ended), ended
    assert done == [0, 0]


def test_two_ranks_that_export_several_files_gather_the_same_weights_in_the_same_order(ranks, tmp_path, monkeypatch):
    import torch
    from safetensors.torch import load_file

    from openrlhf_tir.learner import weights_file
    from openrlhf_tir.learner.lora import hf_weights
    from openrlhf_tir.learner.weight_shards import write_shards

    module = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])
    names = {parameter: name for name, parameter in module.named_parameters()}

    class Gathered:
        """ZeRO-3's: every rank must come with the same parameters."""

        def __init__(self, params):
            asked: list = [None] * ranks.n
            ranks.all_gather_object(asked, [names[parameter] for parameter in params])
            assert all(of == asked[0] for of in asked), asked

        def __enter__(self): ...
        def __exit__(self, *exc): ...

    monkeypatch.setattr(weights_file, "deepspeed", SimpleNamespace(zero=SimpleNamespace(GatheredParameters=Gathered)))
    monkeypatch.setattr(weights_file.os, "fsync", lambda fd: None)
    largest = 4 * 4 * 4
    ended = ranks.run(
        lambda rank: write_shards(hf_weights(module), tmp_path, rank=rank, max_bytes=2 * largest, bucket_bytes=largest)
    )
    assert ended == [None] * ranks.n
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    written = {name: tensor for shard in shards for name, tensor in load_file(shard).items()}
    assert written.keys() == dict(module.named_parameters()).keys()
    assert all(torch.equal(written[name], parameter) for name, parameter in module.named_parameters())
