"""The launch scripts as they stand, with --check-only: set-up, Ray and ssh are stand-ins, the command line behind them
is the real one.

And every command of docs/recipes.md, with rows of the method's own schema under the names that the page gives them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import pytest

from miniatures.toy.tokenizer import save_tokenizer
from openrlhf_tir.cli import main
from openrlhf_tir.cli.command_line import build_parser
from openrlhf_tir.cli.configuration import config_of
from openrlhf_tir.cluster.env_process import server_flags
from openrlhf_tir.config.servers import SERVERS
from openrlhf_tir.config.settings import RECIPES, load
from openrlhf_tir.data.prepare.files import write_rows
from tests.contract.docs.docs_blocks import REPO, blocks
from tests.contract.env_process import env_server
from tests.data.make_samples import rows
from tests.free_port import free_port
from tests.model_files import weights
from tests.ordinary import ordinary_first
from tests.unit.cli.test_recipes_check import CHATML, SAMPLES

SCRIPTS = {p.name: p.stem for p in sorted((REPO / "train_scripts").glob("*.sh")) if p.stem in SAMPLES}
"""Script -> its recipe, which has its name."""
FILES = {
    "orz_math_57k_collected.json": "orz.json",
    "dapo.parquet": "dapo.parquet",
    "train.parquet": "torl.parquet",
    "rlla_4k.parquet": "toolrl.jsonl",
    "tooln1.parquet": "tooln1.jsonl",
    "nq_hotpotqa.parquet": "searchr1.jsonl",
    "bfcl.jsonl": "bfcl_multi_turn.jsonl",
}
"""A data set that the page names -> the sample whose rows stand for it."""


def model_in(directory: Path) -> Path:
    """A config, a header of weights, and a tokenizer that loads: `--check-only` plays episodes with it."""
    save_tokenizer(directory)
    for name, text in (
        ("config.json", '{"model_type": "qwen2", "hidden_size": 128, "num_attention_heads": 4}'),
        ("chat_template.jinja", CHATML),
    ):
        (directory / name).write_text(text)
    (directory / "model.safetensors").write_bytes(weights())
    return directory


def enough(sample: list, n: int) -> list:
    return [sample[i % len(sample)] for i in range(n)]


@pytest.fixture
def scripts(tmp_path):
    """A copy of train_scripts beside a .venv whose python is ours and whose ray does nothing until it is ended."""
    shutil.copytree(REPO / "train_scripts", tmp_path / "train_scripts")
    (tmp_path / "train_scripts/setup_env.sh").write_text("exit 0\n")
    binaries = tmp_path / ".venv/bin"
    binaries.mkdir(parents=True)
    joined = 'if [[ $1 == - ]]; then cat > /dev/null; echo "nodes joined"; exit 0; fi'
    for name, text in (("python", f'{joined}\nexec {sys.executable} "$@"'), ("ray", "exec sleep 600")):
        (binaries / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (binaries / name).chmod(0o755)
    return tmp_path / "train_scripts"


def test_every_recipe_on_gpus_has_a_script_and_the_page_names_every_recipe():
    assert set(SCRIPTS.values()) == set(SAMPLES)
    page = (REPO / "docs/recipes.md").read_text()
    for script, recipe in SCRIPTS.items():
        assert f"--recipe {recipe} " in (REPO / "train_scripts" / script).read_text()
    assert [p.stem for p in RECIPES.glob("*.toml") if f"`{p.stem}`" not in page] == []
    assert all(os.access(REPO / "train_scripts" / script, os.X_OK) for script in SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_hands_its_recipe_and_every_word_of_the_caller_to_the_launcher(script, scripts, tmp_path):
    for launcher in ("launch_multinode.sh", "train.sh"):
        (scripts / launcher).write_text(f"printf '%s\\0' \"$@\" > {tmp_path}/{launcher}\n")
    given = ["--data.prompt_dataset", "a file.jsonl", "--check-only"]
    subprocess.run(["bash", scripts / script, *given], env={**os.environ, "HOSTS": "a,b"}, check=True, timeout=60)
    nodes = load(SCRIPTS[script]).actor.num_nodes
    asked = ["--recipe", SCRIPTS[script], *given]
    if (on_one := tmp_path / "train.sh").exists():
        assert nodes == 1 and on_one.read_text().split("\0")[:-1] == asked
    else:
        words = (tmp_path / "launch_multinode.sh").read_text().split("\0")[:-1]
        assert words == ["--hosts", "a,b", "--", *asked]


@pytest.mark.parametrize(
    "script", [name for name in SCRIPTS if "HOSTS=" in (REPO / "train_scripts" / name).read_text()]
)
def test_a_script_of_several_nodes_says_which_servers_its_recipe_needs(script):
    header = (REPO / "train_scripts" / script).read_text()
    assert "--env.url URLS" in header
    (words,) = re.findall(r"`start_env_servers\.sh (-h ADDRESS.*?)`", header)
    options, _, flags = words.partition(" -- ")
    env = load(SCRIPTS[script]).env
    name = re.search(r"-e (\w+)", options)
    assert (name[1] if name else "python_tir") == env.name
    args = import_module(f"{SERVERS[env.name].module}.__main__").parser().parse_args(flags.split())
    if SERVERS[env.name].takes_code_timeout:
        assert args.code_timeout == env.code_timeout_s


@pytest.mark.slow
@pytest.mark.extended
def test_a_script_checks_its_recipe(scripts, tmp_path, env_server):
    """On several nodes. The model is not on this machine, so that no episodes are played. Each recipe by itself:
    test_recipes_check.py; what goes on to the program from a script of one node: the help below."""
    script = "search_r1_7b.sh"
    recipe = SCRIPTS[script]
    data = tmp_path / "rows.json"
    write_rows(data, enough(SAMPLES[recipe], load(recipe).rollout.batch_size))
    argv = [
        "--data.prompt_dataset",
        data,
        "--run-dir",
        tmp_path / "run",
        "--check-only",
    ]
    env_server.bodies["/health"]["env"] = env_server.bodies["/schema"]["env"] = "search"
    argv += ["--env.url", env_server.url]
    env = {
        **os.environ,
        "PYTHONPATH": str(REPO),
        "TIR_VENV": str(tmp_path / ".venv"),
        "RAY_PORT": str(free_port()),
        "HOSTS": "localhost",
        "RAY_ADDRESS": "head:6379",
    }
    done = subprocess.run(
        ["bash", scripts / script, *map(str, argv)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"^check: {load(recipe).rollout.batch_size} \w+ in {re.escape(str(data))}", done.stdout, re.M)


@pytest.mark.long
def test_every_command_of_the_recipes_page_passes_on_a_machine_without_gpus(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    most = max(load(recipe).rollout.batch_size for recipe in SAMPLES)
    for name, sample in FILES.items():
        write_rows(tmp_path / name, enough(rows()[sample] if sample != "tooln1.jsonl" else rows()[sample][:1], most))
    write_rows(tmp_path / "numina.jsonl", enough(SAMPLES["artist_math_7b"], most))
    write_rows(tmp_path / "functions.jsonl", enough(SAMPLES["artist_functions_7b"], most))
    write_rows(tmp_path / "swe.jsonl", enough(SAMPLES["skyrl_v0_7b"], most))
    (tmp_path / "corpus.jsonl").write_text('{"id": "0", "contents": "Oslo"}\n')
    model_in(tmp_path / "cold_start")
    model_in(tmp_path / "stage1")
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    lines = [
        line
        for b in blocks()
        if (b.page, b.language) == ("recipes.md", "bash")
        for line in b.text.splitlines()
        if line.endswith("--check-only")
    ]
    tried = set()
    urls: dict[tuple[str, ...], str] = {}
    with ExitStack() as servers:
        for line in lines:
            address, program, *argv = shlex.split(line)
            assert (address, program) == ("RAY_ADDRESS=head:6379", "openrlhf-tir")
            if "--env.url" in argv:
                (e,) = taken(argv).environments.values()
                command = (e.server_info.module, *server_flags(e))
                command += ("--corpus", str(tmp_path / "corpus.jsonl")) if e.serves == "search" else ()
                if command not in urls:
                    urls[command], _ = servers.enter_context(env_server(command[0], tmp_path, *command[1:]))
                argv[argv.index("--env.url") + 1] = urls[command]
            assert main(argv) == 0, f"{line}\n{capsys.readouterr().err}"
            tried.add(argv[argv.index("--recipe") + 1])
    assert tried == set(SAMPLES), "the page has a command for each"


def taken(words: list[str]):
    """The configuration of a command line, as the program parses it."""
    args, _ = build_parser(words[0]).parse_known_args(words)
    return config_of(args)


@pytest.mark.slow
@pytest.mark.parametrize("script", ordinary_first(["zerotir_7b.sh", "setup_env.sh", "train.sh", "quickstart.sh"], 1))
def test_a_script_asked_for_help_gives_it(script, scripts):
    """setup_env.sh knew no --help, and a script of several nodes asked for hosts first."""
    shutil.copy(REPO / "train_scripts/setup_env.sh", scripts)
    if script in ("train.sh", "quickstart.sh"):
        (scripts / "setup_env.sh").write_text("exit 0\n")
    env = {**os.environ, "PYTHONPATH": str(REPO), "TIR_VENV": str(scripts.parent / ".venv")}
    for name in ("HOSTS", "SLURM_JOB_NODELIST"):
        env.pop(name, None)
    done = subprocess.run(
        ["bash", scripts / script, "--help"], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    command = "quickstart" if script == "quickstart.sh" else "train"
    first_line = done.stdout.partition("\n")[0]
    assert (".venv" if script == "setup_env.sh" else f"openrlhf-tir {command} ") in first_line


@pytest.mark.slow
@pytest.mark.parametrize(
    "file", ["launch_multinode.sh", "submit_ray_job.sh", "clusters/slurm.sbatch", "clusters/rayjob.yaml"]
)
def test_every_way_to_a_cluster_restarts_a_run_that_died_or_names_the_flag(file):
    """train.max_restarts is 0, so that nothing is started again by itself."""
    assert "--train.max_restarts 3" in (REPO / "train_scripts" / file).read_text()


def test_start_env_servers_names_the_servers_there_are():
    env = {**os.environ, "TIR_VENV": sys.prefix}
    done = subprocess.run(
        ["bash", REPO / "train_scripts/start_env_servers.sh", "-e", "pyton_tir"],
        env=env, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert re.search("'pyton_tir'.*: bfcl, echo, functions, gem,", done.stderr)
