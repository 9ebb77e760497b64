"""User namespaces on this machine, which sandboxes need, and how to allow them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def in_container(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> bool:
    """Return True in a container of Docker, Podman or Kubernetes, by the files and variables that these leave."""
    marks = (".dockerenv", "run/.containerenv")
    return any((root / mark).exists() for mark in marks) or bool({"KUBERNETES_SERVICE_HOST", "container"} & {*environ})


USER_NAMESPACE_SWITCHES = {
    # Ubuntu 24.04 and later. The namespace can be created, but operations in it are denied.
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    # Debian's kernels.
    "kernel.unprivileged_userns_clone": ("0", "1"),
    # Red Hat's way to forbid them.
    "user.max_user_namespaces": ("0", "15000"),
}
"""sysctl -> (value that forbids user namespaces to users other than root, value that allows them)."""


def namespace_remedy(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> str:
    """Return what makes user namespaces work here, as an imperative sentence without its full stop.

    This machine's sysctls are read, so that the one that forbids them is named. In a container the runtime must allow
    them as well.
    """
    remedies = []
    for name, (forbids, allows) in USER_NAMESPACE_SWITCHES.items():
        try:
            value = (root / "proc/sys" / name.replace(".", "/")).read_text().strip()
        except OSError:
            continue
        if value == forbids:
            remedies.append(f"`sysctl -w {name}={allows}` on the host ({name} is {forbids})")
    if in_container(root, environ):
        remedies.append(
            "start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`"
            " (Kubernetes: securityContext seccompProfile and appArmorProfile Unconfined)"
        )
    if not remedies:
        remedies.append(
            "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` on Ubuntu 24.04 or later,"
            " `kernel.unprivileged_userns_clone=1` on Debian, `user.max_user_namespaces=15000` on Red Hat; in a"
            " container `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`"
        )
    return f"Allow user namespaces: {', and '.join(remedies)}"


PROC_REMEDY = (
    "Let the container mount /proc (docker: `--security-opt systempaths=unconfined`; podman: `--security-opt"
    " unmask=ALL`; Kubernetes: securityContext `procMount: Unmasked` in a pod with `hostUsers: false`)"
)
"""What lets bubblewrap mount a /proc of its own in a container whose runtime masks parts of /proc."""
