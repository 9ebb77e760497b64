"""Judging: a patch, in a fresh container -> Report. As SWE-bench does it: the tests import the code into their own
process.

    git apply, else patch --fuzz=5 -> what configures pytest or Python, the tests' files, and links are put back
    (inside/guard.py)
    -> the row's test patch -> pytest on the files of FAIL_TO_PASS and PASS_TO_PASS (inside/in_process.py) -> its report

No line of the patch runs before the tests do: until then what fails is the image's, the row's or the runtime's, and
from then on it may be the patch's (`LostInTests`). Not covered, as in SWE-bench: code that rewrites the test runner in
its own process."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence

from env_servers.swe.grade import Report, report_of
from env_servers.swe.inside_run import WHOLE_FILES, judge
from env_servers.swe.programs import source
from env_servers.swe.session import shown
from env_servers.swe.suite import CONFIGURATION, Outcome, Suite
from env_servers.swe.task import SweTask

from .container import Container
from .faults import ImageUnfit, LostInTests, RowBroken, RuntimeBroken, RuntimeFault
from .jobs import TIME_LIMIT, Done, run_job
from .place import Place

JUDGE = """here=$PWD
cd {root} || exit 91
git apply --check --whitespace=nowarn "$here/test.patch" || exit 93
{keep}
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
TESTS = """here=$PWD
{{ {setup}; }} || exit 90
cd {root} && exec python "$here/tests.py" > /dev/null 2>&1
"""
HEADER = re.compile(r"diff --git a/(.+) b/(.+)$")
DOES_NOT_APPLY, TEST_PATCH_BROKEN, TEST_PATCH_HINDERED = 92, 93, 94


async def judged(container: Container, task: SweTask, place: Place, patch: bytes) -> Report:
    """In a fresh, prepared container; an empty patch changes nothing. Raises RuntimeFault."""
    left_out = await _laid_out(container, task, place, patch)
    if isinstance(left_out, Report):
        return left_out
    suite = Suite("inside", {}, must_pass=_named(task))
    return report_of(await _tested(container, place, _files(task)), suite, left_out)


async def untouched(container: Container, task: SweTask, place: Place) -> Outcome:
    """What the whole files of the tests that must pass say in a fresh, prepared container, without a patch. Raises
    RuntimeFault."""
    laid = await _laid_out(container, task, place, b"")
    if isinstance(laid, Report):
        raise ImageUnfit(f"the tests could not be laid out in the container: {laid.detail}")
    return await _tested(container, place, [WHOLE_FILES, *_files(task)])


def _named(task: SweTask) -> list[str]:
    return list(dict.fromkeys([*task.fail_to_pass, *task.pass_to_pass]))


def _files(task: SweTask) -> list[str]:
    return sorted({name.partition("::")[0] for name in _named(task)})


async def _laid_out(container: Container, task: SweTask, place: Place, patch: bytes) -> list[str] | Report:
    """Paths of the patch that were put back; a Report where it cannot be tested."""
    test_patch = (task.test_patch or "").encode()
    protected = {"paths": sorted({*_files(task), *paths_of(test_patch)}), "pattern": CONFIGURATION.pattern}
    root = shlex.quote(place.root)
    given = {
        "model.patch": patch,
        "test.patch": test_patch,
        "protected.json": json.dumps(protected).encode(),
        "guard.py": f"{source('guard')}\nmain(os.path.dirname(os.path.abspath(__file__)))\n".encode(),
    }
    guards = {verb: GUARD.format(root=root, setup=place.setup, verb=verb) for verb in ("keep", "restore")}
    done = await run_job(container, JUDGE.format(root=root, **guards), given, place.work_s)
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
    return _listed(done)


async def _tested(container: Container, place: Place, chosen: Sequence[str]) -> Outcome:
    """pytest on what is `chosen`, in a container that is laid out."""
    here = "import os, sys\nplace = os.path.dirname(os.path.abspath(__file__))\nsys.path.pop(0)\n"
    word = secrets.token_hex(16)
    report = "os.open(place + '/out/report', os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)"
    tests = (
        f"{here}{source('in_process')}\nos.unlink(__file__)\nmain({word!r}, {list(chosen)!r},"
        f" {secrets.token_hex(8)!r}, {place.root!r}, {report})\n"
    )
    try:
        done = await run_job(
            container,
            TESTS.format(root=shlex.quote(place.root), setup=place.setup),
            {"tests.py": tests.encode()},
            place.test_s,
        )
    except RuntimeFault as e:
        if not e.began:
            raise
        raise LostInTests(f"the container was lost while tests ran in it: {type(e).__name__}: {e}") from e
    if done.status == 90:
        raise ImageUnfit(f"the set-up failed in the container: {done.log}")
    if done.status in TIME_LIMIT:
        return Outcome({}, "time_limit")
    outcome = judge(done.out.get("report", b""), word)
    return Outcome(_by_first_word(outcome.tests), outcome.ended, outcome.failures, outcome.all_well)


def paths_of(patch: bytes) -> set[str]:
    """Files that a patch names, on either side: also those that are only renamed, or are no text."""
    lines = [line.decode("utf-8", "replace") for line in patch.splitlines()]
    headers = [found.groups() for line in lines if (found := HEADER.match(line))]
    named = {line[6:].partition("\t")[0] for line in lines if line.startswith(("--- a/", "+++ b/"))}
    return named.union(*headers)


def _by_first_word(tests: Mapping[str, str]) -> dict[str, str]:
    """SWE-bench's lists have the names of tests up to their first blank: such a name has passed when all have that
    begin so."""
    named: dict[str, str] = {}
    for name, how in tests.items():
        first = name.split(" ")[0]
        named[first] = how if named.get(first, "passed") == "passed" else named[first]
    return {**named, **tests}


def _listed(done: Done) -> list[str]:
    try:
        return [shown(path) for path in json.loads(done.out["left_out"])]
    except (KeyError, ValueError, TypeError, RecursionError) as e:
        raise RuntimeBroken(f"the container did not tell which paths were restored: {done.log}") from e
