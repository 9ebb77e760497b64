"""python -m env_servers.swe.make_tasks: write rows of bugs to fix, each verified by running its tests.

    one of our repositories -> one small change (mutate.py) -> hidden tests fail, and their messages become the issue
    -> the reversed change is a patch that gets 1

A change that no hidden test catches, or that only makes the tests hang, is no task. Bugs in about a tenth of the lines
are held out for evaluation, whatever the seed: only --split held_out writes them.

--rows FILE turns rows that you have into prompts instead: rows of SWE-Gym or SWE-bench, or rows that bring a repository
and hidden tests. Rows that bring a repository are always tried, the others if --mirror DIR has their repositories. To
try a row is to run its tests on the repository as it is, where they must fail, and with its gold patch, which must get
1. A row that fails is reported with its line and left out.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import itertools
import json
import random
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Literal

from env_servers.flags import command_parser, directory_to_read, file_to_read, file_to_write, seconds, whole
from env_servers.progress import Progress
from env_servers.python_tir.sandbox import SandboxError
from env_servers.task_rows import write_rows

from . import openhands
from .describe import CALLS_TEXT, issue, patch_text, prompt, tools_of
from .grade import Grader
from .mutate import Mutant, mutants
from .rows import fault_of
from .sources import Source, Sources, bundled, names
from .start import new_sandbox
from .task import SweTask, patch_of

ROOT = "/tmp/{name}"
TEST_S = 8.0
"""Seconds of the tests of one bug. They normally take a fifth of a second; a bug with which they take longer than this
is left out."""


Split = Literal["train", "held_out", "all"]


def held_out(name: str, path: str, line: int) -> bool:
    """Return True if bugs in this line are for evaluation. All bugs of a line are, or none, because they are alike."""
    return hashlib.sha256(f"{name} {path} {line}".encode()).digest()[0] % 10 == 0


def candidates(repos: list[str], seed: int, split: Split = "train") -> Iterator[tuple[str, str, Mutant]]:
    """Yield repository, path and mutant of every change of the split, once.

    The repositories take turns, each with its changes in an order that the seed decides.
    """
    waiting = []
    for name in repos:
        changes = [
            (name, path, mutant)
            for path, text in sources_of(bundled(name)).items()
            for mutant in _mutants_of(text)
            if split == "all" or held_out(name, path, mutant.line) == (split == "held_out")
        ]
        random.Random(f"swe {seed} {name}").shuffle(changes)
        waiting.append(changes)
    while any(waiting):
        for changes in waiting:
            if changes:
                yield changes.pop()


@functools.cache
def _mutants_of(text: str) -> tuple[Mutant, ...]:
    return tuple(mutants(text))


def sources_of(source: Source) -> dict[str, str]:
    """Return the code of a repository without its tests, by path."""
    return {
        path: content.decode()
        for path, (_, content) in source.tree.items()
        if path.endswith(".py") and not path.startswith("tests/")
    }


async def verified(
    grader: Grader, name: str, path: str, mutant: Mutant, protocol: str, frame: openhands.Frame
) -> dict[str, Any] | None:
    """Return the row of a change; None if no hidden test catches it.

    Raises:
        RuntimeError: The reversed change does not resolve it, which is a fault of the grader.
        SandboxError: The tests could not be run.
    """
    source = bundled(name)
    broken = {**source.tree, path: (source.tree[path][0], mutant.source.encode())}
    report = await grader.evaluate_tree(broken, source.suite)
    if report.resolved or report.reason != "tests_failed" or not report.failures:
        return None
    gold = patch_text({path: mutant.source.encode()}, {path: source.tree[path][1]})
    solved = await grader.evaluate(broken, gold.encode(), source.suite, is_ours=True)
    if not solved.resolved:
        raise RuntimeError(
            f"{name}, {path}:{mutant.line} ({mutant.change}): its own gold patch is {solved.reason}: {solved.detail}"
        )
    text = prompt(name, f"/tmp/{name}", issue(name, report.failures), protocol, frame=frame)
    bug = {
        "path": path,
        "line": mutant.line,
        "what": mutant.change,
        "failed": report.total - report.passed,
        "tests": report.total,
    }
    return {
        "prompt": text,
        "label": gold,
        "env": "swe",
        "meta": {"repo": name, "files": {path: mutant.source}, "bug": bug, **tools_of(protocol)},
    }


async def rows(
    count: int,
    seed: int,
    repos: list[str],
    protocol: str,
    workers: int,
    split: Split = "train",
    frame: openhands.Frame = openhands.OURS,
) -> AsyncIterator[dict[str, Any]]:
    """Yield at most `count` rows, in an order that does not depend on `workers`. Raises SandboxError."""
    sandbox = new_sandbox(evaluations=workers)
    grader = Grader(sandbox, places=2 * workers, test_s=TEST_S)
    yielded = 0
    waiting = candidates(repos, seed, split)
    try:
        while yielded < count:
            batch = list(itertools.islice(waiting, min(2 * workers, count - yielded)))
            if not batch:
                return
            for row in await asyncio.gather(*(verified(grader, *candidate, protocol, frame) for candidate in batch)):
                if row is not None:
                    yielded += 1
                    yield row
    finally:
        await sandbox.close()


def row_of(
    raw: dict[str, Any], protocol: str, root: str = ROOT, frame: openhands.Frame = openhands.OURS
) -> dict[str, Any]:
    """Return a row of SWE-Gym's or SWE-bench's form, or one that brings its repository, in the form of this project.

    Raises:
        ValueError: The row has nothing by which a patch could be judged.
    """
    task = SweTask.model_validate(raw)
    if not task.is_row and not task.tests:
        raise ValueError(f"the row of {task.repo} has no base_commit and no tests.")
    statement = raw.get("problem_statement")
    if not isinstance(statement, str) or not statement.strip():
        raise ValueError(f"the row {raw.get('instance_id', task.repo)} has no problem_statement.")
    name = task.repo.rpartition("/")[2]
    fields = (
        "instance_id", "repo", "base_commit", "test_patch", "FAIL_TO_PASS", "PASS_TO_PASS", "version", "image",
        "docker_image", "image_name", "files", "tests", "max_turns",
    )  # fmt: skip
    meta = {key: raw[key] for key in fields if key in raw} | tools_of(protocol)
    return {
        "prompt": prompt(
            name,
            root.format(name=name),
            statement.strip(),
            protocol,
            base=f"the commit {task.base_commit}",
            frame=frame,
        ),
        "label": raw.get("patch", ""),
        "env": "swe",
        "meta": meta,
    }


async def fault_in(row: dict[str, Any], sources: Sources, grader: Grader) -> str | None:
    """Try a row, and return why it cannot be trained on; None if it can.

    Its tests must exist, fail or pass on the repository as it is as the row says, and give 0 for an empty patch; its
    gold patch must get 1.

    Raises:
        SandboxError: The row could not be tried.
    """
    task = SweTask.model_validate(row["meta"])
    named = f"the row {task.instance_id or task.repo}"
    try:
        source = await sources.of(task)
    except ValueError as e:
        return str(e)
    before = await grader.whole_files(source.tree, source.suite)
    if (fault := fault_of(task, before)) is not None:
        return fault
    if before.passes(source.suite):
        return f"{named}: its tests pass without a patch: any patch would pass."
    if before.ended != "ended":
        return f"{named}: on the repository as it is its tests end by {before.ended} (--test-timeout)."
    gold = row["label"]
    if not isinstance(gold, str) or not gold.strip():
        return f"{named} has no gold patch to try. Add the field `patch`."
    report = await grader.evaluate(source.tree, patch_of(gold), source.suite)
    if report.resolved:
        return None
    failed = next((f"{name}: {text}" for name, text in report.failures.items()), report.detail)
    return f"{named}: its gold patch gets 0 ({report.reason}{f', {failed}' if failed else ''})."


async def rows_of(args: argparse.Namespace) -> AsyncIterator[dict[str, Any]]:
    """Yield the rows of --rows in the form of this project. Rows that fail a trial are reported on stderr and left out.

    Raises:
        ValueError: A row is malformed. The message has its line.
        SandboxError: The rows could not be tried.
    """
    numbered_rows = []
    frame = _frame_of(args)
    for number, line in enumerate(args.rows.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                row = row_of(json.loads(line), args.protocol, args.root, frame)
                json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair, before hours of trials
                numbered_rows.append((number, row))
            except ValueError as e:
                raise ValueError(f"{args.rows}:{number}: {e}") from None
    is_tried = args.mirror is not None or any("tests" in row["meta"] for _, row in numbered_rows)
    sandbox = new_sandbox(evaluations=1, mirror=args.mirror) if is_tried else None
    try:
        if sandbox is not None:
            grader = Grader(sandbox, places=2, test_s=args.test_timeout)
            sources = Sources(args.mirror, grader.applied)
        for number, row in numbered_rows:
            fault = None
            if sandbox is not None and (args.mirror is not None or "tests" in row["meta"]):
                fault = await fault_in(row, sources, grader)
            if fault is None:
                yield row
            else:
                print(f"{args.rows}:{number}: left out: {fault}", file=sys.stderr)
    finally:
        if sandbox is not None:
            await sandbox.close()


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    p = command_parser("env_servers.swe.make_tasks", __doc__)
    p.add_argument(
        "--count", type=whole(1), default=300, help="rows; fewer if there are no more bugs (default: %(default)s)"
    )
    p.add_argument("--seed", type=int, default=0, help="seed of the order of the bugs (default: %(default)s)")
    p.add_argument(
        "--split",
        choices=["train", "held_out", "all"],
        default="train",
        help="bugs in lines that are held out for evaluation, in the others, or in all (default: %(default)s)",
    )
    p.add_argument(
        "--repos",
        nargs="+",
        choices=names(),
        default=names(),
        metavar="NAME",
        help=f"repositories, of {', '.join(names())} (default: all)",
    )
    p.add_argument(
        "--protocol",
        choices=sorted(CALLS_TEXT),
        default="skyrl",
        help="turn protocol in which the prompt explains calls (default: %(default)s)",
    )
    p.add_argument(
        "--prompt-rows",
        type=file_to_read,
        metavar="FILE.jsonl",
        help="--protocol skyrl: conversations of OpenHands on which the model was tuned, messages with a system message"
        " and marks around the task; prompts use the text of the first one (default: the same form in our words)",
    )
    p.add_argument("--workers", type=whole(1), default=2, help="verifications at once (default: %(default)s)")
    p.add_argument(
        "--rows",
        type=file_to_read,
        metavar="FILE.jsonl",
        help="rows with repo, base_commit, problem_statement, patch, test_patch, FAIL_TO_PASS, PASS_TO_PASS;"
        " or with repo, files, tests, problem_statement, patch",
    )
    p.add_argument(
        "--root",
        type=_root,
        default=ROOT,
        metavar="PATH",
        help="--rows: where the repository is in a session, {name} for its name; /testbed in the containers of"
        " SWE-Gym and SWE-bench (default: %(default)s)",
    )
    p.add_argument(
        "--mirror",
        type=directory_to_read,
        metavar="DIR",
        help="--rows: directory of their git repositories, as the server's:"
        " each row's tests are run on its repository as it is and with its gold patch (default: not run)",
    )
    p.add_argument(
        "--test-timeout",
        type=seconds,
        default=60.0,
        metavar="S",
        help="--rows: wall clock of one row's tests (default: %(default)s)",
    )
    p.add_argument("--out", type=file_to_write, required=True, metavar="FILE.jsonl")
    return p


def _root(text: str) -> str:
    """An argparse type for the directory of a repository, in which {name} stands for the repository's name."""
    try:
        text.format(name="")
    except (LookupError, ValueError, AttributeError):
        raise argparse.ArgumentTypeError(
            f"{text} has another field than {{name}}, which stands for the name."
        ) from None
    return text


def _frame_of(args: argparse.Namespace) -> openhands.Frame:
    """Return the text around the task in the prompts. Raises ValueError for --prompt-rows of another form."""
    return openhands.from_rows(args.prompt_rows) if args.prompt_rows else openhands.OURS


def filled(path: Path) -> int:
    """Return the number of lines that are not blank."""
    return sum(bool(line.strip()) for line in path.read_text(encoding="utf-8").splitlines())


async def collected(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows. Hundreds of them take minutes, so a bar on stderr shows the progress.

    If the trials end early (a fault of the sandbox, Ctrl-C), the rows until then are in a file beside --out.

    Raises:
        ValueError: A row is malformed.
        SandboxError: The rows could not be tried.
    """
    collected_rows = []
    total = filled(args.rows) if args.rows else args.count
    progress = Progress("of the rows, each tried" if args.mirror or not args.rows else "of the rows")
    if args.rows:
        source = rows_of(args)
    else:
        source = rows(
            args.count,
            args.seed,
            args.repos,
            args.protocol,
            args.workers,
            args.split,
            _frame_of(args),
        )
    try:
        async for row in source:
            collected_rows.append(row)
            progress.update(len(collected_rows) / total)
    except BaseException:
        if collected_rows:
            write_rows(args.out.with_name(f"{args.out.name}.part"), collected_rows, ", made before the fault")
        raise
    return collected_rows


def main() -> None:
    """Write the rows, all at once: --out may be the file that --rows names, and is as it was if no tasks are made."""
    args = parser().parse_args()
    try:
        made = asyncio.run(collected(args))
    except (SandboxError, ValueError) as e:
        sys.exit(f"No tasks were made: {e}")
    description = "each with tests that fail before its gold patch and pass after it"
    if args.rows:
        row_count = filled(args.rows)
        if row_count and not made:
            sys.exit(f"No tasks were made: all {row_count} rows of {args.rows} are left out, for the reasons above.")
        tried = (
            "each tried without and with its gold patch" if args.mirror else "those without tests of their own not run"
        )
        description = f"from {args.rows}, {row_count - len(made)} left out, {tried}"
    write_rows(args.out, made, f", {description}")


if __name__ == "__main__":
    main()
