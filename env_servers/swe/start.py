"""Start the sandbox, with pytest in its warm interpreter, and build what the sessions of a server share."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from pathlib import Path

from env_servers.python_tir.isolation.control_group import delegated_groups
from env_servers.python_tir.isolation.seccomp import filter_program
from env_servers.python_tir.isolation.selftest import prove_isolation
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import SandboxError
from env_servers.python_tir.warm.notebooks import Notebooks
from env_servers.python_tir.warm.sandbox import WarmSandbox

from .answers import answer_directories, visible_roots
from .backend import Local
from .busy import TIME_LIMIT
from .env import LIMITS, Shared
from .grade import Grader
from .inside_run import pristine_plugins, run_inside
from .sources import Sources
from .stages import Stages
from .suite import Suite

PROGRAMS = ("/usr/bin/git", "/usr/bin/patch", "/bin/bash")
"""Programs that `inside/` runs. An environment of conda may have its own, which a session does not see."""
TEST_S = 60.0
"""Wall clock of the empty test by which a server finds out whether tests can pass."""
START_WORKERS = 16
"""Sessions that start at once. On this machine each takes some milliseconds of a core; in containers elsewhere seconds
to minutes, most of them waiting."""


def new_sandbox(limits: Limits = LIMITS, *, evaluations: int, mirror: Path | None = None) -> WarmSandbox:
    """Return a sandbox in which no session runs yet.

    Args:
        limits: Limits of one session and of one run of tests.
        evaluations: Patches that are judged at once; each has two places.
        mirror: Directory of the repositories of rows. Their histories hold the fixes, so no session sees it.

    Raises:
        SandboxError: A program or package is missing.
    """
    for program in PROGRAMS:
        if not os.access(program, os.X_OK):
            name = os.path.basename(program)
            raise SandboxError(
                f"there is no {program}, and a session sees no other {name}. Run `apt-get install {name}`."
            )
    if importlib.util.find_spec("pytest") is None:
        raise SandboxError(
            "pytest is not installed in this environment, and hidden tests are run with it. Run `pip install pytest`."
        )
    groups = delegated_groups()
    imports = _pytest_modules()
    return WarmSandbox(
        limits,
        slots=2 * evaluations,
        seccomp=filter_program(),
        groups=groups,
        light_imports=imports,
        light_sessions=True,
        hidden=[*answer_directories(visible_roots()), *([str(mirror)] if mirror else [])],
    )


def proved_sandbox(limits: Limits, *, evaluations: int, mirror: Path | None = None) -> WarmSandbox:
    """Return a sandbox that has passed the self-test, and in which a hidden test can pass.

    Raises:
        SandboxError: It cannot isolate (a model's bash gets no weaker level), or runs no tests.
    """

    async def proved() -> WarmSandbox:
        sandbox = await prove_isolation(new_sandbox(limits, evaluations=evaluations, mirror=mirror))
        try:
            await prove_tests(sandbox)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    return asyncio.run(proved())


async def prove_tests(sandbox: WarmSandbox) -> None:
    """Run a test that any code passes. Raises SandboxError if it does not pass: then no patch could get a reward."""
    suite = Suite({"test_start.py": b"def test_start():\n    pass\n"})
    outcome = await run_inside(sandbox, {}, suite, TEST_S)
    if outcome.ended == TIME_LIMIT:
        raise SandboxError(
            f"an empty test took more than {TEST_S:g} s: this machine is too busy. Start the server again when it is"
            " less so"
        )
    if not outcome.passes(suite):
        raise SandboxError(
            f"an empty test did not pass ({outcome.ended}): every patch would get 0. A plugin of pytest may be broken"
            " here: see what `python -m pytest` says of an empty test, and mend or remove the plugin"
        )


def shared(
    sandbox: WarmSandbox,
    *,
    evaluations: int,
    command_s: float,
    test_s: float,
    max_turns: int,
    mirror: Path | None,
    sessions: int,
    memory: int,
    stages: Stages | None = None,
    start_s: float = 60.0,
) -> Shared:
    """Return what the sessions of a server share.

    Args:
        sandbox: Runs sessions and tests.
        evaluations: Patches that are judged at once.
        command_s: As `Shared.command_s`.
        test_s: Wall clock of one run of hidden tests.
        max_turns: As `Shared.max_turns`.
        mirror: Directory of the repositories of rows.
        sessions: Sessions at once.
        memory: Bytes of all sessions together.
        stages: The stages; None: new ones.
        start_s: As `Shared.start_s`.
    """
    grader = Grader(sandbox, places=2 * evaluations, test_s=test_s)
    backend = Local(Notebooks(sandbox, cap=sessions, memory_bytes=memory), Sources(mirror, grader.applied), grader)
    return Shared(
        backend,
        stages or Stages(start=START_WORKERS, evaluate=evaluations, max_waiting_starts=sessions),
        command_s,
        max_turns,
        start_s,
    )


def _pytest_modules() -> list[str]:
    """Return the modules that pytest.main would import at its first call."""
    from _pytest.config import default_plugins

    rare = {"pytester", "pytester_assertions", "legacypath"}
    return [
        "pytest",
        *(f"_pytest.{name}" for name in default_plugins if name not in rare),
        "_pytest.assertion.rewrite",
        "_pytest._code.code",
        *(place.partition(":")[0] for _, place in pristine_plugins()),
    ]
