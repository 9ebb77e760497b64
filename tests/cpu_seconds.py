"""A pytest plugin that measures what a test costs in CPU seconds, its processes included.

    bash tests/run.sh cost tests/e2e        the 40 most expensive tests of a folder, with their sum

Wall time says little on a machine that others use too. What a test leaves running counts for the tests after it.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

SHOWN = 40


class CpuSeconds:
    """Adds up setup, call and teardown of each test; a shared fixture counts for the test that starts it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        before = used()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = used() - before

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        dearest = sorted(self.seconds.items(), key=lambda pair: -pair[1])
        terminalreporter.section(f"CPU seconds: {sum(self.seconds.values()):.0f} in {len(dearest)} tests")
        for name, seconds in dearest[:SHOWN]:
            terminalreporter.write_line(f"{seconds:8.2f}  {name}")


def used() -> float:
    """Return the CPU seconds of this process and of all that it has started, also what still runs or has left it."""
    if GROUP is None:
        return sum(sum(resource.getrusage(of)[:2]) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return int(GROUP.read_text()) / 1e9


def _own_group() -> Path | None:
    """Put this process into a group of its own that counts CPU time, and return the file with its nanoseconds.

    Without one, as without root, processes count only when they are waited for: Ray's never do.
    """
    group = Path(f"/sys/fs/cgroup/cpuacct/tests-{os.getpid()}")
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None
    return group / "cpuacct.usage"


GROUP = _own_group()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuSeconds(), "cpu seconds of tests")
