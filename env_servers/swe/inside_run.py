"""Inside: one run of tests that import the code into their own process, as SWE-bench runs them.

    files, the tests put over them -> one sandbox: pytest and its plugins are imported first, then the repository's
    directory comes onto the path -> Outcome

What a run says is the word of a process that ran patched code. Some of what such code can do ends here: an exit code,
an exit before the end, a printed report and a replaced report file decide nothing, since the report comes over a
descriptor with a word that only this run has; controls, under names and in an order drawn for this run, have to fail
and to pass as they must. What remains, code that makes tests pass, is for `examine` to find.
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

MAX_REPORT_BYTES = 8 << 20
WHOLE_FILES = "--continue-on-collection-errors"
HOLDS = (
    "    value = [{n}]\n    assert value == [{n}]",
    "    assert len('{w}') == {size}",
    "    assert '{w}' in ['{w}']",
)
FAILS = (
    "    value = [{n}]\n    assert value == [{n}, {n}]",
    "    raise RuntimeError('{w}')",
    "    assert len('{w}') == {n}",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Controls:
    """Tests whose outcome is known before they run."""

    name: str
    """In the name of their file, and of no other."""
    source: str
    expected: Mapping[str, str]

    @classmethod
    def drawn(cls) -> Controls:
        """Return new ones: names, order and contents are of this run alone."""
        draw = random.SystemRandom()
        bodies = [(body, "passed") for body in HOLDS] + [(body, "failed") for body in FAILS]
        draw.shuffle(bodies)
        expected = {}
        parts = []
        for body, how in bodies:
            name = f"test_{secrets.token_hex(6)}"
            word = secrets.token_hex(4)
            expected[name] = how
            parts.append(f"def {name}():\n" + body.format(n=draw.randint(100, 999), w=word, size=len(word)) + "\n")
        return cls(secrets.token_hex(8), "\n\n".join(parts), expected)


RARE = {"xdist.looponfail"}
"""Plugins of no use here that are slow to import."""
Plugins = Sequence[tuple[str, str]]
"""(name, module or module:object) of plugins of pytest, as their entry points have them."""


@functools.cache
def pristine_plugins() -> Plugins:
    """Return the plugins of pytest that are installed beside the server: no other is loaded."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=site_packages()):
        found |= {entry.name: entry.value for entry in distribution.entry_points if entry.group == "pytest11"}
    return tuple(sorted((name, place) for name, place in found.items() if place not in RARE))


async def run_inside(
    sandbox: WarmSandbox, files: Mapping[str, bytes], suite: Suite, seconds: float, *, whole: bool = False
) -> Outcome:
    """Run a suite's tests on a repository's files, once.

    Args:
        sandbox: Where they run; one place of it.
        files: The repository; the suite's own files are put over them.
        suite: What is run: the functions of those tests that must pass, with all parameters, or all files.
        seconds: Wall clock.
        whole: Run all tests of these files instead, those that can be collected.

    Raises:
        SandboxError: The sandbox failed.
    """
    word = secrets.token_hex(16)
    controls = Controls.drawn()
    placed = {f"repo/{path}": content for path, content in {**files, **suite.files}.items()}
    chosen = chosen_tests(suite)
    if whole:
        chosen = [WHOLE_FILES, *sorted({name.partition("::")[0] for name in chosen})]
    given = f"{word!r}, {chosen!r}, {(controls.name, controls.source)!r}, {list(pristine_plugins())!r}"
    code = bundle("in_process") + f"programs['in_process'].main({given})\n"
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    limits = dataclasses.replace(sandbox.limits, code_timeout_s=seconds)
    reading = asyncio.create_task(_read_all(ours), name="report of hidden tests")
    try:
        execution = await sandbox.converse(Snippet(code, files=placed), limits, theirs)
        data = await reading  # nobody holds the other end any more
    finally:
        reading.cancel()
        ours.close()
    if execution.killed is not None:
        return Outcome({}, execution.killed)
    return judge(data, word, controls)


def chosen_tests(suite: Suite) -> list[str]:
    """Return what pytest is told to run.

    Functions without their parameters: these differ in a falsified copy, which is to be told in the same words.
    """
    if not suite.must_pass:
        return sorted(path for path in suite.files if path.rpartition("/")[2].startswith("test_"))
    return list(dict.fromkeys(name.partition("[")[0] for name in suite.must_pass))


def judge(data: bytes, word: str, controls: Controls) -> Outcome:
    """Return the report, if it is one: once, with the word, and with the controls as they must be."""
    try:
        report = json.loads(data)
        if report["word"] != word or report["controls"] != controls.expected:
            return Outcome({}, "no_report")
        tests = {str(name): str(how) for name, how in report["tests"].items()}
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
    """Return function -> its tests, one for each set of parameters, in their order."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(name.partition("[")[0], []).append(name)
    return found
