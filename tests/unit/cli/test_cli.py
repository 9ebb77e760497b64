"""The command line: ways to write a flag, what a mistake prints, and that help needs nothing heavy."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import subprocess
import sys
import tomllib

import pytest

from openrlhf_tir.cli import command_line, main
from openrlhf_tir.cli.command_line import COMMANDS, build_parser
from openrlhf_tir.config.catalog import known_keys


def shown(capsys, *argv: str) -> dict:
    assert main(["show-config", "--changes", *argv]) == 0
    return tomllib.loads(capsys.readouterr().out)


def mistake(capsys, *argv: str) -> str:
    assert main(list(argv)) == 2
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("module", ["openrlhf_tir", "openrlhf_tir.cli"])
def test_the_package_is_the_command(module, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["openrlhf-tir", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0 and "import-trl" in capsys.readouterr().out


def test_short_flags_set_their_fields(capsys, tmp_path):
    ranks = ("--actor.num_gpus_per_node", "2")  # unset, it is what this machine has
    table = shown(capsys, "--seed", "7", "--run-dir", str(tmp_path), "--resume", *ranks)
    assert table == {"run_dir": str(tmp_path), "train": {"seed": 7, "resume": True}, "actor": {"num_gpus_per_node": 2}}


def test_nested_lists_and_booleans_are_written_as_in_openrlhf(capsys):
    argv = "--algo.advantage.estimator rloo --actor.eps_clip_low_high 0.1 0.3 --ds.overlap_comm --no-data.shuffle"
    argv += " --vllm.enable_prefix_caching false --actor.dual_clip=3 --actor.num_gpus_per_node 2"
    assert shown(capsys, "--run-dir", "/r", *argv.split()) == {
        "run_dir": "/r",
        "algo": {"advantage": {"estimator": "rloo"}},
        "actor": {"num_gpus_per_node": 2, "eps_clip_low_high": [0.1, 0.3], "dual_clip": 3.0},
        "ds": {"overlap_comm": True},
        "data": {"shuffle": False},
        "vllm": {"enable_prefix_caching": False},
    }


@pytest.mark.parametrize("word", ["none", "unset"])
def test_none_or_unset_unsets_an_optional_field_and_the_shown_recipe_says_so(capsys, word):
    assert main(["show-config", "--logger.tensorboard_dir", word, "--ds.zero_stage", "2", "--eval.steps", "-1"]) == 0
    table = tomllib.loads(capsys.readouterr().out)
    assert table["logger"]["tensorboard_dir"] == "unset"
    assert "max_staleness" not in table["pipeline"]
    assert (table["ds"]["zero_stage"], table["eval"]["steps"]) == (2, -1)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("show-config --actor.lerning_rate 1", r"'actor\.lerning_rate'.*'actor\.learning_rate'"),
        ("show-config --rollout.batch_size many", r"rollout\.batch_size = 'many'"),
        ("train --recipe nowhere.toml", "'nowhere.toml'"),
        (
            "show-config --critic.learning_rate 1",
            r"--critic\.learning_rate .*\(algo\.advantage\.estimator = 'reinforce_baseline'\)",
        ),
        ("show-config --pipeline.max_staleness -1", r"pipeline\.max_staleness = '-1'"),
        ("show-config stray", "'stray'"),
        ("train --rollout.batch_size", r"--rollout\.batch_size"),
        ("trian", "'trian'"),
        ("distill runs", "--out"),
        ("", "COMMAND"),
        ("report nowhere", r" nowhere\. .*--run-dir"),
        ("simulate --gpus 8 --plot plan.png", r"--plot .*--gpus "),
    ],
)
def test_a_mistake_prints_one_line_and_exits_with_2(capsys, argv, expected):
    err = mistake(capsys, *argv.split())
    assert re.search(expected, err)
    assert len(err.strip().splitlines()) == 1


def test_what_does_not_answer_now_has_an_exit_code_of_its_own(capsys):
    assert main(["check-env", "http://127.0.0.1:9", "--timeout", "1"]) == 4
    assert capsys.readouterr().err.startswith("Unavailable: http://127.0.0.1:9/health ")


def test_what_a_server_says_of_itself_cannot_steer_the_terminal(env_server, capsys):
    env_server.bodies["/health"]["isolation"] = "\x1b[2Jnone"
    env_server.bodies["/schema"]["action"] = "\x1b[31mcode"
    assert main(["check-env", env_server.url, "--quick"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "[2Jnone" in out and "[31mcode" in out


def test_a_package_that_is_not_installed_is_a_mistake_with_a_code(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["size", "--actor.model_name_or_path", "a/model-of-the-hub", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == "not_installed"


def test_another_version_of_a_library_is_not_taken_for_a_missing_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", None)
    monkeypatch.setattr(command_line, "_module", lambda name: importlib.import_module("huggingface_hub.errors"))
    with pytest.raises(ModuleNotFoundError):
        main(["recipes"])


def test_a_module_of_ours_that_is_missing_is_a_bug_and_has_its_traceback(monkeypatch):
    monkeypatch.setitem(sys.modules, "openrlhf_tir.cli.recipes", None)
    with pytest.raises(ModuleNotFoundError):
        main(["recipes"])


def test_help_names_every_field_with_its_default(capsys):
    with pytest.raises(SystemExit) as e:
        main(["train", "--help-all"])
    assert e.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{key}" in text for key in known_keys() if key != "run_dir")
    assert re.search(r"(?s)--actor\.eps_clip_low_high\b(?:(?!\n  --).)*\[0\.2 0\.28\]", text)
    assert "--critic.adam.lr" not in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    assert build_parser(command).format_help()


@pytest.mark.slow
def test_help_imports_nothing_heavy():
    heavy = [
        "torch", "ray", "vllm", "deepspeed", "openrlhf", "transformers", "datasets", "pandas", "numpy", "aiohttp",
        "fastapi", "uvicorn", "rich",
    ]  # fmt: skip
    code = "import sys\nfrom openrlhf_tir.cli import main\ntry: main(['train', '--help'])\nexcept SystemExit: pass\n"
    code += f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.slow
def test_preflight_imports_nothing_that_the_base_install_lacks():
    heavy = ("torch", "ray", "vllm", "deepspeed", "openrlhf", "transformers", "datasets", "pyarrow")
    code = f"import sys, openrlhf_tir.cli.preflight\nprint([m for m in {heavy} if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


@pytest.mark.slow
def test_a_reader_that_leaves_ends_a_command_without_a_traceback():
    process = subprocess.Popen(
        [sys.executable, "-m", "openrlhf_tir.cli", "recipes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1


def test_ctrl_c_during_the_imports_is_said_without_a_traceback(monkeypatch, capsys):
    class Interrupted:
        def find_spec(self, name, *args):
            if name == "openrlhf_tir.cli.command_line":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "openrlhf_tir.cli.command_line")
    monkeypatch.delattr("openrlhf_tir.cli.command_line")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert main(["recipes"]) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1
