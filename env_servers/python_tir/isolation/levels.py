"""Levels: the strongest sandbox that this machine allows and that has proved itself. What is weaker than bubblewrap is
said on stderr.

    bwrap+seccomp            warm workers; without them a fresh process per call
    bwrap+seccomp, no /proc  in a container that masks /proc
    landlock+seccomp         in a container without user namespaces, or without bubblewrap
    none                     only when asked for by name

`bwrap` alone is bubblewrap on a machine without libseccomp.
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
from .control_group import ControlGroups, groups_or_said
from .fence import FenceSandbox
from .seccomp import filter_program
from .selftest import ProcMasked, proved

NO_ISOLATION = """WARNING: --isolation none: model-written code runs with the rights of this server.
WARNING: it can read and change its files, use the network and leave processes behind."""
NO_SECCOMP = (
    "WARNING: libseccomp is missing (`apt-get install libseccomp2`):"
    " snippets keep system calls that namespaces do not stop."
)
NO_WARM = "WARNING: no warm workers, each call starts an interpreter of its own (10 to 300 ms slower): {reason}"
LANDLOCK = """WARNING: no namespaces, so snippets are confined by Landlock and seccomp alone \
(what that leaves open: env_servers/python_tir/isolation/fence.py).
WARNING: bubblewrap does not work: {reason}"""


def strongest(
    isolation: str,
    limits: Limits,
    *,
    warm: bool = True,
    workers: int = 2,
    echo_last: bool = False,
    imports: Sequence[str] = (),
    shown: Sequence[str] = (),
) -> Sandbox:
    """`isolation`: auto, bwrap, landlock or none. `imports`, `shown`: WarmSandbox's. SandboxError has a remedy."""
    if isolation == "none":
        print(NO_ISOLATION, file=sys.stderr)
        return BareSandbox(limits)
    groups = groups_or_said()
    if isolation != "landlock":
        try:
            return _bubblewrap(limits, groups, warm, workers, echo_last, imports, shown)
        except SandboxError as e:
            if isolation == "bwrap":
                raise
            reason = e
    else:
        reason = SandboxError("--isolation landlock")
    try:
        sandbox = asyncio.run(
            proved(FenceSandbox(limits, seccomp=filter_program(namespaces=False), groups=groups, shown=shown))
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
    shown: Sequence[str],
) -> Sandbox:
    seccomp = filter_program()
    reason = None
    if warm:
        try:
            warm_one = WarmSandbox(
                limits, slots=workers, seccomp=seccomp, echo_last=echo_last, groups=groups, imports=imports, shown=shown
            )
            return _said(asyncio.run(proved(warm_one)), seccomp)
        except SandboxError as e:
            reason = e
    try:
        sandbox = asyncio.run(proved(BwrapSandbox(limits, seccomp=seccomp, groups=groups, shown=shown)))
    except SandboxError as e:
        if not isinstance(e, ProcMasked):
            raise
        sandbox = asyncio.run(proved(BwrapSandbox(limits, seccomp=seccomp, proc=False, groups=groups, shown=shown)))
    # said only now: without any isolation the message of the fresh sandbox is the one that helps
    if reason is not None:
        print(NO_WARM.format(reason=reason), file=sys.stderr)
    return _said(sandbox, seccomp)


def _said(sandbox: Sandbox, seccomp: bytes | None) -> Sandbox:
    if seccomp is None:
        print(NO_SECCOMP, file=sys.stderr)
    return sandbox
