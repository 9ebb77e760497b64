"""Modules beside a user's file go with it: they are found, copied, and imported from the copy."""

from __future__ import annotations

import sys

import pytest

from openrlhf_tir.config.own_files import files_of, freeze
from openrlhf_tir.config.packing import pack
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards import REWARD
from openrlhf_tir.user_code.neighbours import neighbours
from openrlhf_tir.user_code.plugins import load as load_plugin


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A reward that imports a module and a package beside it, one of which imports another."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "task").mkdir()
    files = {
        "mine.py": "import json, os\nfrom beside_one import last\nimport package_beside.inner as p\nimport no_such_x\n",
        "beside_one.py": "import beside_two\n\n\ndef last(text):\n    return beside_two.ONE\n",
        "beside_two.py": "ONE = 1.0\n",
        "package_beside/inner.py": "TWO = 2\n",
        "package_beside/rows.txt": "no code",
        "json.py": "raise ImportError('the standard library is meant')\n",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / "task" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "task" / name).write_text(text)
    return tmp_path / "task/mine.py"


def test_what_a_file_imports_from_beside_it_is_found(mine):
    assert sorted(neighbours(mine)) == ["beside_one.py", "beside_two.py", "package_beside/inner.py"]
    mine.write_text("def f(:\n")
    assert neighbours(mine) == {}


def of_the_reward(mine, tmp_path):
    mine.write_text("from beside_one import last\n\n\ndef score(trajectory, task, context):\n    return last('')\n")
    return load(None, {"run_dir": str(tmp_path / "run"), "reward.name": f"{mine}:score"})


def test_a_run_has_copies_of_them_and_works_without_the_originals(mine, tmp_path):
    cfg = of_the_reward(mine, tmp_path)
    frozen = freeze(cfg)
    (copy,) = files_of(frozen)
    assert copy.parents[1] == tmp_path / "run/own" and (copy.parent / "beside_two.py").is_file()
    assert freeze(frozen) == frozen, "a run that goes on keeps its copies"
    (mine.parent / "beside_two.py").write_text("ONE = 3.0\n")
    assert freeze(cfg) != frozen, "another neighbour is another copy"
    for file in mine.parent.glob("*.py"):
        file.unlink()
    assert load_plugin(REWARD, frozen.reward.name)(None, None, None) == 1.0


def test_a_submitted_job_takes_them_along(mine, tmp_path):
    of_the_reward(mine, tmp_path)
    (name,) = pack(["mine.py:score"], tmp_path / ".job-1", mine.parent)
    assert (tmp_path / name.partition(":")[0]).with_name("beside_one.py").is_file()


def test_two_modules_of_one_name_are_refused(mine, tmp_path):
    cfg = of_the_reward(mine, tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    (other / "beside_one.py").write_text("last = None\n")
    (other / "keep.py").write_text("from beside_one import last\n\n\ndef keep(group, options):\n    return True, ''\n")
    cfg = load(
        None, {"run_dir": str(cfg.run_dir), "reward.name": cfg.reward.name, "filter.names": [f"{other}/keep.py:keep"]}
    )
    with pytest.raises(ConfigError) as refused:
        freeze(cfg)
    assert refused.value.code == "user_code"
