"""Every code block of the documentation works: it is run, loaded, parsed against the program, or named here with the
test that runs it."""

from __future__ import annotations

import ast
import inspect
import json
import re
import shlex
import tomllib
from functools import cache
from importlib.util import find_spec

import pytest

from openrlhf_tir import filters, rewards
from openrlhf_tir.algorithms.advantages import get_estimator
from openrlhf_tir.algorithms.losses import own
from openrlhf_tir.cli import main
from openrlhf_tir.cli.command_line import COMMANDS, build_parser
from openrlhf_tir.config.flags import check_unknown, overrides_of
from openrlhf_tir.config.settings import load
from openrlhf_tir.filters.samples import SAMPLE_FILTER
from openrlhf_tir.rollout import protocols
from openrlhf_tir.user_code import plugins

from .docs_blocks import DOCS, REPO, Block, block, blocks

FILES = {
    "brevity.py": ("rewards.md", "def earned"),
    "mine.py": ("algorithms.md", "def plain_gradient"),
    "digits.py": ("protocols.md", "class Digits"),
    "asks.py": ("protocols.md", "class Asks"),
    "guess.py": ("environments.md", "class GuessEnv"),
    "sql.py": ("environments.md", "class Database"),
    "my_rewards.py": ("coming_from_trl.md", "def accuracy"),
    "my_tools.py": ("coming_from_trl.md", "def multiply"),
    "lock.py": ("tutorial.md", "class Lock"),
    "brief.py": ("own_task.md", "def score"),
    "shop.py": ("README.md", "def price"),
    "own.py": ("extend.md", "class Coin"),
}
"""Files of one's own that recipes of the pages name."""
RECIPES = "the recipes below"
RUN_BY = {
    (
        "rollout.md",
        "python",
        "http.post(",
    ): "an outline of examples/openai_agent.py, which tests/e2e/agents/test_openai_sessions.py runs",
    ("run_elsewhere.md", "python", "def answer"): "tests/contract/docs/test_run_elsewhere.py",
    ("run_elsewhere.md", "python", "def server_sampler"): "tests/contract/docs/test_run_elsewhere.py",
    ("run_elsewhere.md", "python", "def last_message"): "tests/contract/docs/test_run_elsewhere.py",
    ("environments.md", "python", "class GuessEnv"): "tests/e2e/test_guess_game.py",
    ("environments.md", "python", "class Database"): "tests/contract/envs/test_env_own_class.py",
    ("protocols.md", "python", "class Digits"): "tests/e2e/test_guess_game.py",
    ("protocols.md", "python", "class Asks"): "tests/e2e/test_guess_game.py",
    ("rewards.md", "python", "def earned"): RECIPES,
    ("algorithms.md", "python", "def plain_gradient"): RECIPES,
    ("openrlhf_files.md", "python", "class AgentInstance"): "tests/e2e/agents/test_openrlhf_files.py",
    ("openrlhf_files.md", "python", "def reward_func"): "tests/contract/test_remote_reward.py",
    ("coming_from_verl.md", "python", "def compute_score"): "tests/contract/docs/test_coming_from.py",
    ("coming_from_trl.md", "python", "def accuracy"): "tests/contract/docs/test_coming_from.py",
    ("coming_from_trl.md", "python", "def multiply"): "tests/contract/docs/test_coming_from.py",
    ("gsm8k.md", "python", "make_gsm8k.py"): "tests/contract/docs/test_coming_from.py",
    ("README.md", "python", "def price"): "tests/contract/docs/test_coming_from.py",
    ("tutorial.md", "python", "save_model"): "test_the_tutorial_gets_as_far_as_its_checks",
    ("tutorial.md", "python", "def share"): "test_the_tutorial_gets_as_far_as_its_checks",
    ("tutorial.md", "python", "class Lock"): "test_the_tutorial_gets_as_far_as_its_checks",
    ("own_task.md", "python", "def score"): RECIPES,
    ("extend.md", "python", "class Coin"): "test_the_page_of_own_parts_passes_every_check",
}
"""Python blocks: (page, language, a text that it holds) -> what runs it."""
NOT_RECIPES = {("rollout.md", "[env_urls]"): "control.toml", ("simulation.md", "[[faults]]"): "a workload's faults"}
OTHER_PROGRAMS = {"pre-commit", "export", "cd", "cp", "pip", "curl", "vllm", "bfcl", "docker", "kubectl", "sbatch"}
PACKAGED = {path.stem for path in (REPO / "openrlhf_tir/config/recipes").glob("*.toml")}
ALL = blocks()
SHELL = ("bash", "console")


def ids(b: Block) -> str:
    return f"{b.page}:{b.line}"


def of(*languages: str) -> list[Block]:
    return [b for b in ALL if b.language in languages]


def test_every_block_has_a_language_that_a_test_treats():
    strange = [
        f"{b.page}:{b.line}: {b.language!r}"
        for b in ALL
        if b.language not in ("", "python", "toml", "json", "mermaid", *SHELL)
    ]
    assert strange == []
    for b in of(""):
        commands = [
            line for line in b.text.splitlines() if re.match(r"\$?\s*(openrlhf-tir|python3?|bash|pip|curl) ", line)
        ]
        assert not commands, (
            f"{b.page}:{b.line} holds a command and no language: {commands[0]!r}. Begin the block with ```bash."
        )


@pytest.mark.parametrize("b", of("python"), ids=ids)
def test_a_python_block_compiles_and_something_runs_it(b):
    ast.parse(b.text, f"docs/{b.page}")
    by = [test for (page, _, holds), test in RUN_BY.items() if page == b.page and holds in b.text]
    assert len(by) == 1, f"{b.page}:{b.line}: no test runs this block. Write one and name it in RUN_BY."
    where = next((b.page, holds) for page, _, holds in RUN_BY if page == b.page and holds in b.text)
    if by[0] == RECIPES:
        assert where in FILES.values()
    elif found := re.fullmatch(r"tests/\S+\.py", by[0]):
        assert takes_block((REPO / found[0]).read_text(), *where), (
            f"{by[0]} does not take this block: it has no block({b.page!r}, 'python', {where[1]!r})"
        )
    elif found := re.fullmatch(r"test_\w+", by[0]):
        assert takes_block(inspect.getsource(globals()[found[0]]), *where), f"{by[0]} does not take this block"
    else:
        (named,) = re.findall(r"tests/\S+?\.py", by[0])
        assert (REPO / named).is_file(), f"{named} is not there"


def takes_block(code: str, page: str, holds: str) -> bool:
    """Whether it calls `block` for this block. An argument may be a constant's name, or a parameter, whose text then
    stands elsewhere in the code."""
    nodes = [*ast.walk(ast.parse(code))]
    texts = {n.value for n in nodes if isinstance(n, ast.Constant)}
    named = {
        n.targets[0].id: n.value for n in nodes if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    calls = [
        n.args
        for n in nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "block" and len(n.args) == 3
    ]

    def fits(arg: ast.expr, text: str) -> bool:
        arg = named.get(arg.id, arg) if isinstance(arg, ast.Name) else arg
        return arg.value == text if isinstance(arg, ast.Constant) else text in texts

    return any(all(map(fits, args, (page, "python", holds))) for args in calls)


def test_a_test_that_does_not_take_a_block_is_found():
    code = 'PAGE = "a.md"\ndef test(): run(block(PAGE, "python", "class A"))\ndef other(): see("class B", "b.md")\n'
    assert takes_block(code, "a.md", "class A")
    assert (
        not takes_block(code, "a.md", "class B")
        and not takes_block(code, "b.md", "class A")
        and not takes_block(code, "b.md", "class B")
    )


def test_a_json_block_is_json():
    for b in of("json"):
        json.loads(b.text)


def is_recipe(b: Block) -> bool:
    return not any(b.page == page and holds in b.text for page, holds in NOT_RECIPES)


@pytest.mark.slow
@pytest.mark.parametrize("b", of("toml"), ids=ids)
def test_a_recipe_of_the_pages_loads_with_the_functions_that_it_names(b, tmp_path):
    if not is_recipe(b):
        assert tomllib.loads(b.text)
        return
    for name, (where, holds) in FILES.items():
        (tmp_path / name).write_text(block(where, "python", holds))
    if b.page in ("tutorial.md", "extend.md"):
        (tmp_path / "first.toml").write_text(block("tutorial.md", "toml", "digits.py:share"))
    if b.page == "tutorial.md" and "digits.py:share" in b.text:
        (tmp_path / "digits.py").write_text(block("tutorial.md", "python", "def share"))
    if b.page == "protocols.md":
        (tmp_path / "guess.toml").write_text(block("protocols.md", "toml", "digits.py:Digits"))
    (tmp_path / "r.toml").write_text(b.text)
    cfg = load(str(tmp_path / "r.toml"))
    get_estimator(cfg.algo.advantage.estimator)
    assert cfg.actor.own_loss is None or plugins.load(own.POLICY_LOSS, cfg.actor.own_loss)
    for e in cfg.environments.values():
        protocols.check(e.env)
        filters.filters_of(e.filter)
        for name in e.reward.weights or [e.reward.name]:
            rewards.load(name)
        for place, name in (
            (rewards.GROUP_REWARD, e.reward.group),
            (SAMPLE_FILTER, e.filter.sample),
            (plugins.ENVIRONMENT, e.env.file),
        ):
            assert name is None or plugins.load(place, name)


def test_the_file_of_a_running_runs_control_is_what_the_controller_reads(tmp_path):
    from openrlhf_tir.cluster.jobs.control import read

    (tmp_path / "control.toml").write_text(block("rollout.md", "toml", "[env_urls]"))
    assert read(tmp_path / "control.toml").rollout_actors == 4


def test_the_faults_of_a_workload_are_what_the_simulator_reads(tmp_path):
    from openrlhf_tir.simulation.faults import read_faults
    from openrlhf_tir.simulation.workload import Workload

    seed = (REPO / "openrlhf_tir/simulation/workload_seed.toml").read_text()
    (tmp_path / "w.toml").write_text(seed + "\n" + block("simulation.md", "toml", "[[faults]]"))
    assert Workload.read(tmp_path / "w.toml") and read_faults(tmp_path / "w.toml")[-1].kind == "actor_death"


def commands() -> list[tuple[str, str]]:
    """(page:line, command) of every line of a shell block; continued lines are joined, comments and what only shows
    output left out."""
    found = []
    for b in of(*SHELL):
        lines = b.text.replace("\\\n", " ").splitlines()
        wanted = [line[2:] for line in lines if line.startswith("$ ")] if b.language == "console" else lines
        found += [(f"{b.page}:{b.line}", line) for line in wanted if line.strip() and not line.lstrip().startswith("#")]
    return found


@pytest.mark.parametrize(("where", "line"), commands(), ids=lambda v: v.partition(" ")[0] if ":" in v else v[:50])
def test_a_command_of_the_pages_is_one_that_the_program_takes(where, line):
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        del words[0]
    for sign in (">", "|", "&"):
        words = words[: words.index(sign)] if sign in words else words
    words = [w for w in words if w != "..."]
    program = words[0].rpartition("/")[2]
    if program == "openrlhf-tir":
        takes(words[1:])
    elif program in ("python", "python3"):
        python(where, words[1:])
    elif program == "bash":
        assert (REPO / words[1]).is_file(), f"{where}: {words[1]} is not there"
        if words[1] == "train_scripts/train.sh":
            takes(["train", *words[2:]])
        elif words[1] == "train_scripts/quickstart.sh":
            takes(["quickstart", *words[2:]])
    else:
        assert program in OTHER_PROGRAMS, (
            f"{where}: {program} is no program of ours. Name it in OTHER_PROGRAMS if readers have it."
        )


def test_what_the_pages_show_of_a_quickstart_is_kept_by_its_recipe():
    """`play runs/quickstart --step K` finds every group of the step."""
    assert any("play runs/quickstart --step" in line for _, line in commands())
    assert load("quickstart_cpu").logger.trajectories == 1.0


parser_of = cache(build_parser)


def takes(words: list[str]) -> None:
    """The command line is parsed as the program parses it, and makes a configuration: unknown commands, flags and
    choices are refused."""
    if words[1:2] == ["--help"] or "--help" in words:
        assert words[0] in COMMANDS
        return
    args, extra = parser_of(words[0]).parse_known_args(words)
    check_unknown(extra)
    assert args.command == words[0]
    if args.command in ("train", "eval", "show-config") and args.recipe in PACKAGED:
        load(args.recipe, overrides_of(args))  # settings that do not go together are refused


def python(where: str, words: list[str]) -> None:
    if words[0] == "-m":
        assert find_spec(words[1]), f"{where}: there is no module {words[1]}"
    elif words[0] == "-c":
        ast.parse(words[1])
    else:
        described = [b for b in of("python") if words[0].rpartition("/")[2] in b.text.splitlines()[0]]
        assert described or (REPO / words[0]).is_file(), f"{where}: no page and no directory has {words[0]}"


def test_a_command_that_the_program_does_not_take_is_found():
    from openrlhf_tir.errors import ConfigError

    for wrong in (
        ["train", "--actor.learning_rat", "1"],
        ["trian"],
        ["report"],
        ["train", "--recipe", "zerotir_7b", "--reward.name", "env"],
    ):
        with pytest.raises((ConfigError, SystemExit)):
            takes(wrong)


@pytest.mark.slow
def test_the_tutorial_gets_as_far_as_its_checks(tmp_path, monkeypatch, capsys):
    """Its files in a directory, `make.py` run, and both recipes through every check that needs no training."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.py").write_text(block("tutorial.md", "python", "def share"))
    (tmp_path / "first.toml").write_text(block("tutorial.md", "toml", "digits.py:share"))
    exec(compile(block("tutorial.md", "python", "save_model"), "make.py", "exec"), {})
    assert main(["train", "--recipe", "first.toml", "--check-only"]) == 0
    assert re.search(r"\b16 \w+ \w+\s", capsys.readouterr().out)
    (tmp_path / "lock.py").write_text(block("tutorial.md", "python", "class Lock"))
    (tmp_path / "second.toml").write_text(block("tutorial.md", "toml", "lock.py:Lock"))
    assert main(["train", "--recipe", "second.toml", "--check-only"]) == 0


@pytest.mark.slow
def test_the_page_of_own_parts_passes_every_check(tmp_path, monkeypatch):
    """A reward, filter, environment, turn protocol and estimator of one file, from the tutorial's directory on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.toml").write_text(block("tutorial.md", "toml", "digits.py:share"))
    exec(compile(block("tutorial.md", "python", "save_model"), "make.py", "exec"), {})
    (tmp_path / "own.py").write_text(block("extend.md", "python", "class Coin"))
    (tmp_path / "own.toml").write_text(block("extend.md", "toml", "own.py:Coin"))
    assert main(["train", "--recipe", "own.toml", "--check-only"]) == 0


@pytest.mark.long
def test_the_tutorials_model_learns_to_write_digits(tmp_path):
    """All of it on the real stack."""
    from openrlhf_tir.telemetry import metrics
    from tests.e2e.test_guess_game import command

    (tmp_path / "make.py").write_text(block("tutorial.md", "python", "save_model"))
    (tmp_path / "digits.py").write_text(block("tutorial.md", "python", "def share"))
    (tmp_path / "first.toml").write_text(block("tutorial.md", "toml", "digits.py:share"))
    exec(
        compile(f"import os; os.chdir({str(tmp_path)!r})\n" + (tmp_path / "make.py").read_text(), "make.py", "exec"), {}
    )
    done = command("train", "--recipe", "first.toml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    rewards_by_step = metrics.read(tmp_path / "run")["reward_mean"]
    assert sum(rewards_by_step[-3:]) > 1.5 * sum(rewards_by_step[:3])
    for args in (("play", "run", "--step", "6"), ("audit", "run"), ("report", "run")):
        assert command(*args, cwd=tmp_path).returncode == 0
    (tmp_path / "lock.py").write_text(block("tutorial.md", "python", "class Lock"))
    (tmp_path / "second.toml").write_text(block("tutorial.md", "toml", "lock.py:Lock"))
    for args in (("train", "--recipe", "second.toml"), ("play", "run_lock", "--step", "6")):
        done = command(*args, cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_tables_name_every_registered_filter_and_setting():
    page = (DOCS / "rewards.md").read_text()
    assert all(f"| `{name}` |" in page for name in filters.FILTER.registry)
    assert all(
        f"| `{setting}` |" in page
        for setting in ("reward.name", "reward.weights", "reward.group", "filter.names", "filter.sample")
    )
