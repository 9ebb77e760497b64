"""A node's copy takes exactly what changed, and a delta is refused by name when it is damaged, left out, out of order
or taken twice."""

from __future__ import annotations

import io
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from openrlhf_tir.errors import DeltaRefused, WeightsUnverified
from openrlhf_tir.weights import node_copy
from openrlhf_tir.weights.delta_file import DeltaWriter
from openrlhf_tir.weights.digest import digest_file, tensors_digest
from openrlhf_tir.weights.node_copy import NodeCopy

from .pieces import encode


class Pushes:
    """Versions of two small tensors: full files, and deltas between any two of them."""

    def __init__(self, directory, versions: int = 4) -> None:
        rng = np.random.default_rng(0)
        self.directory, self.weights = (
            directory,
            [{"a": rng.integers(0, 99, 5000, dtype=np.int16), "b.w": rng.integers(0, 99, (3, 7), dtype=np.int16)}],
        )
        for _ in range(versions - 1):
            new = {name: t.copy() for name, t in self.weights[-1].items()}
            new["a"][rng.integers(0, 5000, 20)] += 1
            new["b.w"][1, 2] += 300
            self.weights.append(new)

    def digest(self, version: int) -> str:
        return tensors_digest(self.weights[version].items())

    def full(self, version: int):
        from safetensors.numpy import save_file

        path = self.directory / f"v{version}.safetensors"
        save_file(self.weights[version], path)
        return path, version, self.digest(version)

    def delta(self, version: int):
        out, before = io.BytesIO(), self.weights[version - 1]
        writer = DeltaWriter(out, self.digest(version - 1), version - 1)
        for name, new in self.weights[version].items():
            writer.add(name, [(0, encode(before[name].ravel(), new.ravel()))])
        digest, link = writer.end(self.digest(version))
        path = self.directory / f"v{version}.delta"
        path.write_bytes(out.getvalue())
        return path, version, digest, link


@pytest.fixture
def pushes(tmp_path) -> Pushes:
    (tmp_path / "push").mkdir()
    return Pushes(tmp_path / "push")


@pytest.fixture(params=["of the node's own memory", "elsewhere"])
def root(tmp_path, request) -> Path:
    """Where the node keeps its copy; the pushed files are either there too, or on a file system that several nodes
    see."""
    return tmp_path if request.param.startswith("of") else tmp_path / "node"


@pytest.fixture
def node(root) -> NodeCopy:
    return NodeCopy(keep=True, root=root)


@pytest.mark.slow
def test_deltas_one_after_the_other_give_the_weights_of_a_full_push(node, pushes):
    from safetensors.numpy import load_file

    node.full(*pushes.full(0))
    for version in (1, 2, 3):
        path = node.delta(*pushes.delta(version))
        assert digest_file(path) == pushes.digest(version)
    assert all((load_file(path)[name] == t).all() for name, t in pushes.weights[3].items())


def test_the_pushed_file_may_be_removed_and_the_copy_continues(node, pushes):
    pushed = pushes.full(0)
    node.full(*pushed)
    pushed[0].unlink()
    assert digest_file(node.delta(*pushes.delta(1))) == pushes.digest(1)


def test_a_delta_that_was_left_out_is_noticed(node, pushes):
    node.full(*pushes.full(0))
    with pytest.raises(DeltaRefused, match=r"v2\.delta.*\b1 \(.*\b0 \("):
        node.delta(*pushes.delta(2))
    assert digest_file(node.delta(*pushes.delta(1))) == pushes.digest(1), "nothing was touched"


def test_two_deltas_out_of_order_and_an_old_one_again_are_refused(node, pushes):
    node.full(*pushes.full(0))
    one, two = pushes.delta(1), pushes.delta(2)
    with pytest.raises(DeltaRefused, match=r"\b1 \(.*\b0 \("):
        node.delta(*two)
    node.delta(*one)
    node.delta(*two)
    with pytest.raises(DeltaRefused, match=r"\b0 \(.*\b2 \("):
        node.delta(*one)
    with pytest.raises(DeltaRefused, match=r"\b0 \(.*\b2 \("):
        node.delta(one[0], 3, pushes.digest(3), pushes.delta(3)[3])  # the bytes of an old one under a new announcement
    assert digest_file(node.delta(*pushes.delta(3))) == pushes.digest(3)


def test_any_broken_byte_is_refused_by_name_and_the_copy_is_what_it_was(node, pushes):
    copy = node.full(*pushes.full(0))
    path, *announced = pushes.delta(1)
    whole = path.read_bytes()
    for at in {0, 9, 60, len(whole) // 2, len(whole) - 40, len(whole) - 12, len(whole) - 1}:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(DeltaRefused, match=r"v1\.delta"):
            node.delta(path, *announced)
        assert digest_file(copy) == pushes.digest(0)
    for cut in (0, 5, 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DeltaRefused, match="delta"):
            node.delta(path, *announced)
    path.write_bytes(whole)
    node.delta(path, *announced)


def last_part_broken(path: Path) -> None:
    whole = path.read_bytes()
    at = index_of(whole) - 1
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])


def index_of(delta: bytes) -> int:
    """Where it begins."""
    return len(delta) - 16 - int.from_bytes(delta[-16:-8], "little")


@pytest.mark.slow
def test_what_was_changed_before_a_broken_part_was_read_is_changed_back(node, pushes):
    """By two pieces of one tensor, with differences that int8 holds and that it does not."""
    copy, old, out = node.full(*pushes.full(0)), pushes.weights[0], io.BytesIO()
    a, b = old["a"].copy(), old["b.w"] + 1
    a[::7] -= 1
    a[::11] += 3000
    writer = DeltaWriter(out, pushes.digest(0), 0)
    halves = [(2 * cut.start, encode(old["a"][cut], a[cut])) for cut in (slice(0, 2500), slice(2500, 5000))]
    writer.add("a", halves)
    writer.add("b.w", [(0, encode(old["b.w"].ravel(), b.ravel()))])
    announced = writer.end(tensors_digest({"a": a, "b.w": b}.items()))
    path = pushes.directory / "v1.delta"
    path.write_bytes(out.getvalue())
    last_part_broken(path)
    with pytest.raises(DeltaRefused, match=rf"v1\.delta.* \d+ \w+ {index_of(out.getvalue())}\b"):
        node.delta(path, 1, *announced)
    assert digest_file(copy) == pushes.digest(0)
    path.write_bytes(out.getvalue())
    assert digest_file(node.delta(path, 1, *announced)) == announced.digest


def test_a_copy_that_is_not_what_it_was_when_changes_were_taken_back_is_not_used_again(node, pushes):
    copy = node.full(*pushes.full(0))
    path, *announced = pushes.delta(1)
    whole = path.read_bytes()
    last_part_broken(path)
    with copy.open("r+b") as f:
        f.seek(-5, os.SEEK_END)
        f.write(b"x")
    with pytest.raises(DeltaRefused, match=rf"v1\.delta.* \d+ \w+ {index_of(whole)}\b"):
        node.delta(path, *announced)
    path.write_bytes(whole)
    with pytest.raises(DeltaRefused) as e:
        node.delta(path, *announced)
    assert e.value.code == "no_copy"


def test_a_byte_that_nobody_announced_is_refused(node, pushes):
    copy = node.full(*pushes.full(0))
    path, *announced = pushes.delta(1)
    whole = path.read_bytes()
    index = index_of(whole)
    path.write_bytes(whole[:index] + b"x" + whole[index:])
    with pytest.raises(DeltaRefused, match=rf"\b{index}\b.* {index + 1}\b"):
        node.delta(path, *announced)
    assert digest_file(copy) == pushes.digest(0)


def test_parts_that_threads_write_at_once_do_not_mix(node, pushes):
    class Disk(io.BytesIO):
        def write(self, data) -> int:
            time.sleep(0.002)  # others have a turn meanwhile
            return super().write(data)

    node.full(*pushes.full(0))
    old, out = pushes.weights[0]["a"], Disk()
    new = old + np.arange(1, 5001, dtype=np.int16)
    writer = DeltaWriter(out, pushes.digest(0), 0)
    cuts = [slice(at, at + 500) for at in range(0, 5000, 500)]
    with ThreadPoolExecutor(4) as threads:
        parts = [("a", [(2 * cut.start, encode(old[cut], new[cut]))]) for cut in cuts]
        [*threads.map(writer.add, *zip(*parts, strict=True))]
    announced = writer.end(tensors_digest({**pushes.weights[0], "a": new}.items()))
    (pushes.directory / "v1.delta").write_bytes(out.getvalue())
    assert digest_file(node.delta(pushes.directory / "v1.delta", 1, *announced)) == announced.digest


def test_a_delta_that_is_not_there_is_refused(node, pushes):
    node.full(*pushes.full(0))
    with pytest.raises(DeltaRefused, match="delta"):
        node.delta(pushes.directory / "gone.delta", 1, "digest", "link")


def held(root) -> list[str]:
    """The copies that this process has in its address space: where, and which file."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(root) in line]


def test_a_copy_stays_in_a_process_from_its_full_push_on_until_the_next_has_brought_another(node, pushes, root):
    node.full(*pushes.full(0))
    first = held(root)
    for version in (1, 2):
        node.delta(*pushes.delta(version))
        assert held(root) == first, "no delta maps it anew"
    copy = node.full(*pushes.full(3))
    (line,) = held(root)
    assert line.split()[4:] == [str(copy.stat().st_ino), str(copy)], "nothing of the file before is left"


def test_a_copy_that_an_engine_beside_it_has_replaced_is_the_one_that_is_changed(node, pushes, root):
    beside = NodeCopy(keep=True, root=root)
    node.full(*pushes.full(0))
    node.delta(*pushes.delta(1))
    beside.full(*pushes.full(2))
    copy = node.delta(*pushes.delta(3))
    assert digest_file(copy) == pushes.digest(3)
    both = [line.split()[4:] for line in held(root)]
    assert both == [[str(copy.stat().st_ino), str(copy)]] * 2, "not the one that is no file any more"


def test_a_copy_that_lost_a_bit_is_found_by_the_digest_of_the_whole_and_not_used_again(node, pushes):
    copy = node.full(*pushes.full(0))
    with open(copy, "r+b") as f:
        f.seek(-2, 2)
        f.write(b"\xff")
    with pytest.raises(DeltaRefused, match=rf"v1\.delta.*{pushes.digest(1)[:12]}"):
        node.delta(*pushes.delta(1))
    assert not held(pushes.directory.parent)
    with pytest.raises(DeltaRefused) as e:
        node.delta(*pushes.delta(1))
    assert e.value.code == "no_copy"
    assert digest_file(node.full(*pushes.full(1))) == pushes.digest(1)


def test_a_process_that_is_killed_in_the_middle_of_a_patch_leaves_a_copy_that_nobody_uses(
    node, pushes, monkeypatch, root
):
    def killed(piece, data):
        data[:3] = 7  # half of it
        os.kill(os.getpid(), signal.SIGKILL)

    copy, changes = node.full(*pushes.full(0)), pushes.delta(1)
    with monkeypatch.context() as m:
        m.setattr(node_copy, "apply", killed)
        process = multiprocessing.get_context("fork").Process(target=node.delta, args=changes)
        process.start()
        process.join(60)
    assert process.exitcode == -signal.SIGKILL and digest_file(copy) not in (pushes.digest(0), pushes.digest(1)), (
        "no mixture, no test"
    )
    beside = NodeCopy(keep=True, root=root)
    for version in (1, 2):
        with pytest.raises(DeltaRefused) as e:
            beside.delta(*pushes.delta(version))
        assert e.value.code == "no_copy"
    assert digest_file(beside.full(*pushes.full(2))) == pushes.digest(2)
    assert digest_file(beside.delta(*pushes.delta(3))) == pushes.digest(3)


HANGS = """
import os, signal, sys
from filelock import FileLock
lock = FileLock(sys.argv[1])
lock.acquire()
print("holds", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_an_engine_that_hangs_in_its_turn_costs_the_engines_beside_it_nothing(node, pushes, root):
    node.full(*pushes.full(0))
    patient = NodeCopy(keep=True, root=root, patience_s=0.2)
    with subprocess.Popen(
        [sys.executable, "-c", HANGS, next(root.glob("tir_node_*/lock"))], stdout=subprocess.PIPE, text=True
    ) as hung:
        try:
            assert hung.stdout.readline() == "holds\n"
            with pytest.raises(DeltaRefused, match="v1"):
                patient.delta(*pushes.delta(1))
            path, version, digest = pushes.full(1)
            assert patient.full(path, version, digest) == path, "proved, and loaded from where it was pushed"
            with pytest.raises(WeightsUnverified, match=rf"v1\.safetensors .*{digest[:12]}.*{pushes.digest(0)[:12]}"):
                patient.full(path, version, pushes.digest(0))
        finally:
            hung.kill()
    assert digest_file(patient.full(*pushes.full(2))) == pushes.digest(2), "a killed one gives its turn back"


def test_a_node_without_room_for_a_note_proves_every_push_and_takes_no_delta(tmp_path, pushes, monkeypatch, caplog):
    def full_disk(*args):
        raise OSError(28, "No space left on device")

    node = NodeCopy(keep=True, root=tmp_path / "node")
    monkeypatch.setattr(node_copy.os, "replace", full_disk)
    pushed = pushes.full(0)
    assert digest_file(node.full(*pushed)) == digest_file(node.full(*pushed)) == pushes.digest(0)
    assert "No space left" in caplog.text
    changes = pushes.delta(1)
    with pytest.raises(DeltaRefused) as e:
        node.delta(*changes)
    assert e.value.code == "no_copy"


def test_a_delta_of_other_tensors_is_refused(node, pushes):
    node.full(*pushes.full(0))
    out = io.BytesIO()
    writer = DeltaWriter(out, pushes.digest(0), 0)
    writer.add("c", [(0, encode(np.zeros(4, np.int16), np.ones(4, np.int16)))])
    announced = writer.end(pushes.digest(1))
    (pushes.directory / "v1.delta").write_bytes(out.getvalue())
    with pytest.raises(DeltaRefused, match=r"\bc\b"):
        node.delta(pushes.directory / "v1.delta", 1, *announced)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_pieces_of_one_chunk_are_hashed_as_they_leave_it_whatever_their_order_and_reach(node, pushes, order):
    """The first reaches beyond where the second begins."""
    node.full(*pushes.full(0))
    old, new = pushes.weights[0]["a"], pushes.weights[0]["a"].copy()
    new[[5, 3000, 4999]] += 1
    # (byte, elements); the second changes element 1100
    parts = [(0, slice(0, 3500)), (2000, slice(1000, 2000)), (7000, slice(3500, None))]
    new[1100] += 9
    pieces = [
        (0, encode(old[:3500], np.where(np.arange(3500) == 1100, old[:3500], new[:3500]))),
        *((b, encode(old[p], new[p])) for b, p in parts[1:]),
    ]
    out = io.BytesIO()
    writer = DeltaWriter(out, pushes.digest(0), 0)
    for i in order:
        writer.add("a", [pieces[i]])
    digest = tensors_digest({**pushes.weights[0], "a": new}.items())
    announced = writer.end(digest)
    (pushes.directory / "v1.delta").write_bytes(out.getvalue())
    assert digest_file(node.delta(pushes.directory / "v1.delta", 1, *announced)) == digest


def test_engines_of_a_node_hash_and_patch_once(node, pushes, monkeypatch, root):
    hashed, patched = [], []
    real_hash, real_patch = node_copy.digest_file, node_copy._apply_delta
    monkeypatch.setattr(
        node_copy, "digest_file", lambda path, open_file: hashed.append(path) or real_hash(path, open_file)
    )
    monkeypatch.setattr(node_copy, "_apply_delta", lambda copy, delta: patched.append(copy) or real_patch(copy, delta))
    engines = [node, NodeCopy(keep=True, root=root), NodeCopy(keep=True, root=root)]
    pushed = pushes.full(0)
    assert len({e.full(*pushed) for e in engines}) == 1
    changes = pushes.delta(1)
    assert len({e.delta(*changes) for e in engines}) == 1
    assert (len(hashed), len(patched)) == (1, 1)


def test_another_file_under_the_same_name_is_hashed_again(tmp_path, pushes):
    node = NodeCopy(keep=False, root=tmp_path / "node")
    path, version, digest = pushes.full(0)
    assert node.full(path, version, digest) == path
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(WeightsUnverified, match=rf"v0\.safetensors .*{digest[:12]}"):
        node.full(path, version, digest)


def test_a_node_that_keeps_nothing_takes_no_delta(tmp_path, pushes):
    node = NodeCopy(keep=False, root=tmp_path / "node")
    node.full(*pushes.full(0))
    with pytest.raises(DeltaRefused) as e:
        node.delta(*pushes.delta(1))
    assert e.value.code == "no_copy"


def test_a_node_without_room_for_a_copy_takes_full_pushes(tmp_path, pushes, monkeypatch, caplog):
    node = NodeCopy(keep=True, root=tmp_path / "node")
    monkeypatch.setattr(node_copy.shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
    pushed = pushes.full(0)
    assert node.full(*pushed) == pushed[0]
    assert any(record.levelno == logging.WARNING for record in caplog.records)
    with pytest.raises(DeltaRefused) as e:
        node.delta(*pushes.delta(1))
    assert e.value.code == "no_copy"


def test_two_nodes_that_see_the_pushed_file_have_a_copy_each(tmp_path, pushes):
    nodes, pushed, changes = (
        [NodeCopy(keep=True, root=tmp_path / name) for name in "ab"],
        pushes.full(0),
        pushes.delta(1),
    )
    for n in nodes:
        n.full(*pushed)
    assert [digest_file(n.delta(*changes)) for n in nodes] == [pushes.digest(1)] * 2


def test_the_room_is_given_back(node, pushes, root):
    node.full(*pushes.full(0))
    node.remove()
    assert [p.name for p in root.iterdir()] in ([], ["push"])
