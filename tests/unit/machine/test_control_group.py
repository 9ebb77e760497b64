"""The limits of the control groups that a process is in, as containers, Slurm and systemd show them: a directory stands
for the kernel's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from env_servers.python_tir.__main__ import memory_mib
from openrlhf_tir.cluster import process_watch
from openrlhf_tir.machine import control_group
from openrlhf_tir.machine.cores import usable_cores

GIB = 1 << 30
NO_LIMIT_V1 = "9223372036854771712\n"


class Kernel:
    """A /proc/self and mounted control groups."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()

    def says(self, cgroup: str, *mounts: str) -> None:
        """Set what /proc/self/cgroup says, and mounts of "ROOT PLACE KIND OPTIONS"."""
        (self.proc / "cgroup").write_text(cgroup)
        lines = []
        for number, mount in enumerate(mounts):
            root, place, kind, options = mount.split()
            lines.append(f"{number} 1 0:{number} {root} {self.root / place} rw - {kind} {kind} {options}\n")
        (self.proc / "mountinfo").write_text("".join(lines))

    def group(self, place: str, **files: str) -> None:
        """Make a group with files; _ in a name stands for its first point."""
        directory = self.root / place
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name.replace("_", ".", 1)).write_text(text)


@pytest.fixture
def kernel(tmp_path):
    return Kernel(tmp_path)


def limits(kernel: Kernel) -> tuple[tuple[int, int] | None, float | None]:
    return control_group.memory(kernel.proc), control_group.cores(kernel.proc)


def test_a_container_of_version_2_has_its_own_groups_limits(kernel):
    kernel.says("0::/\n", "/ cg cgroup2 rw")
    kernel.group(
        "cg",
        memory_max=f"{8 * GIB}\n",
        memory_current=f"{3 * GIB}\n",
        memory_stat=f"anon 7\ninactive_file {GIB}\n",
        cpu_max="250000 100000\n",
    )
    assert limits(kernel) == ((2 * GIB, 8 * GIB), 2.5)


def test_a_container_of_version_1_has_the_limits_of_each_controllers_group(kernel):
    """Docker and Kubernetes mount the container's own group, whose name /proc/self/cgroup still tells."""
    kernel.says(
        "9:name=systemd:/docker/a\n4:memory:/docker/a\n2:cpu,cpuacct:/docker/a\n0::/\n",
        "/docker/a cg/memory cgroup rw,memory",
        "/docker/a cg/cpu cgroup rw,cpu,cpuacct",
        "/ cg/unified cgroup2 rw",
    )
    kernel.group(
        "cg/memory",
        memory_limit_in_bytes=f"{8 * GIB}\n",
        memory_usage_in_bytes=f"{3 * GIB}\n",
        memory_stat=f"inactive_file 7\ntotal_inactive_file {GIB}\n",
    )
    kernel.group("cg/cpu", cpu_cfs_quota_us="400000\n", cpu_cfs_period_us="100000\n")
    kernel.group("cg/unified")
    assert limits(kernel) == ((2 * GIB, 8 * GIB), 4.0)


def test_a_slurm_step_has_the_limit_of_its_job_above_it(kernel):
    step = "slurmstepd.scope/job_7/step_0"
    kernel.says(f"0::/{step}/task_0\n", "/ cg cgroup2 rw")
    kernel.group(f"cg/{step}/task_0", memory_max="max\n", memory_current="5\n", memory_stat="", cpu_max="max 100000\n")
    kernel.group(f"cg/{step}", memory_max=f"{64 * GIB}\n", memory_current="6\n", memory_stat="", cpu_max="max 100000\n")
    kernel.group("cg/slurmstepd.scope", cpu_max="800000 100000\n")
    kernel.group("cg")
    assert limits(kernel) == ((6, 64 * GIB), 8.0)


@pytest.mark.parametrize("cgroup", ["0::/../../job\n", "0::/other/place\n"], ids=["outside", "not mounted"])
def test_a_process_whose_group_is_not_shown_has_the_limits_of_what_is_mounted(kernel, cgroup):
    kernel.says(cgroup, "/kubepods/pod cg cgroup2 rw")
    kernel.group("cg", memory_max=f"{8 * GIB}\n", memory_current="3\n", memory_stat="", cpu_max="100000 100000\n")
    assert limits(kernel) == ((3, 8 * GIB), 1.0)


@pytest.mark.parametrize(("own", "other"), [("/", "/../.."), ("/pod12", "/pod1")], ids=["the host's", "a sibling's"])
def test_a_mount_of_other_groups_hides_no_limit(kernel, own, other):
    """A pod may also have the node's groups in /host."""
    kernel.says(f"0::{own}\n", f"{other} host cgroup2 rw", "/ cg cgroup2 rw")
    kernel.group("host", memory_max="5\n", memory_current="1\n", memory_stat="", cpu_max="max 100000\n")
    kernel.group(f"cg{own}", memory_max="7\n", memory_current="3\n", memory_stat="", cpu_max="100000 100000\n")
    assert limits(kernel) == ((3, 7), 1.0)


def test_groups_without_limits_and_a_system_without_groups_limit_nothing(kernel):
    assert limits(kernel) == (None, None)
    assert usable_cores(kernel.proc) == usable_cores(kernel.root / "none")


def test_groups_that_say_that_there_is_no_limit_limit_nothing(kernel):
    kernel.says(
        "4:memory:/a\n2:cpu:/a\n", "/ cg/memory cgroup rw,memory", "/ cg/cpu cgroup rw,cpu", "/ cg/2 cgroup2 rw"
    )
    kernel.group("cg/memory/a", memory_limit_in_bytes=NO_LIMIT_V1, memory_usage_in_bytes="3\n", memory_stat="")
    kernel.group("cg/cpu/a", cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    (_, limit), cores = limits(kernel)  # type: ignore[misc]
    assert limit > 2**60
    assert cores is None


@pytest.mark.parametrize(("quota", "cores"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)])
def test_the_quota_of_a_container_limits_its_cores(kernel, quota, cores):
    kernel.says("0::/\n", "/ cg cgroup2 rw")
    kernel.group("cg", cpu_max=quota)
    assert usable_cores(kernel.proc) == (cores or usable_cores(kernel.root / "none"))


def test_a_nodes_memory_is_the_containers_where_that_has_less(monkeypatch):
    monkeypatch.setattr(control_group, "memory", lambda: (5 << 20, 64 << 20))
    assert process_watch.node_memory() == (5 << 20, 64 << 20)
    assert memory_mib() == 64
    monkeypatch.setattr(control_group, "memory", lambda: (5 << 20, 1 << 62))
    assert process_watch.node_memory()[1] < 1 << 60
    assert memory_mib() < 1 << 40


def test_kills_by_the_kernel_are_counted_in_version_1_too(tmp_path, monkeypatch):
    monkeypatch.setattr(control_group, "groups", lambda controller: (tmp_path,))
    before = process_watch.kernel_kills()
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert process_watch.kernel_kills() == before + 3


def test_control_groups_are_read_with_the_standard_library_alone():
    """The watcher of a process starts without site-packages."""
    program = "import sys; sys.path.append(sys.argv[1]); from openrlhf_tir.cluster import process_watch"
    root = str(Path(process_watch.__file__).parents[2])
    subprocess.run([sys.executable, "-I", "-S", "-c", program, root], check=True)
