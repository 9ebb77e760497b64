"""Nodes: network, mount and host-name namespaces on this machine that stand for machines of a cluster: what runs in
them is real.

    node-a eth1 10.77.0.1 --- veth --- 10.77.0.2 eth1 node-b        each with a /tmp and a /dev/shm of its own

The file system is shared but for these; `unshared` names directories that a node has for itself. Processes share one
process table, so that a node is lost by killing whatever runs in its network namespace. Needs root and the right to
make namespaces: `missing` says what is not there."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

SSH = """#!/usr/bin/env bash
# Stands for ssh: the command runs in the node's namespaces, with no variable of the caller.
while [[ $1 == -* ]]; do shift 2; done
host=$1; shift
exec env -i HOME="$HOME" PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin $(cat {pids}/"$host".env) \\
    nsenter --target "$(cat {pids}/"$host")" --mount --uts --net -- bash -c "$*"
"""
NO_ENV: Mapping[str, str] = {}
EVERY_NODE = {"RAY_worker_niceness": "0"}
"""Ray makes its processes nice, and what else runs on this machine would leave them nothing."""


def missing() -> str | None:
    """Why there can be no nodes here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "unshare", "nsenter"):
        if not shutil.which(tool):
            return f"there is no {tool} (apt-get install iproute2 util-linux)"
    tried = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "true"], capture_output=True, text=True, check=False
    )
    return f"namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else None


def other_clock(directory: Path, ahead_s: int) -> dict[str, str]:
    """A node's variables by which its Python processes have another wall clock: a time namespace has none of its own.
    Ray's daemons, which are none, keep this machine's."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(
        f"import time\n_time = time.time\ntime.time = lambda: _time() + {ahead_s}\n"
    )
    return {"PYTHONPATH": str(directory)}


@dataclass(frozen=True)
class Node:
    name: str
    address: str
    pid: int
    bin: Path
    env: Mapping[str, str]

    def words(self, command: str) -> list[str]:
        return [
            "nsenter",
            f"--target={self.pid}",
            "--mount",
            "--uts",
            "--net",
            "--",
            "bash",
            "-c",
            f"export PATH={shlex.quote(str(self.bin))}:$PATH; {command}",
        ]

    def run(self, command: str) -> str:
        return subprocess.run(self.words(command), capture_output=True, text=True, check=True).stdout

    def can(self, command: str) -> bool:
        return subprocess.run(self.words(command), capture_output=True, check=False).returncode == 0

    def start(self, command: str, log: Path, **env: str) -> subprocess.Popen[bytes]:
        """In a session of its own; what it prints goes to `log`."""
        with log.open("ab") as out:
            return subprocess.Popen(
                self.words(f"exec {command}"),
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=os.environ | env | self.env,
                start_new_session=True,
            )

    def processes(self) -> Iterator[tuple[str, psutil.Process]]:
        """Whatever runs on it, by name, but for what holds its namespaces."""
        own = os.readlink(f"/proc/{self.pid}/ns/net")
        for process in psutil.process_iter():
            try:
                if process.pid != self.pid and os.readlink(f"/proc/{process.pid}/ns/net") == own:
                    yield process.name(), process
            except (OSError, psutil.Error):
                continue

    def lose_power(self) -> None:
        while found := [process for _, process in self.processes()]:
            for process in found:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            psutil.wait_procs(found, timeout=5)

    def link(self, state: str) -> None:
        """`up` or `down`."""
        self.run(f"ip link set eth1 {state}")


@contextmanager
def two_nodes(
    directory: Path, keep: Sequence[Path], unshared: Sequence[Path] = (), env_b: Mapping[str, str] = NO_ENV
) -> Iterator[tuple[Node, Node]]:
    """`keep`: what both see, at the same path, though it may lie in /tmp; `unshared`: what node-b has of it, empty;
    `env_b`: variables of whatever runs on node-b."""
    bin_dir, pids = directory / "bin", directory / "pids"
    for made in (bin_dir, pids):
        made.mkdir()
    (bin_dir / "ssh").write_text(SSH.format(pids=pids))
    (bin_dir / "ssh").chmod(0o755)
    nodes = []
    try:
        for i, name in enumerate(("node-a", "node-b"), 1):
            own, env = (unshared, EVERY_NODE | env_b) if i == 2 else ((), EVERY_NODE)
            nodes.append(_node(name, f"10.77.0.{i}", bin_dir, [*keep, directory], own, env))
            (pids / name).write_text(str(nodes[-1].pid))
            (pids / f"{name}.env").write_text(" ".join(f"{key}={value}" for key, value in env.items()))
        a, b = nodes
        subprocess.run(
            [
                "ip", "link", "add", "eth1", "netns", str(a.pid), "type", "veth", "peer", "name", "eth1", "netns",
                str(b.pid),
            ],
            check=True,
        )  # fmt: skip
        for node in nodes:
            node.run(
                f"ip link set lo up && ip address add {node.address}/24 dev eth1 && ip link set eth1 up && ip route add"
                f" default via {node.address}"
            )
        yield a, b
    finally:
        for node in nodes:
            node.lose_power()
            os.kill(node.pid, signal.SIGKILL)


def _node(
    name: str, address: str, bin_dir: Path, keep: Sequence[Path], unshared: Sequence[Path], env: Mapping[str, str]
) -> Node:
    """Everything in /tmp but `keep` is its own."""
    in_tmp = [p for p in {p.resolve() for p in keep} if p.is_relative_to("/tmp")]
    aside = [f"mkdir -p /mnt/keep{i} && mount --bind {shlex.quote(str(p))} /mnt/keep{i}" for i, p in enumerate(in_tmp)]
    back = [
        f"mkdir -p {shlex.quote(str(p))} && mount --bind /mnt/keep{i} {shlex.quote(str(p))}"
        for i, p in enumerate(in_tmp)
    ]
    own = [f"mkdir -p {shlex.quote(str(p))} && mount -t tmpfs tmpfs {shlex.quote(str(p))}" for p in unshared]
    script = textwrap.dedent(f"""
        set -e
        hostname {name}
        mount -t tmpfs tmpfs /mnt
        {" && ".join(aside) or "true"}
        mount -t tmpfs tmpfs /tmp && mount -t tmpfs tmpfs /dev/shm
        {" && ".join(back) or "true"}
        {" && ".join(own) or "true"}
        printf '127.0.0.1 localhost\\n10.77.0.1 node-a\\n10.77.0.2 node-b\\n' > /tmp/hosts
        mount --bind /tmp/hosts /etc/hosts
        echo ready
        exec sleep infinity
    """)
    words = ["unshare", "--net", "--mount", "--uts", "--propagation", "private", "bash", "-c", script]
    holder = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    assert holder.stdout
    said = holder.stdout.readline()
    if said.strip() != "ready":
        raise RuntimeError(f"{name} could not be made: {said}{holder.stdout.read()}")
    return Node(name, address, holder.pid, bin_dir, env)
