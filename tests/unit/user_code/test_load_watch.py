"""A file whose import does not end: its line is said, and the import is ended where a signal can do that."""

from __future__ import annotations

import signal
import threading

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.user_code import load_watch
from openrlhf_tir.user_code.plugins import Place
from openrlhf_tir.user_code.plugins import load as load_plugin

PLACE = Place("reward", "reward.name", "f(trajectory, task, context)")


@pytest.fixture
def hangs(tmp_path, monkeypatch):
    """The name of a function in a file that sleeps in its second line when it is loaded."""
    monkeypatch.setattr(load_watch, "NOTICE_S", 0.05)
    monkeypatch.setattr(load_watch, "END_S", 0.4)
    path = tmp_path / "mine.py"
    path.write_text("import time\ntime.sleep(2)\n\ndef score(trajectory, task, context):\n    return 1.0\n")
    return f"{path}:score"


@pytest.fixture
def alarm_is_free():
    """Take the alarm from pytest-timeout, which has it in a test's main thread."""
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, remaining, interval)


@pytest.mark.usefixtures("alarm_is_free")
def test_a_file_that_is_not_loaded_in_time_is_an_error_with_its_line_which_is_said_before(hangs, capfd):
    with pytest.raises(ConfigError, match=r"mine\.py:2"):
        load_plugin(PLACE, hangs)
    assert "mine.py:2" in capfd.readouterr().err
    with pytest.raises(ConfigError, match=r"mine\.py:2"):
        load_plugin(PLACE, hangs)
    assert not capfd.readouterr().err, "it is not executed a second time"
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_in_another_thread_the_line_is_said(hangs, capfd):
    loaded = []
    thread = threading.Thread(target=lambda: loaded.append(load_plugin(PLACE, hangs)))
    thread.start()
    thread.join()
    assert "mine.py:2" in capfd.readouterr().err and loaded[0].__name__ == "score"
