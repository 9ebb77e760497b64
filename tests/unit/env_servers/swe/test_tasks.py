"""Bugs by mutation, rows of others, and what is wrong with a task is named."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import sys

import pytest

from env_servers.python_tir.sandbox import SandboxError
from env_servers.swe import make_tasks
from env_servers.swe import sources as sources_module
from env_servers.swe.describe import issue, patch_text, prompt
from env_servers.swe.grade import restored
from env_servers.swe.make_tasks import candidates, row_of
from env_servers.swe.mutate import mutants
from env_servers.swe.sources import Sources
from env_servers.swe.suite import Outcome, Suite
from env_servers.swe.task import SweTask, patch_of
from env_servers.swe.tools import TOOLS


def changed(source: str) -> set[str]:
    lines = source.split("\n")
    return {
        m.source.split("\n")[m.line - 1].strip() for m in mutants(source) if len(m.source.split("\n")) == len(lines)
    }


def test_a_mutation_changes_one_place_and_adds_parentheses_where_needed():
    found = changed("def f(a, b):\n    return a < b and not b * (a + 1) > 2")
    assert "return a <= b and not b * (a + 1) > 2" in found
    assert "return a < b or not b * (a + 1) > 2" in found
    assert "return a < b and not b * (a - 1) > 2" in found
    assert "return a < b and not b + (a + 1) > 2" in found
    assert "return a < b and b * (a + 1) > 2" in found
    assert "return None" in found


def test_a_replacement_of_lower_precedence_gets_parentheses():
    assert "return 2 * (3 + 4) - 1" in changed("def f():\n    return 2 * (3 * 4) - 1")
    assert "return (a + b) ** 2" in changed("def f(a, b):\n    return (a * b) ** 2")


def test_every_mutant_is_a_different_program_and_names_its_place():
    source = (
        "class A:\n    def f(self, x):\n        while x > 0:\n            if x == 3:\n                break\n          "
        "  x -= 1\n        return min(x, 2)\n"
    )
    found = list(mutants(source))
    assert len({m.source for m in found}) == len(found) >= 8
    assert all(m.source != source and 3 <= m.line <= 7 for m in found)


@pytest.mark.slow
def test_the_seed_determines_the_order_of_bugs_and_the_repositories_alternate():
    first = [(n, p, m.line) for n, p, m in candidates(["roman", "lru"], 1)]
    assert [n for n, _, _ in first[:4]] == ["roman", "lru", "roman", "lru"]
    assert first == [(n, p, m.line) for n, p, m in candidates(["roman", "lru"], 1)]
    assert first != [(n, p, m.line) for n, p, m in candidates(["roman", "lru"], 2)]


def test_an_issue_has_two_different_tests_and_no_addresses():
    failures = {
        "t.py::test_a[1-2]": ">  assert f(1)\nE  where <function f at 0x7f00>(1)",
        "t.py::test_a[3]": "E no",
        "t.py::test_b_c": "E  x",
    }
    text = issue("pkg", failures)
    assert (
        "It should hold: a (1-2)." in text
        and "It should hold: b c." in text
        and "0x" not in text
        and "E no" not in text
    )


def test_a_patch_has_gits_format_and_the_prompt_has_the_format_of_calls():
    assert patch_text({"a": b"x\ny\n"}, {"a": b"x\nz\n"}).startswith("diff --git a/a b/a\n--- a/a\n+++ b/a\n@@")
    assert "<tool_call>" in prompt("roman", "/tmp/roman", "It fails.", "hermes")
    assert "execute_bash(" not in prompt("roman", "/tmp/roman", "It fails.", "")


ROW = {
    "instance_id": "o__lib-1",
    "repo": "o/lib",
    "base_commit": "HEAD",
    "problem_statement": "twice(2) is 5.",
    "patch": "",
    "test_patch": (
        "--- a/test_lib.py\n+++ b/test_lib.py\n@@ -4 +4 @@\n-    assert lib.twice(0)"
        " == 1\n+    assert lib.twice(2) == 4\n"
    ),
    "FAIL_TO_PASS": '["test_lib.py::test_twice"]',
    "PASS_TO_PASS": [],
}


def test_a_row_of_swe_bench_is_converted():
    row = row_of(ROW, "skyrl")
    assert (
        row["env"] == "swe"
        and "twice(2) is 5." in row["prompt"][1]["content"]
        and "test_patch" in row["meta"]
        and "patch" not in row["meta"]
    )
    assert SweTask.model_validate(row["meta"]).fail_to_pass == ["test_lib.py::test_twice"]


def test_rows_for_a_chat_in_the_models_own_format_have_the_tools_for_its_template():
    """A server that the run starts itself cannot be asked yet when prompts are rendered."""
    row = row_of(ROW, "messages")
    assert row["meta"]["chat_tools"] == TOOLS and SweTask.model_validate(row["meta"])
    assert "execute_bash(" not in row["prompt"] and "twice(2) is 5." in row["prompt"]
    assert all("chat_tools" not in row_of(ROW, protocol)["meta"] for protocol in ("skyrl", "tool", "hermes", ""))


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ("base_commit", "o/lib .* base_commit"),
        ("test_patch", "o/lib .* test_patch"),
        ("FAIL_TO_PASS", "o/lib .* FAIL_TO_PASS"),
        ("problem_statement", " problem_statement"),
    ],
)
def test_a_row_that_lacks_a_field_is_refused_by_name(lacking, message):
    with pytest.raises(ValueError, match=message):
        row_of({k: v for k, v in ROW.items() if k != lacking}, "skyrl")


@pytest.fixture(scope="module")
def mirror(tmp_path_factory):
    top = tmp_path_factory.mktemp("mirror")
    repo = top / "o__lib"
    repo.mkdir()
    (repo / "lib.py").write_text("def twice(x):\n    return 2 * x + 1\n")
    (repo / "test_lib.py").write_text("import lib\n\ndef test_twice():\n    assert lib.twice(0) == 1\n")
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    return top


async def applied(tree, patch):
    """A stand-in for the sandbox that knows this one patch."""
    if b"NOT" in patch:
        return {"error": "patch failed: test_lib.py:1"}
    return {"error": None, "files": {"test_lib.py": "bmV3"}, "gone": [], "left_out": []}


@pytest.mark.parametrize(("text", "patch"), [("+a\n", b"+a\n"), ("+a", b"+a\n"), ("", b""), (None, b"")])
def test_a_patch_of_a_row_gets_the_newline_that_its_data_set_cut_off(text, patch):
    assert patch_of(text) == patch


async def test_a_row_is_checked_out_from_the_mirror_without_its_tests(mirror):
    source = await Sources(mirror, applied).of(SweTask.model_validate(ROW))
    assert (
        source.name == "lib"
        and sorted(source.tree) == ["lib.py", "test_lib.py"]
        and b"twice(0)" in source.tree["test_lib.py"][1]
    )
    assert source.suite.files == {"test_lib.py": b"new"} and source.suite.must_pass == ["test_lib.py::test_twice"]


async def test_a_row_has_the_files_that_its_repository_excludes_from_archives(mirror, tmp_path):
    repo = shutil.copytree(mirror / "o__lib", tmp_path / "o__lib")
    (repo / ".gitattributes").write_text("test_lib.py export-ignore\ntext export-subst\nlink export-ignore\n")
    (repo / "text").write_text("$Format:%H$\n")
    (repo / "run").write_text("#!/bin/sh\n")
    (repo / "run").chmod(0o755)
    (repo / "link").symlink_to("lib.py")
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["add", "-A"], ["commit", "-qm", "two"]):
        subprocess.run([*git, *command], check=True)
    tree = (await Sources(tmp_path, applied).of(SweTask.model_validate(ROW))).tree
    assert sorted(tree) == [".gitattributes", "lib.py", "link", "run", "test_lib.py", "text"]
    assert tree["text"] == (0o100644, b"$Format:%H$\n")
    assert (tree["link"], tree["run"][0]) == ((0o120000, b"lib.py"), 0o100755)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_commit": "0123456789"}, "0123456789"),
        ({"repo": "o/other"}, " o/other"),
        ({"repo": "../lib"}, "'../lib' .*owner/name"),
        ({"test_patch": "NOT"}, "^test_patch .*o/lib"),
        ({"FAIL_TO_PASS": ["test_none.py::test_x"]}, "o/lib .* test_none.py, "),
    ],
)
async def test_a_row_that_cannot_be_started_is_named(mirror, change, message):
    with pytest.raises(ValueError, match=message):
        await Sources(mirror, applied).of(SweTask.model_validate({**ROW, **change}))


async def test_the_sessions_of_a_group_share_one_checkout(mirror):
    applications = []

    async def counted(tree, patch):
        applications.append(patch)
        return await applied(tree, patch)

    sources = Sources(mirror, counted)
    rows = [SweTask.model_validate({**ROW, "max_turns": turns}) for turns in (3, 4, None, None)]
    made = await asyncio.gather(*map(sources.of, rows))
    assert len(applications) == 1 and all(source is made[0] for source in made)
    assert not sources._locks, "nobody waits any more"


async def test_a_slow_mirror_is_named_and_not_the_time_of_a_start(mirror, monkeypatch):
    monkeypatch.setattr(sources_module, "CHECKOUT_S", 0.0)
    with pytest.raises(SandboxError, match=r"ls-tree .*o__lib .* 0 s\b"):
        await Sources(mirror, applied).of(SweTask.model_validate(ROW))


async def test_a_server_without_a_mirror_says_which_flag_is_missing():
    with pytest.raises(ValueError, match="--mirror DIR"):
        await Sources(None, applied).of(SweTask.model_validate(ROW))


async def test_a_bundled_task_replaces_existing_files_only():
    sources = Sources(None, applied)
    source = await sources.of(SweTask(repo="roman", files={"roman/number.py": "x = 1\n"}))
    assert source.tree["roman/number.py"][1] == b"x = 1\n"
    with pytest.raises(ValueError, match=r"roman/new\.py .* roman\."):
        await sources.of(SweTask(repo="roman", files={"roman/new.py": ""}))


WHOLE = {
    "repo": "f",
    "files": {"f.py": "def f(x):\n    return x+1\n", "data/x.txt": "1"},
    "tests": {"test_f.py": "from f import f\n"},
}


async def test_a_row_may_contain_its_whole_repository_without_the_hidden_tests():
    source = await Sources(None, applied).of(SweTask.model_validate(WHOLE))
    assert source.name == "f" and {path: content for path, (_, content) in source.tree.items()} == {
        p: t.encode() for p, t in WHOLE["files"].items()
    }
    assert source.suite == Suite({"test_f.py": b"from f import f\n"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repo": "../f"}, "base_commit"),
        ({"repo": ".."}, r" = '\.\.' "),
        ({"tests": {"../test_f.py": ""}}, ": '../test_f.py' .*test_NAME.py"),
        ({"tests": {"conftest.py": ""}}, " f .* conftest.py .*test_NAME.py"),
        ({"files": {"/etc/f.py": ""}}, ": '/etc/f.py' "),
        ({"files": {"a/../../f.py": ""}}, ": 'a/../../f.py' "),
        ({"files": {".git/hooks/f.py": ""}}, ": '.git/hooks/f.py' "),
        ({"files": {"a.py": "", "a.py/b.py": ""}}, r": 'a\.py' (?!.*255)"),
        ({"files": {"f.py": "", "test_f.py/data.txt": ""}}, r": 'test_f\.py' (?!.*255)"),
        ({"PASS_TO_PASS": "[" * 100_000}, "PASS_TO_PASS\n"),
        ({"files": {"a/b.py": "", "a/b.py/c/d.py": ""}}, r": 'a/b\.py' (?!.*255)"),
        ({"files": {"f.py": "", "x" * 256: ""}}, ": 'x+' .* 255 "),
        ({"files": {"f.py": "", "ä" * 128: ""}}, ": 'ä+' .* 255 "),
        ({"files": {"f.py": "", "/".join(["x" * 200] * 6): ""}}, ": '[x/]+' .* 1024 "),
        ({"files": {"f.py": "", "\ud800": ""}}, r": '.ud800' "),
        ({"repo": "f" * 256}, " = 'f+' .* 255 "),
        ({"tests": {f"test_{'x' * 256}.py": ""}}, ": 'test_x+.py' .* 255 "),
        ({"files": {f"f{i}.py": "" for i in range(40_000)}}, " 40000 "),
        ({"files": {}}, r" f .*\*\.py .*`files`"),
        ({"files": {"f.py": "x" * (1 << 20)}}, " 1048576\\b"),
        ({"files": {"f.py": "\ud800"}}, "surrogates not allowed"),
        ({"test_patch": "x", "base_commit": "HEAD"}, " f .* base_commit, .* test_patch "),
    ],
)
def test_a_malformed_repository_in_a_row_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        SweTask.model_validate(WHOLE | change)


def test_which_outcomes_count_as_passed():
    every, chosen = Suite({}), Suite({}, must_pass=["a"])
    assert Outcome({"a": "passed"}).passes(every)
    for tests in ({}, {"a": "passed", "b": "skipped"}, {"a": "passed", "b": "missing"}):
        assert not Outcome(tests).passes(every)
    assert Outcome({"a": "passed", "b": "failed"}).passes(chosen)
    assert not Outcome({"b": "passed"}).passes(chosen)
    assert not Outcome({"a": "passed"}, "falsified_tests_passed").passes(chosen)


@pytest.mark.parametrize(
    "path",
    [
        "conftest.py",
        "a/conftest.py",
        "pytest.ini",
        "setup.cfg",
        "sitecustomize.py",
        "x.pth",
        "__pycache__/conftest.cpython-312.pyc",
    ],
)
def test_configuration_of_pytest_and_python_comes_from_the_repository(path):
    assert Suite({}).protects(path)


def test_a_patch_changes_code_and_not_tests():
    suite = Suite({"tests/test_a.py": b""}, restored=("tests/data.txt",))
    assert [
        suite.protects(p)
        for p in ("tests/test_a.py", "tests/data.txt", "tests/test_b.py", "lib/pytest_like.py", "pyproject.py")
    ] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("tests", "path", "is_protected"),
    [
        ("test_f.py", "tests/helpers.py", True),
        ("test_f.py", "helpers.py", False),
        ("tests/unit/test_a.py", "tests/helpers/compare.py", True),
        ("pandas/tests/frame/test_a.py", "pandas/tests/util.py", True),
        ("pandas/tests/frame/test_a.py", "pandas/testing.py", False),
        ("tests/client/tests.py", "django/test/client.py", False),
        ("testing/test_a.py", "testing/helpers.py", True),
        ("src/testing/test_a.py", "src/testing/tool.py", False),
    ],
)
def test_helpers_of_tests_belong_to_the_tests(tests, path, is_protected):
    assert Suite({tests: b""}).protects(path) is is_protected
    assert Suite({}, must_pass=[f"{tests}::test_x"]).protects(path) is is_protected


def test_a_patch_cannot_replace_a_protected_file_or_a_directory_above_it():
    tree = {"tests/test_a.py": (0o100644, b"old"), "conftest.py": (0o100644, b"ours"), "lib.py": (0o100644, b"")}
    suite = Suite({"tests/test_a.py": b"new", "more/test_b.py": b""})
    files = {"tests/test_a.py/x.py": "", "conftest.py/y": "", "more": "", "lib.py/z.py": ""}
    applied = {"files": files, "gone": ["tests/test_a.py", "conftest.py", "lib.py"], "left_out": [], "executables": []}
    kept, left_out = restored(tree, applied, suite)
    assert (
        sorted(kept) == ["conftest.py", "lib.py/z.py", "tests/test_a.py"] and kept["conftest.py"] == tree["conftest.py"]
    )
    assert left_out == ["conftest.py", "conftest.py/y", "more", "tests/test_a.py", "tests/test_a.py/x.py"]


PYPROJECT = "[project]\nversion = '1'\n[tool.pytest.ini_options]\nxfail_strict = true\n"


@pytest.mark.parametrize(
    ("path", "before", "after", "is_kept"),
    [
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace("'1'", "'2'"), True),
        ("pyproject.toml", PYPROJECT, PYPROJECT.replace("true", "false"), False),
        ("pyproject.toml", PYPROJECT, "[project]\nversion = '2'\n", False),
        ("pyproject.toml", PYPROJECT, PYPROJECT + "[tool.pytest]\naddopts = ['--co']\n", False),
        ("pyproject.toml", PYPROJECT, PYPROJECT + "[", False),
        ("pyproject.toml", None, "[project]\nname = 'lib'\n", True),
        ("pyproject.toml", None, "tool.pytest.ini_options.addopts = '--co'\n", False),
        ("pyproject.toml", "[project]\n", None, True),
        ("setup.cfg", "[metadata]\nname = a\n", "[metadata]\nname = b\n[options]\npackages = find:\n", True),
        ("setup.cfg", "[metadata]\nname = a\n", "[tool:pytest]\naddopts = --co\n", False),
        ("setup.cfg", None, "[pytest]\naddopts = --co\n", False),
        ("tox.ini", "[tox]\n", "[tox]\nenvlist = py311\n", True),
        ("tox.ini", "[tox]\n", "[pytest]\n", False),
        ("pytest.ini", None, "", False),
        ("conftest.py", None, "", False),
    ],
)
def test_a_patch_may_change_packaging_metadata_but_no_configuration_of_pytest(path, before, after, is_kept):
    tree = {"lib.py": (0o100644, b"")} | ({path: (0o100644, before.encode())} if before is not None else {})
    changed = {path: base64.b64encode(after.encode()).decode()} if after is not None else {}
    given = {"files": changed, "gone": [path] if after is None else [], "left_out": [], "executables": []}
    kept, left_out = restored(tree, given, Suite({"test_lib.py": b""}))
    chosen = after if is_kept else before
    assert kept.get(path) == ((0o100644, chosen.encode()) if chosen is not None else None)
    assert left_out == ([] if is_kept else [path])


async def test_the_progress_of_the_rows_is_printed(tmp_path, monkeypatch, capsys):
    async def made(count, *args):
        for i in range(count):
            yield {"id": i}

    monkeypatch.setattr(make_tasks, "rows", made)
    args = make_tasks.parser().parse_args(["--count", "20", "--out", str(tmp_path / "rows.jsonl")])
    assert await make_tasks.collected(args) == [{"id": i} for i in range(20)]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 10 and "100%" in lines[-1]


def converted(monkeypatch, rows, out, *flags):
    monkeypatch.setattr(sys, "argv", ["make_tasks", "--rows", str(rows), "--out", str(out), *flags])
    make_tasks.main()


def test_rows_may_be_written_into_the_file_that_they_come_from(tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROW | {"max_turns": 7}) + "\n")
    converted(monkeypatch, rows, rows)
    metas = [json.loads(line)["meta"] for line in rows.read_text().splitlines()]
    assert [(meta["repo"], meta["max_turns"]) for meta in metas] == [(ROW["repo"], 7)]


def test_a_malformed_row_leaves_the_file_of_an_earlier_call_as_it_was(tmp_path, monkeypatch):
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text(json.dumps({"repo": "o/lib"}) + "\n")
    out.write_text("earlier\n")
    with pytest.raises(SystemExit, match=f"{rows}:1"):
        converted(monkeypatch, rows, out)
    assert out.read_text() == "earlier\n"


def test_a_row_that_no_file_can_hold_is_named_before_rows_are_tried(tmp_path, monkeypatch):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n" + json.dumps(ROW | {"problem_statement": "half of a pair: \ud800"}) + "\n")
    with pytest.raises(SystemExit, match=f"{rows}:2"):
        converted(monkeypatch, rows, rows)


@pytest.mark.parametrize("fault", [SandboxError("gone"), KeyboardInterrupt()])
def test_rows_that_were_made_before_a_fault_are_kept_beside_the_file(fault, tmp_path, monkeypatch):
    async def made(*args):
        yield {"id": 1}
        raise fault

    monkeypatch.setattr(make_tasks, "rows", made)
    monkeypatch.setattr(sys, "argv", ["make_tasks", "--out", str(tmp_path / "rows.jsonl")])
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        make_tasks.main()
    (part,) = tmp_path.iterdir()
    assert part.name == "rows.jsonl.part" and json.loads(part.read_text()) == {"id": 1}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rows", "/nowhere/rows.jsonl"], "--rows: /nowhere/rows.jsonl "),
        (["--rows", "/tmp"], "--rows: /tmp "),
        (["--prompt-rows", "/nowhere/rows.jsonl"], "--prompt-rows: /nowhere/rows.jsonl "),
        (["--mirror", "/nowhere"], "--mirror: /nowhere "),
        (["--root", "/{repo}"], "--root: /{repo} "),
        (["--root", "/{name"], "--root: /{name "),
    ],
)
def test_a_flag_that_names_nothing_is_refused_before_rows_are_made(flags, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        make_tasks.parser().parse_args([*flags, "--out", str(tmp_path / "rows.jsonl")])
    assert ended.value.code == 2 and message in capsys.readouterr().err
