"""Judge a patch in a fresh container. As in SWE-bench, the tests import the code into their own process.

    git apply, else patch --fuzz=5 -> whatever configures pytest or Python, the tests' files, and links are restored
    (inside/guard.py)
    -> the row's test patch -> pytest on the files of FAIL_TO_PASS and PASS_TO_PASS (inside/in_process.py) -> its report

No line of the patch runs before the tests do: until then a failure is the image's, the row's or the runtime's, and
after that it may be the patch's (`LostInTests`).

Code that rewrites the test runner in its own process passes any test. So a patch that has passed is run again in
another fresh container, with falsified copies of the tests, all of which must fail (`falsified`; see
`env_servers.swe.examine`). The first copy finds a container in which no line of the patch has run, so code cannot tell
which of the two containers has the true tests.
"""

from __future__ import annotations

import json
import random
import re
import secrets
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from env_servers.swe.examine import SLOW_COPIES, contradiction, drawn
from env_servers.swe.falsify import FalseCopy, Falsifier
from env_servers.swe.grade import Report, report_of
from env_servers.swe.inside_run import RARE, WHOLE_FILES, Controls, Plugins, functions_of, judge
from env_servers.swe.programs import source
from env_servers.swe.session import printable
from env_servers.swe.suite import CONFIGURATION, Outcome, Suite, support_directories
from env_servers.swe.task import SweTask, patch_of

from .container import Container
from .faults import ImageUnfit, LostInTests, RowBroken, RuntimeBroken, RuntimeFault
from .image_layout import ImageLayout
from .jobs import TIME_LIMIT, Done, run_job, run_setup

JUDGE = """here=$PWD
cd {root} || exit 91
git apply --check --whitespace=nowarn "$here/test.patch" || exit 93
{keep}
{plugins}
[ ! -s "$here/model.patch" ] || git apply --whitespace=nowarn "$here/model.patch" || {{
    mv .git "$here/git"
    patch --batch --fuzz=5 -p1 --no-backup-if-mismatch --reject-file=- -i "$here/model.patch"
    applied=$?
    rm -rf .git
    mv "$here/git" .git
    [ "$applied" = 0 ] || exit 92
}}
{restore}
git apply --whitespace=nowarn "$here/test.patch" || exit 94
"""
GUARD = """(cd "$here" && {{ {setup}; }} || exit 90; cd {root} && exec python -I -S "$here/guard.py" {verb}) || exit"""
PLUGINS = """(cd "$here" && {{ {setup}; }} || exit 90
cd {root} && exec python -I "$here/plugins.py" > "$here/out/plugins") || exit"""
READ = """here=$PWD
cd {root} || exit 91
"""
READ_ONE = """[ ! -f {path} ] || cp {path} "$here/out/true.{number}"
git show HEAD:{path} > "$here/out/seen.{number}" 2> /dev/null || rm -f "$here/out/seen.{number}"
"""
TESTS = """here=$PWD
{{ {setup}; }} || {{ mv "$here/not_begun" "$here/out/"; exit 90; }}
rm "$here/not_begun"
{placed}
cd {root} && exec python "$here/tests.py" > /dev/null 2>&1
"""
HEADER = re.compile(r"diff --git a/(.+) b/(.+)$")
DOES_NOT_APPLY = 92
TEST_PATCH_BROKEN = 93
TEST_PATCH_HINDERED = 94


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A container whose repository has the patch and the row's tests.

    Attributes:
        left_out: Paths of the patch that were restored.
        plugins: The plugins of pytest that the image had before the patch.
    """

    left_out: list[str]
    plugins: Plugins


async def judged(container: Container, task: SweTask, layout: ImageLayout, patch: bytes) -> tuple[Report, Outcome]:
    """Run the row's tests with a patch; an empty patch changes nothing.

    Args:
        container: A fresh, prepared one.
        task: The row.
        layout: What its image has.
        patch: The model's patch.

    Returns:
        The verdict, and the outcome of the tests, which `falsified` compares with that of falsified ones.

    Raises:
        RuntimeFault: The container or the runtime failed, or the row does not fit the image.
    """
    laid = await _laid_out(container, task, layout, patch)
    if isinstance(laid, Report):
        return laid, Outcome({}, "no_report")
    outcome = await _tested(container, layout, _files(task), laid.plugins)
    return report_of(_by_first_word(outcome), Suite({}, must_pass=_named(task)), laid.left_out), outcome


async def falsified(
    container: Container, task: SweTask, layout: ImageLayout, patch: bytes, true: Outcome
) -> str | None:
    """Run falsified copies of the row's tests with a patch.

    Args:
        container: A fresh, prepared one, not the one in which the true tests ran.
        task: The row.
        layout: What its image has.
        patch: The model's patch.
        true: Outcome of the true tests.

    Returns:
        Why this outcome cannot be believed, as `Report.reason`; None if all falsified tests failed.

    Raises:
        RuntimeFault: As `judged`. LostInTests also if the run of a copy was stopped or left no report, unlike the run
            of the true tests: the patch or the node may be at fault.
    """
    async for copy, outcome in _copies_tested(container, task, layout, patch):
        result = outcome if copy.tests else _by_first_word(outcome)
        if (reason := contradiction(true, result, copy, _named(task))) is not None:
            return reason
    return None


async def copies_end(container: Container, task: SweTask, layout: ImageLayout) -> None:
    """Run falsified copies of the row's tests without a patch, whatever their outcome.

    Raises:
        RuntimeFault: As `falsified`. LostInTests if a copy does not end here either: the patch is not at fault.
    """
    async for _ in _copies_tested(container, task, layout, b""):
        pass


async def _copies_tested(
    container: Container, task: SweTask, layout: ImageLayout, patch: bytes
) -> AsyncIterator[tuple[FalseCopy, Outcome]]:
    """Yield copies of the row's tests and their outcomes. Raises RuntimeFault, LostInTests for a copy that does not
    end."""
    laid = await _laid_out(container, task, layout, patch)
    if isinstance(laid, Report):
        raise RuntimeBroken(f"a patch that could be laid out could not be in a second container: {laid.detail}")
    files, visible = await _read_tests(container, layout, _files(task))
    falsifier = Falsifier(files, visible, random.SystemRandom())
    for copy in drawn(falsifier, SLOW_COPIES, functions_of(task.fail_to_pass)):
        outcome = await _tested(container, layout, _files(task), laid.plugins, copy.files)
        if outcome.ended != "ended":
            raise LostInTests(
                f"a copy of tests that had passed did not end in another container: {outcome.ended}", outcome.ended
            )
        yield copy, outcome


async def untouched(container: Container, task: SweTask, layout: ImageLayout) -> Outcome:
    """Return the outcome of the whole files of the tests that must pass, in a fresh, prepared container without a
    patch.

    Raises:
        RuntimeFault: As `judged`.
    """
    laid = await _laid_out(container, task, layout, b"")
    if isinstance(laid, Report):
        raise ImageUnfit(f"the tests could not be laid out in the container: {laid.detail}")
    return _by_first_word(await _tested(container, layout, [WHOLE_FILES, *_files(task)], laid.plugins))


def _named(task: SweTask) -> list[str]:
    return list(dict.fromkeys([*task.fail_to_pass, *task.pass_to_pass]))


def _files(task: SweTask) -> list[str]:
    return sorted({name.partition("::")[0] for name in _named(task)})


async def _laid_out(container: Container, task: SweTask, layout: ImageLayout, patch: bytes) -> LaidOut | Report:
    """Apply the patch and the row's tests. Return a Report if the patch cannot be tested."""
    test_patch = patch_of(task.test_patch)
    paths = sorted({*_files(task), *paths_of(test_patch)})
    support = "|".join(f"^{re.escape(directory)}/" for directory in support_directories(paths))
    protected = {"paths": paths, "pattern": f"{CONFIGURATION.pattern}|{support}"}
    root = shlex.quote(layout.root)
    files = {
        "model.patch": patch,
        "test.patch": test_patch,
        "protected.json": json.dumps(protected).encode(),
        "guard.py": f"{source('guard')}\nmain(os.path.dirname(os.path.abspath(__file__)))\n".encode(),
        "plugins.py": f"{source('plugins')}\nmain()\n".encode(),
    }
    guards = {verb: GUARD.format(root=root, setup=layout.setup, verb=verb) for verb in ("keep", "restore")}
    plugins = PLUGINS.format(root=root, setup=layout.setup)
    script = JUDGE.format(root=root, plugins=plugins, **guards)
    done = await run_setup(container, script, files, layout.work_s)
    if done.status == DOES_NOT_APPLY:
        return Report(False, "patch_does_not_apply", detail=done.log)
    if done.status == TEST_PATCH_BROKEN:
        raise RowBroken(
            f"test_patch does not apply to {task.instance_id or task.repo} at {task.base_commit}: {done.log}"
        )
    if done.status == TEST_PATCH_HINDERED:
        return Report(False, "tests_failed", detail=f"with the patch, the row's test_patch does not apply: {done.log}")
    if done.status != 0:
        raise ImageUnfit(f"the patch could not be laid out in the container (exit {done.status}): {done.log}")
    return LaidOut(_listed(done), _plugins(done))


async def _read_tests(
    container: Container, layout: ImageLayout, paths: Sequence[str]
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the test files as they are laid out, and as the model could see them. Raises RuntimeFault."""
    parts = [READ_ONE.format(path=shlex.quote(path), number=i) for i, path in enumerate(paths)]
    script = READ.format(root=shlex.quote(layout.root)) + "".join(parts)
    done = await run_setup(container, script, {}, layout.work_s)
    if done.status != 0:  # without its files no test would be falsified
        raise RuntimeBroken(f"the tests could not be read in the container (exit {done.status}): {done.log}")
    true = {path: done.out[f"true.{i}"] for i, path in enumerate(paths) if f"true.{i}" in done.out}
    visible = {path: done.out[f"seen.{i}"] for i, path in enumerate(paths) if f"seen.{i}" in done.out}
    return true, visible


async def _tested(
    container: Container,
    layout: ImageLayout,
    chosen: Sequence[str],
    plugins: Plugins,
    files: Mapping[str, bytes] | None = None,
) -> Outcome:
    """Run pytest on the chosen tests in a container that is laid out. `files` are put over the repository before."""
    prologue = "import os, sys\nplace = os.path.dirname(os.path.abspath(__file__))\nsys.path.pop(0)\n"
    token = secrets.token_hex(16)
    controls = Controls.drawn()
    report = "os.open(place + '/out/report', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)"
    tests = (
        f"{prologue}{source('in_process')}\nos.unlink(__file__)\nmain({token!r}, {list(chosen)!r},"
        f" {(controls.name, controls.source)!r}, {list(plugins)!r}, {layout.root!r}, {report})\n"
    )
    root = shlex.quote(layout.root)
    placed = [f'cp "$here/file.{i}" {root}/{shlex.quote(path)} || exit 91' for i, path in enumerate(files or ())]
    numbered_files = {f"file.{i}": content for i, content in enumerate((files or {}).values())}
    # Gone before the patched code runs, which therefore cannot make its own failure look like one of the set-up.
    not_begun = secrets.token_bytes(16)
    try:
        done = await run_job(
            container,
            TESTS.format(root=root, setup=layout.setup, placed="\n".join(placed)),
            {"tests.py": tests.encode(), "not_begun": not_begun, **numbered_files},
            layout.test_s,
        )
    except RuntimeFault as e:
        if not e.began:
            raise
        raise LostInTests(f"the container was lost while tests ran in it: {type(e).__name__}: {e}") from e
    if files is None and done.out.get("not_begun") == not_begun:  # beside copies, patched code may have broken it
        raise RuntimeBroken(f"the set-up failed in the container before the tests, after it had worked: {done.log}")
    # Any other exit status may be the patched code's own.
    if done.status in TIME_LIMIT:
        return Outcome({}, "time_limit")
    return judge(done.out.get("report", b""), token, controls)


def paths_of(patch: bytes) -> set[str]:
    """Return the files that a patch names on either side, including files that are only renamed or are binary."""
    lines = [line.decode("utf-8", "replace") for line in patch.splitlines()]
    headers = [match.groups() for line in lines if (match := HEADER.match(line))]
    named = {line[6:].partition("\t")[0] for line in lines if line.startswith(("--- a/", "+++ b/"))}
    return named.union(*headers)


def _by_first_word(outcome: Outcome) -> Outcome:
    """Add the names that SWE-bench's lists have: those of tests up to their first blank.

    Such a name has passed if all tests that begin so have passed.
    """
    named: dict[str, str] = {}
    for name, status in outcome.tests.items():
        first = name.split(" ")[0]
        named[first] = status if named.get(first, "passed") == "passed" else named[first]
    return Outcome({**named, **outcome.tests}, outcome.ended, outcome.failures)


def _plugins(done: Done) -> Plugins:
    """Return the plugins of pytest that the image has. Raises RuntimeBroken."""
    try:
        plugins = [(str(name), str(module)) for name, module in json.loads(done.out["plugins"])]
    except (KeyError, ValueError, TypeError, RecursionError) as e:
        raise RuntimeBroken(f"the container did not report which plugins pytest has: {done.log}") from e
    return [(name, module) for name, module in plugins if module not in RARE]


def _listed(done: Done) -> list[str]:
    """Return the paths that were restored. Raises RuntimeBroken."""
    try:
        return [printable(path) for path in json.loads(done.out["left_out"])]
    except (KeyError, ValueError, TypeError, RecursionError) as e:
        raise RuntimeBroken(f"the container did not report which paths were restored: {done.log}") from e
