"""Choose the strongest sandbox that this machine allows and that has proved itself.

    bwrap+seccomp            warm workers; without them a fresh process per call
    bwrap+seccomp, no /proc  in a container that masks /proc
    landlock+seccomp         in a container without user namespaces, or without bubblewrap
    none                     only if it is asked for by name

`bwrap` without seccomp is bubblewrap on a machine without libseccomp. A level below bubblewrap is reported on stderr.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from ..limits import Limits
from ..sandbox import Sandbox, SandboxError
from ..warm.sandbox import WarmSandbox
from .bare import BareSandbox
from .bwrap import BwrapSandbox
from .control_group import ControlGroups, delegated_groups
from .fence import FenceSandbox
from .seccomp import filter_program
from .selftest import ProcMasked, prove_isolation

NO_ISOLATION = """WARNING: --isolation none: model-written code runs with the rights of this server.
WARNING: it can read and change its files, use the network and leave processes behind."""
NO_SECCOMP = (
    "WARNING: libseccomp is missing (`apt-get install libseccomp2`):"
    " snippets keep system calls that namespaces do not stop."
)
NO_WARM = "WARNING: no warm workers, each call starts its own interpreter (10 to 300 ms slower): {reason}"
LANDLOCK = """WARNING: no namespaces, so snippets are confined by Landlock and seccomp alone \
(what that leaves open: env_servers/python_tir/isolation/fence.py).
WARNING: bubblewrap does not work: {reason}"""


def strongest(
    isolation: str,
    limits: Limits,
    *,
    warm: bool,
    workers: int,
    echo_last: bool = False,
    imports: Sequence[str] = (),
    extra_directories: Sequence[str] = (),
) -> Sandbox:
    """Return the strongest sandbox that works here.

    Args:
        isolation: "auto", "bwrap", "landlock" or "none".
        limits: Default limits of a call.
        warm: Whether calls may fork a warm interpreter.
        workers: Calls at once.
        echo_last: As in WarmSandbox.
        imports: As in WarmSandbox.
        extra_directories: As in WarmSandbox.

    Raises:
        SandboxError: No allowed level works. The message has a remedy.
    """
    if isolation == "none":
        print(NO_ISOLATION, file=sys.stderr)
        return BareSandbox(limits)
    groups = delegated_groups()
    if isolation != "landlock":
        try:
            return _bubblewrap(limits, groups, warm, workers, echo_last, imports, extra_directories)
        except SandboxError as e:
            if isolation == "bwrap":
                raise
            reason = e
    else:
        reason = SandboxError("--isolation landlock")
    try:
        sandbox = asyncio.run(
            prove_isolation(
                FenceSandbox(
                    limits, seccomp=filter_program(namespaces=False), groups=groups, extra_directories=extra_directories
                )
            )
        )
    except SandboxError as e:
        raise SandboxError(f"{reason} (nor does Landlock work: {e})") from e
    print(LANDLOCK.format(reason=reason), file=sys.stderr)
    return sandbox


def _bubblewrap(
    limits: Limits,
    groups: ControlGroups | None,
    warm: bool,
    workers: int,
    echo_last: bool,
    imports: Sequence[str],
    extra_directories: Sequence[str],
) -> Sandbox:
    """Return a sandbox of bubblewrap, warm if possible. Raises SandboxError."""
    seccomp = filter_program()
    reason = None
    if warm:
        try:
            warm_sandbox = WarmSandbox(
                limits,
                slots=workers,
                seccomp=seccomp,
                echo_last=echo_last,
                groups=groups,
                imports=imports,
                extra_directories=extra_directories,
            )
            return _warn_without_seccomp(asyncio.run(prove_isolation(warm_sandbox)), seccomp)
        except SandboxError as e:
            reason = e
    try:
        sandbox = asyncio.run(
            prove_isolation(BwrapSandbox(limits, seccomp=seccomp, groups=groups, extra_directories=extra_directories))
        )
    except SandboxError as e:
        if not isinstance(e, ProcMasked):
            raise
        sandbox = asyncio.run(
            prove_isolation(
                BwrapSandbox(limits, seccomp=seccomp, proc=False, groups=groups, extra_directories=extra_directories)
            )
        )
    # Only now: if the fresh sandbox fails too, its message is the one that helps.
    if reason is not None:
        print(NO_WARM.format(reason=reason), file=sys.stderr)
    return _warn_without_seccomp(sandbox, seccomp)


def _warn_without_seccomp(sandbox: Sandbox, seccomp: bytes | None) -> Sandbox:
    """Return the sandbox, after a warning if there is no seccomp filter."""
    if seccomp is None:
        print(NO_SECCOMP, file=sys.stderr)
    return sandbox
