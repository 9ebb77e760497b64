"""Control groups of slots: taken where the server has one for itself alone, left alone everywhere else. A directory
stands for the kernel's."""

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
    (proc / "mountinfo").write_text(
        f"30 22 0:26 / /proc rw - proc proc rw\n31 22 0:27 / {tmp_path / 'cgroup'}"
        " rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
    )
    (group / "cgroup.controllers").write_text("cpu memory pids\n")
    (group / "cgroup.procs").write_text(f"{ME}\n")
    (group / "cgroup.subtree_control").write_text("")
    return proc, group


def test_a_delegated_group_is_divided_into_one_for_the_server_and_one_per_slot(kernel):
    proc, group = kernel
    groups = ControlGroups.delegated(proc)
    assert (group / "server" / "cgroup.procs").read_text() == ME
    assert (group / "cgroup.subtree_control").read_text() == "+memory"
    slot = groups.new(100 << 20)
    slot.add([7])
    (directory,) = group.glob("tir-slot-*")
    written = {path.name: path.read_text() for path in directory.iterdir()}
    assert written == {"memory.max": str((100 << 20) + SLACK_BYTES), "memory.swap.max": "0", "cgroup.procs": "7"}
    (directory / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert slot.kills() == 2


def test_two_sandboxes_of_a_process_have_groups_of_their_own(tmp_path):
    """So has one whose predecessor's groups the kernel still keeps."""
    first, second = ControlGroups(tmp_path), ControlGroups(tmp_path)
    for groups in (first, second, second):
        groups.new(1)
    assert len([*tmp_path.iterdir()]) == 3


def test_a_removed_group_reports_no_kill(kernel):
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
def test_a_shared_group_or_one_without_memory_limits_is_unchanged(kernel, file, content):
    proc, group = kernel
    (group / file).write_text(content)
    before = sorted(group.iterdir())
    assert ControlGroups.delegated(proc) is None
    assert sorted(group.iterdir()) == before
    assert (group / "cgroup.subtree_control").read_text() == ""


def test_without_a_memory_hierarchy_there_are_no_control_groups(kernel):
    proc, _ = kernel
    (proc / "mountinfo").write_text(
        "30 22 0:26 / /nowhere rw - cgroup cgroup rw,cpu\n31 22 0:27 / /nowhere/m rw - cgroup cgroup rw,memory\n"
    )
    assert ControlGroups.delegated(proc) is None
    (proc / "cgroup").write_text("4:cpu:/\n")
    assert ControlGroups.delegated(proc) is None


@pytest.fixture
def version_1(tmp_path):
    """(what /proc/self says, the memory group that this process shares with others)."""
    proc, group = tmp_path / "proc", tmp_path / "memory" / "jobs" / "7"
    proc.mkdir()
    group.mkdir(parents=True)
    (proc / "cgroup").write_text("9:cpu,cpuacct:/\n4:memory:/jobs/7\n0::/\n")
    (proc / "mountinfo").write_text(
        f"31 22 0:27 / {tmp_path} rw - cgroup cgroup rw,cpu,cpuacct\n32 22 0:28 / {tmp_path / 'memory'} rw - cgroup"
        " cgroup rw,memory\n"
    )
    (group / "cgroup.procs").write_text(f"1\n{ME}\n")
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    return proc, group


def test_a_version_1_group_gets_a_child_per_slot_and_is_unchanged(version_1):
    proc, group = version_1
    before = {path.name: path.read_text() for path in group.iterdir()}
    slot = ControlGroups.delegated(proc).new(100 << 20)
    slot.add([7])
    directory = max(group.glob("tir-slot-*"))
    limit = str((100 << 20) + SLACK_BYTES)
    written = {path.name: path.read_text() for path in directory.iterdir()}
    assert written == {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit, "cgroup.procs": "7"}
    assert {path.name: path.read_text() for path in group.iterdir() if path.is_file()} == before
    (directory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert slot.kills() == 3


def test_a_call_with_less_memory_bounds_its_slot_and_the_next_one_has_all_of_it_again(version_1):
    proc, group = version_1
    slot = ControlGroups.delegated(proc).new(100 << 20)
    limit = max(group.glob("tir-slot-*")) / "memory.limit_in_bytes"
    for mib in (50, 100):
        slot.set_limit(mib << 20)
        assert limit.read_text() == str((mib << 20) + SLACK_BYTES)


def test_groups_of_a_killed_server_are_removed_and_those_of_a_live_one_kept(version_1):
    proc, group = version_1
    for pid in (os.getppid(), 1 << 30):
        (group / f"tir-slot-{pid}-1").mkdir()
    ControlGroups.delegated(proc)
    left = {path.name for path in group.glob("tir-slot-*")}
    assert f"tir-slot-{os.getppid()}-1" in left
    assert f"tir-slot-{1 << 30}-1" not in left


def test_in_a_container_the_group_is_below_where_the_hierarchy_is_mounted_from(kernel, tmp_path):
    proc, group = kernel
    mount: Path = tmp_path / "cgroup" / "user.slice"
    (proc / "mountinfo").write_text(f"31 22 0:27 /user.slice {mount} rw - cgroup2 cgroup2 rw\n")
    assert ControlGroups.delegated(proc) is not None
    assert (group / "server").is_dir()
