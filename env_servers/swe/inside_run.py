"""Run tests once that import the code into their own process, as SWE-bench does.

    files, the tests put over them -> one sandbox: pytest and its plugins are imported first, then the repository's
    directory is put on the path -> Outcome

The report comes from a process that ran patched code. Some of what such code can do is prevented here. An exit code, an
exit before the end, a printed report and a replaced report file decide nothing, because the report comes over a
descriptor with a token that only this run has. Controls, under names and in an order drawn for this run, must fail and
pass as expected. Code that makes tests pass remains, for `examine` to find.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib.metadata
import json
import random
import secrets
import socket
from collections.abc import Mapping, Sequence

from env_servers.python_tir.isolation.bwrap import site_packages
from env_servers.python_tir.sandbox import Snippet
from env_servers.python_tir.warm.sandbox import WarmSandbox

from .programs import bundle
from .suite import Outcome, Suite
from .tree import Tree, contents, executables_of, links_of

MAX_REPORT_BYTES = 8 << 20
"""Bytes of the longest report."""
WHOLE_FILES = "--continue-on-collection-errors"
"""pytest's option to run the tests of all files that can be collected."""
HOLDS = (
    "    value = [{n}]\n    assert value == [{n}]",
    "    assert len('{w}') == {size}",
    "    assert '{w}' in ['{w}']",
)
"""Bodies of controls that pass."""
FAILS = (
    "    value = [{n}]\n    assert value == [{n}, {n}]",
    "    raise RuntimeError('{w}')",
    "    assert len('{w}') == {n}",
)
"""Bodies of controls that fail."""


@dataclasses.dataclass(frozen=True, slots=True)
class Controls:
    """Tests whose outcome is known before they run.

    Attributes:
        name: Part of the name of their file, and of no other file's.
        source: Their source.
        expected: "passed" or "failed" for each of them.
    """

    name: str
    source: str
    expected: Mapping[str, str]

    @classmethod
    def drawn(cls) -> Controls:
        """Return new controls, whose names, order and contents belong to this run alone."""
        draw = random.SystemRandom()
        bodies = [(body, "passed") for body in HOLDS] + [(body, "failed") for body in FAILS]
        draw.shuffle(bodies)
        expected = {}
        parts = []
        for body, result in bodies:
            name = f"test_{secrets.token_hex(6)}"
            text = secrets.token_hex(4)
            expected[name] = result
            parts.append(f"def {name}():\n" + body.format(n=draw.randint(100, 999), w=text, size=len(text)) + "\n")
        return cls(secrets.token_hex(8), "\n\n".join(parts), expected)


RARE = {"xdist.looponfail"}
"""Plugins that are slow to import and of no use here."""
Plugins = Sequence[tuple[str, str]]
"""Name and "module" or "module:object" of plugins of pytest, as in their entry points."""


@functools.cache
def pristine_plugins() -> Plugins:
    """Return the plugins of pytest that are installed beside the server. No other is loaded."""
    plugins: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=site_packages()):
        plugins |= {entry.name: entry.value for entry in distribution.entry_points if entry.group == "pytest11"}
    return tuple(sorted((name, place) for name, place in plugins.items() if place not in RARE))


async def run_inside(
    sandbox: WarmSandbox, files: Tree, suite: Suite, seconds: float, *, whole: bool = False
) -> Outcome:
    """Run a suite's tests on a repository's files, once.

    Args:
        sandbox: Where they run, in one place of it.
        files: The repository. The suite's own files are put over them.
        suite: The tests: the functions of those that must pass, with all parameters, or all files.
        seconds: Wall clock.
        whole: Run all tests of these files that can be collected instead.

    Raises:
        SandboxError: The sandbox failed.
    """
    token = secrets.token_hex(16)
    controls = Controls.drawn()
    placed = {f"repo/{path}": content for path, content in {**contents(files), **suite.files}.items()}
    chosen = chosen_tests(suite)
    if whole:
        chosen = [WHOLE_FILES, *sorted({name.partition("::")[0] for name in chosen})]
    arguments = f"{token!r}, {chosen!r}, {(controls.name, controls.source)!r}, {list(pristine_plugins())!r}"
    modes = f"{executables_of(files)!r}, {links_of(files)!r}"
    code = (
        bundle("in_process", "apply")
        + f"programs['apply'].lay_out('repo', {modes})\nprograms['in_process'].main({arguments})\n"
    )
    server_end, sandbox_end = socket.socketpair()
    server_end.setblocking(False)
    limits = dataclasses.replace(sandbox.limits, code_timeout_s=seconds)
    reading = asyncio.create_task(_read_all(server_end), name="report of hidden tests")
    try:
        execution = await sandbox.converse(Snippet(code, files=placed), limits, sandbox_end)
        data = await reading  # ends, because nobody holds the other end any more
    finally:
        reading.cancel()
        server_end.close()
    if execution.killed is not None:
        return Outcome({}, execution.killed)
    return judge(data, token, controls)


def chosen_tests(suite: Suite) -> list[str]:
    """Return pytest's arguments that choose the tests.

    They are functions without their parameters, because these differ in a falsified copy, which must be run by the same
    arguments.
    """
    if not suite.must_pass:
        return sorted(path for path in suite.files if path.rpartition("/")[2].startswith("test_"))
    return list(dict.fromkeys(name.partition("[")[0] for name in suite.must_pass))


def judge(data: bytes, token: str, controls: Controls) -> Outcome:
    """Return the outcome of a report. It must have the token, and its controls must be as expected."""
    try:
        report = json.loads(data)
        if report["word"] != token or report["controls"] != controls.expected:
            return Outcome({}, "no_report")
        tests = {str(name): str(status) for name, status in report["tests"].items()}
        failures = {str(name): str(text) for name, text in report["failures"].items()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return Outcome({}, "no_report")
    return Outcome(tests, "ended", failures)


async def _read_all(sock: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    parts = []
    size = 0
    while part := await loop.sock_recv(sock, 1 << 16):
        size += len(part)
        if size <= MAX_REPORT_BYTES:
            parts.append(part)
    return b"".join(parts)


def functions_of(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the tests of each function, one for each set of parameters, in their order."""
    functions: dict[str, list[str]] = {}
    for name in names:
        functions.setdefault(name.partition("[")[0], []).append(name)
    return functions
