"""What killed engines leave in a node's memory goes when the next engine starts there; what live ones use stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from openrlhf_tir.weights import node_rooms
from openrlhf_tir.weights.node_copy import NodeCopy
from openrlhf_tir.weights.node_rooms import HELD, PREFIX, Room, sweep

HOLDS = """
import sys
from pathlib import Path
from openrlhf_tir.weights.node_rooms import Room

room = Room(Path(sys.argv[1]))
room.hold(60.0)
(room.here / "copy.safetensors").write_bytes(b"weights")
print("holds", flush=True)
sys.stdin.read()
"""


def room_in(root: Path, name: str) -> Path:
    return root / f"{PREFIX}{os.geteuid()}_{name}"


@contextmanager
def engine(here: Path):
    """A process that holds a room."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(here)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "holds\n"
            yield process
        finally:
            process.kill()


def test_a_room_whose_engines_were_all_killed_goes_when_the_next_engine_starts(tmp_path):
    dead, live = room_in(tmp_path, "dead"), room_in(tmp_path, "live")
    with engine(live), engine(dead) as first, engine(dead) as second:
        first.send_signal(signal.SIGKILL)
        first.wait()
        NodeCopy(keep=True, root=tmp_path)
        assert (dead / "copy.safetensors").exists(), "one of its engines lives"
        second.send_signal(signal.SIGKILL)
        second.wait()
        NodeCopy(keep=True, root=tmp_path)
        assert not dead.exists() and (live / "copy.safetensors").exists()


def test_a_room_that_is_being_made_and_what_is_not_ours_are_left_alone(tmp_path):
    made, others, more = room_in(tmp_path, "made"), tmp_path / f"{PREFIX}0815_x", tmp_path / "tir_weights_x"
    for path in (made, others, more):
        path.mkdir()
    for path in (others, more):
        (path / HELD).touch()
    sweep(tmp_path)
    assert made.exists() and others.exists() and more.exists()


def test_an_engine_beside_the_one_that_gave_the_room_back_has_it_again(tmp_path):
    one, two = (Room(room_in(tmp_path, "a")) for _ in range(2))
    for room in (one, two):
        room.hold(60.0)
    shutil.rmtree(one.here)
    one.leave()
    two.hold(60.0)
    sweep(tmp_path)
    assert two.here.exists()
    two.leave()
    sweep(tmp_path)
    assert not two.here.exists()


def test_a_room_that_is_swept_between_its_file_and_its_lock_is_made_again(tmp_path, monkeypatch):
    """The other process opens the file after us and locks it before us."""
    room, flock, swept = Room(room_in(tmp_path, "a")), node_rooms.fcntl.flock, []

    def late(fd, how):
        if not swept:
            swept.append(True)
            sweep(tmp_path)
            assert not room.here.exists()
        flock(fd, how)

    monkeypatch.setattr(node_rooms.fcntl, "flock", late)
    room.hold(60.0)
    assert (room.here / HELD).exists()
    sweep(tmp_path)
    assert room.here.exists(), "it is held"


def test_a_room_that_another_process_never_ends_removing_is_said(tmp_path):
    room = Room(room_in(tmp_path, "a"))
    room.here.mkdir()
    with open(room.here / HELD, "w") as file:
        node_rooms.fcntl.flock(file, node_rooms.fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=str(room.here)):
            room.hold(0.1)
