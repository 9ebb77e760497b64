"""A file whose import does not end: its line is said, and the import is ended where a signal can do that."""

from __future__ import annotations

import re
import signal
import threading
import time

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.user_code import load_watch
from openrlhf_tir.user_code.plugins import Place
from openrlhf_tir.user_code.plugins import load as load_plugin

PLACE = Place("reward", "reward.name", "f(trajectory, task, context)")
GO = threading.Event()
"""Lets the import of a file that `hangs` has written go on."""


@pytest.fixture
def hangs(tmp_path, monkeypatch):
    """Write a file whose second line waits for GO when it is loaded. Return the name of its function."""
    monkeypatch.setattr(load_watch, "NOTICE_S", 0.05)
    GO.clear()

    def write(name: str = "mine") -> str:
        path = tmp_path / f"{name}.py"
        wait = f"import sys\nsys.modules[{__name__!r}].GO.wait(600)\n"
        path.write_text(f"{wait}\ndef score(trajectory, task, context):\n    return 1.0\n")
        return f"{path}:score"

    return write


@pytest.fixture
def alarm_is_free():
    """Take the alarm from pytest-timeout, which has it in a test's main thread."""
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, remaining, interval)


@pytest.mark.usefixtures("alarm_is_free")
def test_a_file_that_is_not_loaded_in_time_is_an_error_with_its_line_which_is_said_before(hangs, monkeypatch, capfd):
    for end_s in (0.4, 4.0, 40.0, 400.0):  # the import and the thread that says it must have had a core before the end
        monkeypatch.setattr(load_watch, "END_S", end_s)
        name = hangs(f"within_{end_s:.0f}")
        line = re.escape(name.replace(":score", ":2"))
        with pytest.raises(ConfigError) as late:
            load_plugin(PLACE, name)
        said = capfd.readouterr().err
        if re.search(line, said) and re.search(line, str(late.value)):
            break
    assert re.search(line, said) and re.search(line, str(late.value))
    with pytest.raises(ConfigError, match=line):
        load_plugin(PLACE, name)
    assert not capfd.readouterr().err, "it is not executed a second time"
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_in_another_thread_the_line_is_said(hangs, capfd):
    loaded, said = [], ""
    thread = threading.Thread(target=lambda: loaded.append(load_plugin(PLACE, hangs())))
    thread.start()
    while "mine.py:2" not in said and thread.is_alive():
        said += capfd.readouterr().err
        time.sleep(0.01)
    GO.set()
    thread.join()
    assert "mine.py:2" in said and loaded[0].__name__ == "score"


@pytest.fixture
def own_limit(monkeypatch):
    """Limits of which that for the file's own lines comes long before the other."""
    monkeypatch.setattr(load_watch, "OWN_S", 0.3)
    monkeypatch.setattr(load_watch, "END_S", 3600.0)
    monkeypatch.setattr(load_watch, "LOOK_EVERY_S", 0.02)


LOOP = "import itertools\nfor number in itertools.count():\n    pass\n\ndef score():\n    return 1.0\n"


@pytest.mark.usefixtures("alarm_is_free", "own_limit")
def test_a_loop_in_the_file_s_own_lines_is_ended_long_before_the_import_of_something_else(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    with pytest.raises(ConfigError, match=r"loop\.py:[23]: .*0\.3 s"):
        load_plugin(PLACE, f"{path}:score")


@pytest.mark.usefixtures("own_limit")
def test_in_another_thread_a_loop_is_ended_as_well(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(LOOP)
    caught = []

    def load() -> None:
        with pytest.raises(ConfigError, match=r"loop\.py:[23]: .*0\.3 s") as error:
            load_plugin(PLACE, f"{path}:score")
        caught.append(error.value.code)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert caught == ["user_code"]


def test_in_another_thread_an_import_that_does_not_end_is_ended_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(load_watch, "END_S", 0.3)
    monkeypatch.setattr(load_watch, "LOOK_EVERY_S", 0.02)
    GO.clear()
    path = tmp_path / "waits.py"
    wait = f"while not sys.modules[{__name__!r}].GO.is_set():\n    time.sleep(0.01)\n"
    path.write_text(f"import sys, time\n{wait}\ndef score():\n    return 1.0\n")
    caught = []

    def load() -> None:
        try:
            load_plugin(PLACE, f"{path}:score")
        except ConfigError as error:
            caught.append(str(error))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join(60)
    GO.set()
    thread.join()
    assert caught and re.search(r"waits\.py:[23]: .*0\.3 s", caught[0])


@pytest.mark.usefixtures("alarm_is_free", "own_limit")
def test_a_file_that_imports_something_slow_is_waited_for(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(0.8)\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "patient.py"
    path.write_text("import slow_module\n\ndef score():\n    return 1.0\n")
    assert load_plugin(PLACE, f"{path}:score")() == 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("alarm_is_free", "own_limit")
@pytest.mark.parametrize(
    "line",
    [
        "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 1_500_000)",  # C code, as of a tokenizer
        "import json; json.loads('[' + '1.5,' * 6_000_000 + '1]')",
        "import time; time.sleep(0.8)",  # as of a download, or of a machine without a free core
    ],
)
def test_a_long_call_of_the_file_is_no_loop(tmp_path, line):
    path = tmp_path / "patient.py"
    path.write_text(f"{line}\n\ndef score():\n    return 1.0\n")
    assert load_plugin(PLACE, f"{path}:score")() == 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("alarm_is_free", "own_limit")
@pytest.mark.extended
def test_a_loop_that_calls_something_short_is_ended_as_well(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text("import math\nwhile True:\n    math.sqrt(2.0)\n")
    with pytest.raises(ConfigError, match=r"loop\.py:[23]: .*0\.3 s"):
        load_plugin(PLACE, f"{path}:score")
