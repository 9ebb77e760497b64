"""Control groups of slots: taken where the server has one for itself alone, left alone everywhere else. A directory stands for the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from env_servers.python_tir.isolation.control_group import SLACK_BYTES, ControlGroups

ME = str(os.getpid())


@pytest.fixture
def kernel(tmp_path):
    """(what /proc/self says, the group that this process is in)."""
    proc, group = tmp_path / "proc", tmp_path / "cgroup" / "user.slice" / "run.scope"
    proc.mkdir()
    group.mkdir(parents=True)
    (proc / "cgroup").write_text("4:memory:/old\n0::/user.slice/run.scope\n")
    (proc / "mountinfo").write_text(f"30 22 0:26 / /proc rw - proc proc rw\n31 22 0:27 / {tmp_path / 'cgroup'} rw,nosuid shared:9 - cgroup2 cgroup2 rw\n")
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    (group / "cgroup.procs").write_text(f"{ME}\n")
    (group / "cgroup.subtree_control").write_text("")
    return proc, group


def test_a_group_of_its_own_is_divided_into_a_leaf_for_the_server_and_one_for_each_slot(kernel):
    proc, group = kernel
    groups = ControlGroups.delegated(proc)
    assert (group / "server" / "cgroup.procs").read_text() == ME
    assert (group / "cgroup.subtree_control").read_text() == "+memory"
    slot = groups.new(100 << 20)
    slot.add([7])
    (directory,) = group.glob("slot-*")
    written = {path.name: path.read_text() for path in directory.iterdir()}
    assert written == {"memory.max": str((100 << 20) + SLACK_BYTES), "memory.swap.max": "0", "cgroup.procs": "7"}
    (directory / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert slot.kills() == 2


def test_a_group_that_is_gone_has_killed_nobody(kernel):
    groups = ControlGroups.delegated(kernel[0])
    assert groups.new(1).kills() == 0


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("cgroup.procs", f"{ME}\n1\n"),  # somebody else is in it
        ("cgroup.controllers", "cpu pids\n"),
    ],
    ids=["shared", "without memory"],
)
def test_a_group_that_is_shared_or_cannot_limit_memory_is_left_as_it_was(kernel, file, content):
    proc, group = kernel
    (group / file).write_text(content)
    before = sorted(group.iterdir())
    assert ControlGroups.delegated(proc) is None
    assert sorted(group.iterdir()) == before
    assert (group / "cgroup.subtree_control").read_text() == ""


def test_without_a_version_2_hierarchy_there_is_none(kernel):
    proc, _ = kernel
    (proc / "mountinfo").write_text("30 22 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
    assert ControlGroups.delegated(proc) is None
    (proc / "cgroup").write_text("4:memory:/\n")
    assert ControlGroups.delegated(proc) is None


def test_in_a_container_the_group_is_below_where_the_hierarchy_is_mounted_from(kernel, tmp_path):
    proc, group = kernel
    mount: Path = tmp_path / "cgroup" / "user.slice"
    (proc / "mountinfo").write_text(f"31 22 0:27 /user.slice {mount} rw - cgroup2 cgroup2 rw\n")
    assert ControlGroups.delegated(proc) is not None
    assert (group / "server").is_dir()
