"""Prove the isolation of a sandbox before it serves: run code that tries what must not work."""

from __future__ import annotations

import os
import socket
import tempfile
from typing import TypeVar

from openrlhf_tir.machine.namespaces import PROC_REMEDY, namespace_remedy

from ..sandbox import Sandbox, SandboxError

SandboxT = TypeVar("SandboxT", bound=Sandbox)
NO_NAMESPACES = ("namespace", "uid map", "RTM_NEWADDR")
"""Parts of bubblewrap's messages when user namespaces are forbidden: by the kernel, by Ubuntu's AppArmor, in a
container."""
NO_PROC = "mount proc"
"""Part of bubblewrap's message when the container masks parts of /proc, so that no other can be mounted."""
OR_NONE = "or use --isolation none on a machine that may be harmed."
PROBE_S = 120.0
"""Seconds that the probe may take. The limit of the model's code may be one second: a machine that is busy while the
server starts would miss it, whether or not the sandbox isolates."""
PROBE = """
import ctypes, os, socket
found = []
for path in ("/etc/shadow", "/etc/passwd", SECRET):
    try:
        open(path, "rb").read(1)
        found.append("host file " + path + " is readable")
    except OSError:
        pass
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=1)
    found.append("the host's network is reachable")
except OSError:
    pass
for path in ("/usr/tir-probe", os.path.dirname(SECRET) + "/tir-probe"):
    try:
        open(path, "x")
        if os.path.samefile(os.path.dirname(path), os.getcwd()):
            continue
        found.append(path + " is writable")
    except OSError:
        pass
try:
    if any(pid.isdigit() and int(pid) > 100 for pid in os.listdir("/proc")):
        found.append("processes of the host are visible")
except OSError:
    pass
libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
if libc.capget(header, sets) != 0 or any(sets):
    found.append("capabilities are left: " + str(list(sets)))
if libc.prctl(39, 0, 0, 0, 0) != 1:
    found.append("privileges can be gained")
if NAMESPACES and any(libc.prctl(23, capability, 0, 0, 0) == 1 for capability in range(41)):
    found.append("the bounding set holds capabilities")
print(found)
"""


class ProcMasked(SandboxError):
    """Raised when the container's runtime masks /proc: the sandbox cannot have its own, but works without."""


async def prove_isolation(sandbox: SandboxT) -> SandboxT:
    """Return the sandbox after it has passed the self-test. Close it and raise SandboxError if it does not pass."""
    try:
        await self_test(sandbox)
    except BaseException:
        await sandbox.close()
        raise
    return sandbox


async def self_test(sandbox: Sandbox) -> None:
    """Run the probe. Raises SandboxError if a snippet cannot run, or can do what it must not."""
    with (
        tempfile.NamedTemporaryFile(prefix="tir-secret-") as secret,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        secret.write(b"secret")
        secret.flush()
        os.chmod(secret.name, 0o644)
        values = os.path.realpath(secret.name), listener.getsockname()[1], sandbox.isolation.startswith("bwrap")
        # Warm workers run the two in different interpreters, so both are up when this returns.
        for first_line in ("", "# numpy"):
            await _probe(sandbox, f"{first_line}\nSECRET, PORT, NAMESPACES = {values}\n{PROBE}")


async def _probe(sandbox: Sandbox, code: str) -> None:
    """Run a probe, which prints a list of what it could do. Raises SandboxError if it fails or the list is not
    empty."""
    try:
        result = await sandbox.run(code, timeout_s=PROBE_S)
    except SandboxError as e:
        kind = ProcMasked if NO_PROC in str(e) else SandboxError
        raise kind(f"the sandbox cannot run a snippet ({e}). {_remedy(str(e))}, {OR_NONE}") from e
    if result.killed == "time_limit":
        raise SandboxError(
            f"the sandbox ran no snippet to its end within {PROBE_S:g} s: this machine is too busy."
            " Start the server again when it is less so"
        )
    if result.stdout != b"[]\n":
        output = (result.stdout or result.stderr)[-500:].decode("utf-8", "replace").strip()
        raise SandboxError(f"the sandbox does not isolate: {output}. Reinstall bubblewrap, {OR_NONE}")


def _remedy(error: str) -> str:
    """Return the remedy for a fault that bubblewrap reports, as an imperative sentence without its full stop."""
    # /proc first: its message ends with "Operation not permitted" too, as that of a missing namespace does
    if NO_PROC in error:
        return PROC_REMEDY
    if any(part in error for part in (*NO_NAMESPACES, "Operation not permitted")):
        return namespace_remedy()
    return "Run `bwrap --unshare-user --ro-bind / / true` to see what bubblewrap lacks"
