"""User code that ends its process is a defect with file and line; what it forks may end as it likes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.user_code.failures import Exited
from openrlhf_tir.user_code.plugins import Place, raised_at
from openrlhf_tir.user_code.plugins import load as load_plugin

PLACE = Place("reward", "reward.name", "f()")


def loaded(tmp_path, text: str):
    path = tmp_path / "mine.py"
    path.write_text(text)
    return load_plugin(PLACE, f"{path}:score")


@pytest.mark.parametrize(
    "text",
    [
        "import os\n\ndef score():\n    os._exit(3)\n",
        "from os import _exit\n\ndef score():\n    _exit(3)\n",
        "import os\n\ndef score():\n    os.abort()\n",
    ],
)
def test_a_call_that_would_end_the_process_raises_at_its_line(tmp_path, text):
    score = loaded(tmp_path, text)
    with pytest.raises(Exited) as caught:
        score()
    assert raised_at(caught.value, str(tmp_path / "mine.py")) == f"{tmp_path / 'mine.py'}:4"


def test_a_file_that_ends_the_process_when_it_is_loaded_is_refused_with_its_line(tmp_path):
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, "import os\nos._exit(0)\n\ndef score():\n    return 1.0\n")
    assert caught.value.code == "user_code" and "mine.py:2" in str(caught.value)


def test_a_process_that_user_code_forks_may_end_itself(tmp_path):
    text = (
        "import os\n\ndef score():\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        os._exit(7)\n"
        "    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
    )
    assert loaded(tmp_path, text)() == 7


def test_other_code_ends_the_process_as_before(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def score():\n    return 1.0\n")
    code = (
        "import os\n"
        "from openrlhf_tir.user_code.plugins import Place, load\n"
        f"load(Place('reward', 'reward.name', 'f()'), {str(path) + ':score'!r})()\n"
        "os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert done.returncode == 9


def test_a_signal_handler_of_ours_that_interrupts_user_code_ends_the_process(tmp_path):
    (tmp_path / "mine.py").write_text("import signal\n\ndef score():\n    signal.raise_signal(signal.SIGALRM)\n")
    code = (
        "import os, signal, types\n"
        "from openrlhf_tir.user_code.plugins import Place, load\n"
        f"score = load(Place('reward', 'reward.name', 'f()'), {str(tmp_path / 'mine.py')!r} + ':score')\n"
        "ours = types.ModuleType('openrlhf_tir.handler')\n"
        "exec('import os\\ndef end(*_):\\n    os._exit(9)', ours.__dict__)\n"
        "signal.signal(signal.SIGALRM, ours.end)\n"
        "score()\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 9
