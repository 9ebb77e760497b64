"""Methods with a real language model: every command is one that the program takes, and the claims are judged."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.real_model import attempt
from miniatures import function_calls
from miniatures.function_calls import Row
from miniatures.reproduce import bases, twins
from miniatures.reproduce.arms import Place
from miniatures.reproduce.commands import How
from miniatures.reproduce.measures import MEASURES
from miniatures.reproduce.run import reproduce, seeds_of
from miniatures.seeds import seeds
from miniatures.tasks import TASKS
from openrlhf_tir.cli import main
from openrlhf_tir.cli.command_line import build_parser
from openrlhf_tir.cli.configuration import config_of
from openrlhf_tir.cli.exit_codes import MISTAKE
from openrlhf_tir.cli.reproduce import check_words
from openrlhf_tir.config.fine_tuning import config_of as sft_config_of
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.settings import load, to_toml
from openrlhf_tir.errors import ConfigError

from .fakes import Fake, rows_of_a_run

pytestmark = [pytest.mark.extended, pytest.mark.usefixtures("undrawn")]


def go(name: str, tmp_path, fake: Fake, check=lambda words: None, seed: int = 42) -> dict:
    """Run the twin `name` with played commands."""
    how = How(9, lambda line: None, fake, check=check)
    return reproduce(twins.named(name), (seed,), tmp_path / name, tmp_path / "bases", how)


@pytest.fixture(autouse=True)
def rows_of_functions(monkeypatch):
    """Put two rows in the place of BFCL's, which are in a package of their own."""
    function = {"name": "weather", "description": "-", "parameters": {"properties": {}, "required": []}}
    rows = [Row("simple", f"simple-{i}", f"Weather {i}?", (function,), ({"weather": {}},)) for i in range(2)]
    monkeypatch.setattr(function_calls, "data_directory", Path)
    monkeypatch.setattr(function_calls, "read", lambda directory: rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", twins.TWINS)
@pytest.mark.parametrize("gpus", [0, 1])
def test_every_command_of_every_arm_is_one_that_the_program_takes(name, gpus, tmp_path, monkeypatch):
    monkeypatch.setattr(twins, "usable_gpus", lambda: gpus)
    twin = twins.named(name)
    base = bases.made(twin.base, 42, tmp_path / "bases", How(9, lambda line: None, Fake()))
    seed_dir = tmp_path / "out" / "seed-42"
    for arm_name, arm in twin.arms.items():
        place = Place(seed_dir / arm_name, seed_dir, base, (), 42)
        for command in arm.commands(place):
            args, extra = build_parser(command.words[0]).parse_known_args(command.words)
            assert not extra
            if command.words[0] == "quickstart":
                cfg = config_of(args, makes_data=True)
                assert args.recipe.endswith("_one_gpu" if gpus else "_cpu")
                place.directory.mkdir(parents=True)
                made = cfg.model_copy(update={"data": cfg.data.model_copy(update={"prompt_dataset": "train.jsonl"})})
                (place.directory / "config.toml").write_text(to_toml(made))
            elif command.words[0] == "sft":
                problems = Problems()
                cfg = sft_config_of(args, problems)
                problems.raise_any()
            else:
                cfg = config_of(args)
                assert Path(cfg.eval.dataset).parent.name == "data"
            assert cfg.train.seed == 42
            assert cfg.run_dir.is_relative_to(tmp_path)


def test_recipes_of_both_machines_are_there_for_every_task(monkeypatch):
    for gpus in (0, 1):
        monkeypatch.setattr(twins, "usable_gpus", lambda gpus=gpus: gpus)
        assert all(load(twins.recipe_of(task)).train.share_gpus == bool(gpus) for task in TASKS)


@pytest.mark.slow
def test_the_model_is_made_once_and_the_arms_are_judged(tmp_path):
    fake = Fake(lambda arm: rows_of_a_run(0.9 if arm == "tool" else 0.1, before=0.1))
    summary = go("torl", tmp_path, fake)
    assert fake.asked == [
        ("model", "smollm2", False), ("quickstart", "tool", False), ("quickstart", "no_tool", False),
    ]  # fmt: skip
    assert summary["seen"] is True
    assert go("torl", tmp_path, fake) == summary
    assert len(fake.asked) == 3
    assert "135 million" in (tmp_path / "torl" / "index.html").read_text()


@pytest.mark.slow
def test_an_evaluation_is_by_the_settings_of_the_arm_before_it_and_has_its_kinds(tmp_path):
    rows = rows_of_a_run(0.8, before=0.5)
    for row, simple, irrelevance in ((rows[0], 0.2, 0.9), (rows[-1], 0.7, 0.1)):
        row |= {"eval/kind/simple/accuracy": simple, "eval/kind/irrelevance/accuracy": irrelevance}
    fake = Fake(lambda arm: rows)
    fake.tuned.by_kind |= {"simple": (0.6, 0.01), "irrelevance": (0.3, 0.01), "all": (0.4, 0.01)}
    summary = go("tool_n1", tmp_path, fake)
    asked = [what for what, *_ in fake.asked]
    assert asked == ["model", "quickstart", "eval", "sft", "eval"]
    arms = summary["seeds"][0]["arms"]
    assert arms["sft"]["trained_kinds_sampled"] == 0.6
    assert arms["sft"]["other_kinds_sampled"] == 0.3
    assert arms["rl"]["trained_kinds_sampled_before"] == 0.2
    assert arms["rl"]["trained_kinds_sampled"] == 0.7
    assert arms["rl"]["other_kinds_sampled"] == 0.1
    assert summary["seen"] is True
    words = json.loads((tmp_path / "tool_n1/seed-42/sft.eval.json").read_text())["words"]
    assert words[words.index("--model") + 1] == str(tmp_path / "tool_n1/seed-42/sft_start/model")
    assert words[words.index("--recipe") + 1] == str(tmp_path / "tool_n1/seed-42/rl/config.toml")


def test_seconds_to_an_accuracy_are_those_of_the_mean_of_three_updates():
    columns = {
        "step": [0, 1, 2, 3, 4, 5],
        "wall_s": [None, 10.0, 20.0, 30.0, 40.0, 50.0],
        "accuracy": [None, 0.9, 0.2, 0.3, 0.8, 0.7],  # means of three: .467, .433, .6
    }
    assert MEASURES["seconds_to_60"](columns) == 150.0
    assert MEASURES["reached_60"](columns) == 1.0
    columns["accuracy"][5] = 0.6
    assert MEASURES["seconds_to_60"](columns) == 150.0
    assert MEASURES["reached_60"](columns) == 0.0
    assert MEASURES["seconds_to_60"]({"step": [0], "wall_s": [None], "accuracy": [None]}) is None


def test_a_method_without_a_twin_is_refused_with_those_that_have_one(capsys):
    assert main(["reproduce", "skyrl", "--model", "smollm2"]) == MISTAKE
    said = capsys.readouterr().err
    assert all(name in said for name in twins.TWINS)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in twins.TWINS if name != "tool_n1"])
def test_all_arms_are_checked_and_can_work_before_the_model_is_made(name, tmp_path, monkeypatch):
    monkeypatch.setattr("miniatures.prepare.check_package", lambda name: None)
    checked = []

    def check(words: list[str]) -> None:
        check_words(words)
        checked.append(words[0])

    class Started(Exception):
        """The first command starts."""

    def execute(arguments, log, timeout_s, tick):
        raise Started

    with pytest.raises(Started):
        go(name, tmp_path, execute, check)
    arms = twins.named(name).arms
    assert len(checked) >= len(arms)
    assert not (tmp_path / name).exists()


@pytest.mark.slow
def test_a_cold_start_that_does_not_fit_is_refused_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("miniatures.prepare.check_package", lambda name: None)
    too_long = {
        **twins.TWINS["retool"].arms,
        "sft_rl": twins.Quickstart(flags=("--sft.max_len", "4096"), cold_start=96),
    }
    monkeypatch.setitem(twins.TWINS, "retool", replace(twins.TWINS["retool"], arms=too_long))
    fake = Fake()
    with pytest.raises(ConfigError) as refused:
        go("retool", tmp_path, fake, check_words)
    assert refused.value.setting == "sft.max_len"
    assert not fake.asked


def test_seeds_follow_from_the_settings_and_claims_whose_first_arm_is_one_run_have_the_same(monkeypatch):
    of_torl = seeds_of(twins.named("torl"), 3)
    assert of_torl == seeds_of(twins.named("zerotir"), 3) == seeds_of(twins.named("pipeline"), 3)
    assert list(of_torl) == seeds(attempt.digest("tool", ()), 3)
    assert set(of_torl).isdisjoint(seeds_of(twins.named("otc"), 3))
    monkeypatch.setattr(twins, "usable_gpus", lambda: 1)
    assert set(of_torl).isdisjoint(seeds_of(twins.named("torl"), 3))


@pytest.mark.slow
def test_a_finished_run_of_the_same_settings_and_seed_is_shared_between_claims(tmp_path):
    fake = Fake(lambda arm: rows_of_a_run(0.9))
    go("torl", tmp_path, fake)
    before = len(fake.asked)
    go("zero_tir_rl", tmp_path, fake)
    assert [arm for _, arm, _ in fake.asked[before:]] == ["off_then_on", "off"]
    link = tmp_path / "zero_tir_rl/seed-42/on"
    assert link.resolve() == tmp_path / "torl/seed-42/tool"
    go("zero_tir_rl", tmp_path, fake)
    assert len(fake.asked) == before + 2
    go("zero_tir_rl", tmp_path, fake, seed=7)
    assert [arm for _, arm, _ in fake.asked[before + 2 :]] == ["on", "off_then_on", "off"]
    shutil.rmtree(tmp_path / "torl")
    go("zero_tir_rl", tmp_path, fake)
    assert fake.asked[-1][1] == "on"
    assert link.is_dir() and not link.is_symlink()


@pytest.mark.slow
def test_a_comparison_that_was_moved_keeps_its_runs(tmp_path):
    fake = Fake(lambda arm: rows_of_a_run(0.9))
    go("torl", tmp_path / "before", fake)
    asked = len(fake.asked)
    (tmp_path / "before").rename(tmp_path / "moved")
    go("torl", tmp_path / "moved", fake)
    assert len(fake.asked) == asked
    assert not (tmp_path / "moved/torl/seed-42/tool").is_symlink()


@pytest.mark.slow
def test_a_run_is_made_anew_when_the_recipe_says_something_else_by_now(tmp_path, monkeypatch):
    fake = Fake(lambda arm: rows_of_a_run(0.9))
    go("torl", tmp_path, fake)
    before = len(fake.asked)
    monkeypatch.setattr(twins, "digest", lambda *of: f"other settings {of}")
    go("torl", tmp_path, fake)
    assert [arm for _, arm, _ in fake.asked[before:]] == ["tool", "no_tool"]
    assert len(list((tmp_path / "torl" / "attempts").iterdir())) == 2
