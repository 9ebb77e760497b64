"""Modules beside a user's file go with it: they are found, copied, and imported from the copy."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from pathlib import Path

import pytest

from openrlhf_tir.cli.checks.names import conventions_of
from openrlhf_tir.config.changes import changes, dumped
from openrlhf_tir.config.own_files import files_of, freeze
from openrlhf_tir.config.packed_command import pack
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.filters import FILTER
from openrlhf_tir.rewards import REWARD
from openrlhf_tir.user_code import neighbours as module
from openrlhf_tir.user_code.neighbours import neighbours
from openrlhf_tir.user_code.plugins import load as load_plugin


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch):
    """A process that has loaded none of the modules of these tests."""
    monkeypatch.setattr(module._FINDER, "files", {})
    for name in [name for name in sys.modules if "beside" in name.partition(".")[0]]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def mine(tmp_path):
    """A reward that imports a module and a package beside it, one of which imports another."""
    (tmp_path / "task").mkdir()
    files = {
        "mine.py": "import json, os\nfrom beside_one import last\nimport package_beside.inner as p\n"
        "import no_such_x, compiled_beside\n",
        "beside_one.py": "import beside_two\n\n\ndef last(text):\n    return beside_two.ONE\n",
        "beside_two.py": "ONE = 1.0\n",
        "package_beside/inner.py": "TWO = 2\n",
        "package_beside/of_inner.py": "from .unused import TWO\n",
        "package_beside/rows.txt": "data",
        "package_beside/.hidden": "",
        "package_beside/__pycache__/inner.pyc": "",
        f"compiled_beside{EXTENSION_SUFFIXES[0]}": "",
        "json.py": "raise ImportError('the standard library is meant')\n",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / "task" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "task" / name).write_text(text)
    return tmp_path / "task/mine.py"


def test_what_a_file_imports_from_beside_it_is_found(mine):
    assert sorted(neighbours(mine)) == [
        "beside_one.py",
        "beside_two.py",
        f"compiled_beside{EXTENSION_SUFFIXES[0]}",
        "package_beside/inner.py",
        "package_beside/of_inner.py",
        "package_beside/rows.txt",
    ]
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


def test_a_resume_compares_a_copy_with_its_original_and_the_modules_beside_both(mine, tmp_path):
    cfg = of_the_reward(mine, tmp_path)
    saved = dumped(freeze(cfg))
    assert changes(saved, cfg) == ([], [])
    (mine.parent / "beside_two.py").write_text("ONE = 3.0\n")
    assert [change.field for side in changes(saved, cfg) for change in side] == ["reward.name"]


def test_a_submitted_job_takes_them_along(mine, tmp_path):
    of_the_reward(mine, tmp_path)
    (name,) = pack(["mine.py:score"], tmp_path / ".job-1", mine.parent)
    assert (tmp_path / name.partition(":")[0]).with_name("beside_one.py").is_file()


KEEP = "from beside_one import last\n\n\ndef keep(group, options):\n    return last('') == 2.0, ''\n"


def with_a_filter(cfg, directory, helper):
    """The configuration with a filter from another directory, which has a module of the reward's neighbour's name."""
    directory.mkdir()
    (directory / "beside_one.py").write_text(helper)
    (directory / "keep.py").write_text(KEEP)
    names = {"reward.name": cfg.reward.name, "filter.names": [f"{directory}/keep.py:keep"]}
    return load(None, {"run_dir": str(cfg.run_dir), **names})


@pytest.mark.parametrize("loaded_before", [False, True])
def test_two_modules_of_one_name_are_refused_whatever_is_loaded(mine, tmp_path, loaded_before):
    cfg = with_a_filter(of_the_reward(mine, tmp_path), tmp_path / "other", "def last(text):\n    return 2.0\n")
    if loaded_before:
        assert conventions_of(cfg)
    with pytest.raises(ConfigError) as refused:
        freeze(cfg)
    assert refused.value.code == "user_code"


def test_each_file_has_its_own_modules_in_one_process(mine, tmp_path):
    cfg = with_a_filter(of_the_reward(mine, tmp_path), tmp_path / "other", "def last(text):\n    return 2.0\n")
    score, keep = load_plugin(REWARD, cfg.reward.name), load_plugin(FILTER, cfg.filter.names[0])
    assert score(None, None, None) == 1.0 and keep(None, None) == (True, "")


def test_the_same_module_in_two_directories_is_copied_for_both(mine, tmp_path):
    cfg = of_the_reward(mine, tmp_path)
    cfg = with_a_filter(cfg, tmp_path / "other", (mine.parent / "beside_one.py").read_text())
    (tmp_path / "other/beside_two.py").write_text((mine.parent / "beside_two.py").read_text())
    fresh = freeze(cfg, tmp_path / "fresh")
    assert conventions_of(cfg)
    copies = files_of(freeze(cfg))
    assert [copy.name for copy in copies] == [copy.name for copy in files_of(fresh)], "independent of what is loaded"
    assert all((copy.parent / "beside_two.py").is_file() for copy in copies)


def inner_of(directory, change=""):
    """The module package_beside.inner that a reward in a directory gets, whose own text has changed."""
    text = "import package_beside.inner as inner\n\n\ndef score(trajectory, task, context):\n    return inner\n"
    (directory / "mine.py").write_text(f"{text}{change}")
    return load_plugin(REWARD, f"{directory}/mine.py:score")(None, None, None)


def test_a_module_that_was_imported_from_the_current_directory_is_not_the_one_beside_a_file(
    mine, tmp_path, monkeypatch
):
    (tmp_path / "here/package_beside").mkdir(parents=True)
    (tmp_path / "here/package_beside/inner.py").write_text("TWO = 22\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.syspath_prepend("")
    assert importlib.import_module("package_beside.inner").TWO == 22
    assert inner_of(mine.parent).TWO == 2


def test_a_module_is_loaded_again_when_it_has_changed_or_another_directory_is_meant(mine, tmp_path):
    first = inner_of(mine.parent)
    assert inner_of(mine.parent, "# the same modules") is first
    (mine.parent / "package_beside/inner.py").write_text("TWO = 200\n")
    assert inner_of(mine.parent, "# others").TWO == 200
    shutil.copytree(mine.parent, tmp_path / "other")
    assert inner_of(tmp_path / "other").__file__ == str(tmp_path / "other/package_beside/inner.py")


def test_a_module_that_the_program_has_imported_from_beside_the_file_is_the_same(mine, monkeypatch):
    monkeypatch.syspath_prepend(mine.parent)
    mine.write_text("import beside_two\n\n\ndef score(trajectory, task, context):\n    return beside_two\n")
    imported = importlib.import_module("beside_two")
    assert load_plugin(REWARD, f"{mine}:score")(None, None, None) is imported


def test_files_of_a_run_share_the_modules_that_are_the_same(mine, tmp_path):
    """So an object of a class of theirs that one file makes is one for the other, too."""
    cfg = of_the_reward(mine, tmp_path)
    cfg = with_a_filter(cfg, tmp_path / "other", (mine.parent / "beside_one.py").read_text())
    (tmp_path / "other/beside_two.py").write_text((mine.parent / "beside_two.py").read_text())
    original = load_plugin(REWARD, cfg.reward.name).__globals__["last"]
    frozen = freeze(cfg)
    of_reward = load_plugin(REWARD, frozen.reward.name).__globals__["last"]
    of_filter = load_plugin(FILTER, frozen.filter.names[0]).__globals__["last"]
    assert of_reward is of_filter and of_reward is not original


@pytest.mark.parametrize("on_path", ["", "."])
def test_the_current_directory_and_that_of_the_file_install_nothing(mine, tmp_path, monkeypatch, on_path):
    before = neighbours(mine)
    (tmp_path / "beside_one.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(on_path)
    monkeypatch.syspath_prepend(mine.parent)
    assert neighbours(mine) == before


@pytest.mark.parametrize(
    ("installed", "is_neighbour"),
    [("package_beside", False), ("beside_one", True)],
)
def test_a_directory_on_the_path_is_preferred_to_no_module(mine, tmp_path, monkeypatch, installed, is_neighbour):
    """As Python prefers: `package_beside` is such a directory, too, and beside_one.py is a module."""
    (tmp_path / "installed" / installed).mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    assert any(file.startswith(installed) for file in neighbours(mine)) is is_neighbour


@pytest.mark.parametrize("name", ["package_beside", "beside_one"])
def test_an_editable_install_is_no_neighbour(mine, tmp_path, monkeypatch, name):
    class Editable:
        """As setuptools' finder: it comes after PathFinder."""

        @staticmethod
        def find_spec(fullname, path=None, target=None):
            return PathFinder.find_spec(name, [str(tmp_path / "installed")]) if fullname == name else None

    (tmp_path / "installed" / name).mkdir(parents=True)
    (tmp_path / "installed" / name / "__init__.py").write_text("last = None\n")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable])
    assert not any(file.startswith(name) for file in neighbours(mine))


def test_a_package_with_much_data_is_refused(mine, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 10_000)
    (mine.parent / "package_beside/rows.txt").write_bytes(bytes(10_000))
    for use_of_it in neighbours, lambda path: load_plugin(REWARD, f"{path}:score"):
        with pytest.raises(ConfigError) as refused:
            use_of_it(mine)
        assert refused.value.code == "user_code"


@pytest.mark.slow
def test_a_run_reads_the_copies_where_the_originals_are_on_the_path(mine, tmp_path):
    (mine.parent / "package_beside/rows.txt").write_text("1.0")
    mine.write_text(
        "import pathlib\nimport package_beside.inner as inner\n\n\ndef score(trajectory, task, context):\n"
        "    import beside_two\n\n    rows = pathlib.Path(inner.__file__).with_name('rows.txt').read_text()\n"
        "    return beside_two.ONE + float(rows)\n"
    )
    name = freeze(load(None, {"run_dir": str(tmp_path / "run"), "reward.name": f"{mine}:score"})).reward.name
    (mine.parent / "json.py").unlink()
    (mine.parent / "beside_two.py").write_text("ONE = 30.0\n")
    (mine.parent / "package_beside/rows.txt").write_text("50.0")
    program = (
        "import sys\nfrom openrlhf_tir.rewards import REWARD\nfrom openrlhf_tir.user_code.plugins import load\n"
        f"before = [*sys.path]\nprint(load(REWARD, {name!r})(None, None, None))\nassert sys.path == before\n"
    )
    root = str(Path(__file__).parents[3])
    for directory, path in (mine.parent, root), (tmp_path, f"{mine.parent}{os.pathsep}{root}"):
        environment = os.environ | {"PYTHONPATH": path}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == "2.0\n", done.stderr
