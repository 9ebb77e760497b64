"""Memory of one process mapped into another: the stand-in for CUDA IPC, in real processes that are killed midway."""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.connection import Connection

import pytest

torch = pytest.importorskip("torch")

from openrlhf_tir.pushes import ExposedBucket, Item  # noqa: E402
from openrlhf_tir.weights.bits import BLOCK_WORDS  # noqa: E402
from openrlhf_tir.weights.ipc.device_digest import bucket_digest, word_sums  # noqa: E402
from openrlhf_tir.weights.ipc.exposer import Exposer  # noqa: E402
from openrlhf_tir.weights.ipc.importer import CannotMap, Importer, buckets_of, plain_buckets  # noqa: E402

from ..torch_processes import forked_with  # noqa: E402

pytestmark = [pytest.mark.extended, pytest.mark.slow]  # a server imports torch
CPU = torch.device("cpu")
BUCKETS = [
    [Item("a", "BF16", (3, 5)), Item("empty", "F32", (0, 4))],
    [Item("b", "F32", (7,)), Item("scalar", "F32", ())],
]


def tensors(bucket: list[Item], seed: int) -> list[tuple[str, torch.Tensor]]:
    """Return the weights of a bucket that belong to a seed."""
    generator = torch.Generator().manual_seed(seed)
    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    return [(item.name, torch.randn(item.shape, generator=generator).to(dtypes[item.dtype])) for item in bucket]


def learner_process(pipe: Connection) -> None:
    """Expose what is asked for: (number of the bucket, seed)."""
    exposer = Exposer(CPU)
    exposer.reserve(BUCKETS)
    while True:
        number, seed = pipe.recv()
        pipe.send(exposer.fill(number, BUCKETS[number % 2], tensors(BUCKETS[number % 2], seed)))


def engine_process(pipe: Connection) -> None:
    """Map what is sent, and answer with the values."""
    importer = Importer(CPU)
    while True:
        (plain,) = pipe.recv()
        buckets = buckets_of(plain)
        importer.begin(buckets)
        pipe.send([(name, t.float().tolist()) for bucket in buckets for name, t in importer.tensors(bucket)])


@pytest.fixture(scope="module")
def processes():
    with forked_with(__name__) as context:
        yield context


class Other:
    """Another process that answers by a pipe."""

    def __init__(self, processes, target) -> None:
        self.pipe, there = multiprocessing.Pipe()
        self.process = processes.Process(target=target, args=(there,), daemon=True)
        self.process.start()
        there.close()

    def __call__(self, *asked):
        self.pipe.send(asked)
        return self.pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        assert self.process.exitcode == -signal.SIGKILL


@pytest.fixture
def learner(processes):
    other = Other(processes, learner_process)
    yield other
    if other.process.is_alive():
        other.kill()


def held(importer: Importer, buckets: list[ExposedBucket]) -> dict[str, torch.Tensor]:
    return {name: tensor for bucket in buckets for name, tensor in importer.tensors(bucket)}


def is_of(importer: Importer, bucket: ExposedBucket, number: int, seed: int) -> bool:
    found = held(importer, [bucket])
    return all(torch.equal(found[name], tensor) for name, tensor in tensors(BUCKETS[number % 2], seed))


def test_a_learner_killed_between_two_buckets_leaves_an_importer_that_maps_the_next_learners(learner, processes):
    importer = Importer(CPU)
    first = [learner(number, 1) for number in (0, 1)]
    importer.begin(first)
    assert all(is_of(importer, bucket, number, 1) for number, bucket in enumerate(first))
    again = learner(2, 2)  # fills the buffer of bucket 0 again, under the same handle
    assert again.handles == first[0].handles and is_of(importer, again, 2, 2)
    with pytest.raises(CannotMap):
        importer.check(first)  # what was announced before is not there any more
    learner.kill()
    assert is_of(importer, again, 2, 2), "memory that is mapped outlives its process"
    other = Other(processes, learner_process)
    try:
        next_push = [other(0, 3)]
        importer.begin(next_push)
        assert is_of(importer, next_push[0], 0, 3) and len(importer._mapped) == 1
    finally:
        other.kill()


def test_an_engine_killed_while_it_maps_costs_neither_the_learner_nor_the_next_engine_anything(processes):
    exposer = Exposer(CPU)
    exposer.reserve(BUCKETS)
    engine = Other(processes, engine_process)
    buckets = [exposer.fill(n, BUCKETS[n], tensors(BUCKETS[n], 1)) for n in (0, 1)]
    expected = [(n, t.float().tolist()) for bucket in BUCKETS for n, t in tensors(bucket, 1)]
    try:
        assert engine(plain_buckets(buckets)) == expected
    finally:
        engine.kill()
    buckets = [exposer.fill(n, BUCKETS[n], tensors(BUCKETS[n], 2)) for n in (0, 1)]
    importer = Importer(CPU)
    importer.begin(buckets)
    assert all(is_of(importer, bucket, number, 2) for number, bucket in enumerate(buckets))


def test_what_cannot_be_mapped_or_is_not_what_was_announced_is_refused_with_its_reason():
    exposer = Exposer(CPU)
    exposer.reserve(BUCKETS)
    bucket = exposer.fill(0, BUCKETS[0], tensors(BUCKETS[0], 1))
    [own] = bucket.handles
    for changed, fact in (
        (bucket._replace(handles={"GPU 4": b"x"}), "GPU 4"),
        (bucket._replace(handles={}), own),
        (bucket._replace(handles={own: b"no handle"}), "UnpicklingError"),
        (bucket._replace(digest="0" * 32), "0" * 12),
    ):
        with pytest.raises(CannotMap, match=fact.replace("(", r"\(").replace(")", r"\)")):
            Importer(CPU).begin([changed])
    with pytest.raises(CannotMap):
        Importer(CPU).tensors(bucket._replace(items=bucket.items[:0]))
    exposer._slots[0][1] += 1
    with pytest.raises(CannotMap, match=bucket.digest[:12]):
        Importer(CPU).begin([bucket])


@pytest.mark.parametrize("seed", range(3))
def test_the_digest_sees_one_bit_an_exchange_and_a_shift_and_not_where_the_bytes_lie(seed):
    generator = torch.Generator().manual_seed(seed)
    words = BLOCK_WORDS + 100
    buffer = torch.randint(256, (8 * words,), dtype=torch.uint8, generator=generator)
    sums = word_sums(buffer).tolist()
    assert word_sums(buffer.clone()).tolist() == sums
    changes = []
    for at in (0, 8 * BLOCK_WORDS + 3, 8 * words - 1):
        flipped = buffer.clone()
        flipped[at] ^= 128
        changes.append(flipped)
    exchanged = buffer.view(torch.int64).clone()
    exchanged[[5, BLOCK_WORDS + 5]] = exchanged[[BLOCK_WORDS + 5, 5]]  # the same place in two blocks
    changes += [exchanged.view(torch.uint8), buffer.roll(8)]
    assert all(word_sums(changed).tolist() != sums for changed in changes)


def test_the_digest_is_of_names_dtypes_and_shapes_as_well_and_of_signed_sums():
    items = [("w", "F32", (2, 3))]
    digest = bucket_digest(items, [-1, 2])
    others = [[("v", "F32", (2, 3))], [("w", "I32", (2, 3))], [("w", "F32", (3, 2))], [*items, ("b", "F32", ())]]
    assert bucket_digest(items, [-1, 2]) == digest
    assert len({digest, bucket_digest(items, [2, -1]), *(bucket_digest(other, [-1, 2]) for other in others)}) == 6


def test_equal_weights_have_equal_digests_whatever_lay_in_the_buffer_before():
    exposer = Exposer(CPU)
    exposer.reserve(BUCKETS)
    first = exposer.fill(0, BUCKETS[0], tensors(BUCKETS[0], 1)).digest
    exposer._slots[0].fill_(255)
    assert exposer.fill(0, BUCKETS[0], tensors(BUCKETS[0], 1)).digest == first
