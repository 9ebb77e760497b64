"""Calls are checked before anything runs; the editor's words and the shell's state."""

from __future__ import annotations

import re
import signal
import threading
import time
from pathlib import Path

import pytest

from env_servers.swe.inside.editor import Editor, Refused
from env_servers.swe.inside.shell import KEEP_CHARS, RESTARTED, Shell
from env_servers.swe.tools import TOOLS, BadCall, checked

EDIT = "str_replace_editor"


@pytest.mark.parametrize(
    ("name", "arguments", "checked_to"),
    [
        ("execute_bash", {"command": "ls"}, {"command": "ls"}),
        ("execute_bash", {"command": "", "is_input": "TRUE"}, {"command": "", "is_input": True}),
        ("execute_bash", {"command": "x", "is_input": False}, {"command": "x", "is_input": False}),
        (
            EDIT,
            {"command": "view", "path": "/a", "view_range": "[1, -1]"},
            {"command": "view", "path": "/a", "view_range": [1, -1]},
        ),
        (
            EDIT,
            {"command": "insert", "path": "/a", "insert_line": "7", "new_str": "x"},
            {"command": "insert", "path": "/a", "insert_line": 7, "new_str": "x"},
        ),
        (EDIT, {"command": "view", "path": "/a", "old_str": "left over"}, {"command": "view", "path": "/a"}),
        (
            EDIT,
            {"command": "create", "path": "/a", "file_text": "", "view_range": None},
            {"command": "create", "path": "/a", "file_text": ""},
        ),
        ("finish", {"message": "Done."}, {"cut": False}),
        ("finish", {"cut": "true"}, {"cut": True}),
    ],
)
def test_arguments_get_their_types(name, arguments, checked_to):
    assert checked(name, arguments) == checked_to


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "values"),
    [
        ("fly", {}, "unknown_function", ("'fly'", "execute_bash")),
        (None, {}, "unknown_function", ("None", "execute_bash")),
        ("execute_bash", [], "bad_call", ("execute_bash", "list")),
        ("execute_bash", {}, "bad_call", ("execute_bash", "command")),
        ("execute_bash", {"command": 7}, "bad_call", ("command", "int")),
        ("execute_bash", {"command": "ls", "timeout": "3"}, "bad_call", ("timeout", "command, is_input")),
        ("execute_bash", {"command": "ls", "is_input": "yes"}, "bad_call", ("is_input", "'yes'")),
        (EDIT, {"command": "delete", "path": "/a"}, "bad_call", ("'delete'", "view, create")),
        (EDIT, {"command": "create", "path": "/a"}, "bad_call", ("file_text",)),
        (
            EDIT,
            {"command": "insert", "path": "/a", "new_str": "x", "insert_line": "two"},
            "bad_call",
            ("insert_line", "'two'"),
        ),
        (
            EDIT,
            {"command": "insert", "path": "/a", "new_str": "x", "insert_line": True},
            "bad_call",
            ("insert_line", "'True'"),
        ),
        (EDIT, {"command": "view", "path": "/a", "view_range": "[1]"}, "bad_call", ("view_range", "'[1]'")),
    ],
)
def test_a_wrong_call_is_answered_with_the_reason(name, arguments, kind, values):
    with pytest.raises(BadCall) as error:
        checked(name, arguments)
    assert error.value.kind == kind and all(value in str(error.value) for value in values)


def test_the_tools_are_the_three_of_skyrl():
    assert [t["function"]["name"] for t in TOOLS] == ["execute_bash", EDIT, "finish"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "f.py"
    path.write_text("one\ntwo\nthree\ntwo\n")
    return path


def test_view_numbers_lines_and_lists_directories(file):
    edit = Editor()
    assert "     2\ttwo\n     3\tthree" in edit.run("view", str(file), {"view_range": [2, 3]})
    assert str(file) in edit.run("view", str(file.parent), {})
    for bad in ([0, 1], [3, 2], [1, 99]):
        with pytest.raises(Refused, match=f"`view_range`.*{re.escape(str(bad))}.*, 5]"):
            edit.run("view", str(file), {"view_range": bad})


def test_a_directory_with_a_slash_at_its_end_is_listed_as_without(file):
    (Path(file).parent / "a" / "b" / "c").mkdir(parents=True)
    top = str(Path(file).parent)
    listed = Editor().run("view", f"{top}/", {}).splitlines()
    assert listed[2:] == Editor().run("view", top, {}).splitlines()[2:]
    assert f"{top}/a/b/" in listed and f"{top}/a/b/c/" not in listed
    levels = {path.rstrip("/").count("/") for path in Editor().run("view", "/", {}).splitlines()[2:-1]}
    assert levels == {1, 2}


def test_a_replaced_text_must_occur_exactly_once(file):
    edit = Editor()
    edit.run("str_replace", str(file), {"old_str": "three", "new_str": "3"})
    assert file.read_text() == "one\ntwo\n3\ntwo\n"
    with pytest.raises(Refused, match=r"`two`.*\[2, 4\]"):
        edit.run("str_replace", str(file), {"old_str": "two", "new_str": "2"})
    with pytest.raises(Refused, match="`four`"):
        edit.run("str_replace", str(file), {"old_str": "four", "new_str": ""})


def test_edits_are_undone_one_by_one(file):
    edit, new = Editor(), str(file.parent / "sub" / "new.py")
    edit.run("insert", str(file), {"insert_line": 0, "new_str": "zero"})
    edit.run("insert", str(file), {"insert_line": 2, "new_str": "more"})
    assert file.read_text() == "zero\none\nmore\ntwo\nthree\ntwo\n"
    edit.run("undo_edit", str(file), {})
    assert file.read_text() == "zero\none\ntwo\nthree\ntwo\n"
    edit.run("undo_edit", str(file), {})
    with pytest.raises(Refused, match=re.escape(str(file))):
        edit.run("undo_edit", str(file), {})
    edit.run("create", new, {"file_text": "x"})
    with pytest.raises(Refused, match=f"{re.escape(new)}.*`create`"):
        edit.run("create", new, {"file_text": "x"})
    edit.run("undo_edit", new, {})
    with pytest.raises(Refused, match=re.escape(new)):
        edit.run("view", new, {})


@pytest.mark.parametrize("path", ["f.py", "/nowhere/at/all"])
def test_paths_must_be_absolute_and_exist(path):
    with pytest.raises(Refused):
        Editor().run("view", path, {})


@pytest.fixture
def shell(tmp_path):
    made = Shell(str(tmp_path), {"PATH": "/usr/bin:/bin"})
    yield made
    made.stop()


def test_a_shell_keeps_directory_variables_and_functions(shell, tmp_path):
    assert shell.run("mkdir d; cd d; X=5; f() { echo f$X; }", False, 20) == ("", 0)
    assert shell.run("f; pwd", False, 20) == (f"f5\n{tmp_path}/d\n", 0)
    assert shell.run("false", False, 20) == ("", 1)
    assert shell.run("ls /nowhere", False, 20)[1] == 2
    assert shell.run("cat", False, 0.05) == ("", None)  # its own stdin, not bash's commands


def test_the_status_of_a_command_is_there_for_the_next_one(shell):
    assert shell.run("(exit 7)", False, 20) == ("", 7)
    assert shell.run("echo $?", False, 20) == ("7\n", 0)
    assert shell.run("trap 'echo failed' ERR; false", False, 20)[1] == 1
    assert shell.run("echo $?", False, 20) == ("1\n", 0)


def test_functions_with_the_names_of_commands_that_the_shell_needs_change_nothing(shell):
    assert shell.run("printf() { echo p; }; read() { echo r; }; eval() { echo e; }; echo a", False, 20) == ("a\n", 0)
    assert shell.run("echo b; printf", False, 20) == ("b\np\n", 0)


def test_a_running_command_can_be_given_input_and_interrupted(shell):
    assert shell.run("read a; echo got $a; sleep 100", False, 0.2) == ("", None)
    assert shell.run("echo no", False, 1)[1] is None
    assert shell.run("hello", True, 0.5) == ("got hello\n", None)
    _, code = shell.run("C-c", True, 5)
    assert code == 130 and shell.run("echo again", False, 20) == ("again\n", 0)


def test_an_interrupt_takes_no_longer_than_its_call_may(shell):
    """Otherwise a model that interrupts what ignores it, several times in one action, would make its caller late."""
    start = time.monotonic()
    assert shell.run("trap '' INT; echo up; while :; do sleep 1; done", False, 0.5) == ("up\n", None)
    _, code = shell.run("C-c", True, 0.5)
    assert code == 130 and time.monotonic() - start < 2.5


@pytest.mark.slow
def test_a_command_started_after_an_interrupt_can_be_interrupted(shell):
    """On a busy machine bash may not have started the next command yet when C-c comes."""
    assert shell.run("while [[ ! -e go ]]; do :; done; sleep 100", False, 0.1) == ("", None)
    threading.Timer(0.2, lambda: Path(shell.directory, "go").touch()).start()
    assert shell.run("C-c", True, 5)[1] == 130


def test_a_server_started_in_the_background_can_interrupt_commands(shell):
    """There SIGINT is ignored, which processes hand on."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert shell.run("sleep 100", False, 0.5) == ("", None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert shell.run("C-c", True, 5)[1] == 130


def test_a_shell_that_ended_is_restarted_and_the_model_reads_so(shell):
    text, code = shell.run("echo bye; exit 3", False, 20)
    assert text.startswith("bye\n") and RESTARTED in text and code == 1
    assert shell.run("echo $X", False, 20) == ("\n", 0)


def test_the_middle_of_long_output_is_left_out(shell):
    text, code = shell.run("seq 100000", False, 20)
    assert code == 0 and text.startswith("1\n2\n") and text.endswith("99999\n100000\n") and "bytes left out" in text
    assert len(text) < KEEP_CHARS + 100


def test_a_syntax_error_is_an_observation(shell):
    text, code = shell.run("if then", False, 20)
    assert "syntax error" in text and code != 0
    assert shell.run("echo fine", False, 20) == ("fine\n", 0)
