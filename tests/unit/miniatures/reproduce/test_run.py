"""A miniature from its name to its page, with commands that are played; and the command line."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import contextmanager

import pytest

from miniatures.reproduce import methods
from miniatures.reproduce.commands import How
from miniatures.reproduce.run import check_arms, reproduce, seeds_of
from openrlhf_tir.cli import main
from openrlhf_tir.cli.reproduce import check_words
from openrlhf_tir.cluster.run_lock import run_lock
from openrlhf_tir.errors import ConfigError, ReproductionFailed

from .fakes import Fake, go, otc_rows, rows_of_a_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("undrawn")]  # some start processes


def test_every_arm_of_every_seed_is_run_once_and_the_summary_has_the_form_that_is_asked(tmp_path):
    fake, said = Fake(otc_rows), []
    summary = go("otc", tmp_path, fake, (42, 7), said)
    made = [
        ("toy-model", "torl_calls-42", False),
        *(("train", arm, False) for arm in ("torl", "ppo", "otc_ppo", "otc_grpo")),
    ]
    assert fake.asked == [*made, ("toy-model", "torl_calls-7", False), *made[1:]]
    written = json.loads((tmp_path / "otc" / "summary.json").read_text())
    assert written == summary and list(written) == ["name", "claim", "seen", "seeds", "seconds"]
    assert written["seen"] is True and [list(s) for s in written["seeds"]] == 2 * [["seed", "arms", "seen"]]
    assert written["seeds"][0]["arms"]["torl"]["calls"] == pytest.approx(1.7) and written["seconds"] >= 0
    assert any(re.search(r" 42, .* otc_ppo \(3 \w+ 4\): .* 12, .* 62\.5 %$", line) for line in said)
    assert re.search(r"^otc: .* 2 \w+ 2 .*index\.html$", said[-1])


def test_the_same_command_again_runs_nothing_and_says_the_same(tmp_path):
    fake = Fake(otc_rows)
    first = go("otc", tmp_path, fake)
    asked, said = len(fake.asked), []
    assert go("otc", tmp_path, fake, said=said) == first and len(fake.asked) == asked
    assert sum(line.endswith(".train.log") for line in said) == 4


def test_another_seed_runs_that_seed_alone(tmp_path):
    fake = Fake(otc_rows)
    go("otc", tmp_path, fake)
    before = len(fake.asked)
    go("otc", tmp_path, fake, (42, 7))
    assert [what for what, *_ in fake.asked[before:]] == ["toy-model", *4 * ["train"]]


def test_a_failed_arm_is_an_error_and_the_next_try_runs_only_what_is_left(tmp_path):
    fake = Fake(otc_rows, fails=("otc_ppo",))
    with pytest.raises(ReproductionFailed, match=r" 3: EnvLost: no server is up\n.*otc_ppo\.train\.log"):
        go("otc", tmp_path, fake)
    assert not (tmp_path / "otc" / "summary.json").exists(), "no verdict without all arms"
    fake.fails, before = (), len(fake.asked)
    assert go("otc", tmp_path, fake)["seen"] is True
    assert [arm for _, arm, _ in fake.asked[before:]] == ["otc_ppo", "otc_grpo"]


def test_an_effect_that_is_not_there_is_not_seen_and_no_error(tmp_path):
    said: list[str] = []
    assert go("otc", tmp_path, Fake(lambda arm: rows_of_a_run(calls=1.7)), said=said)["seen"] is False
    assert any(re.search(r" 42: .*\botc_ppo: calls.* ppo, .*1\.000", line) for line in said)
    assert re.search(r"^otc: (?!.*\d \w+ \d).*index\.html$", said[-1])
    page = (tmp_path / "otc" / "index.html").read_text()
    assert re.search(r"\botc_ppo: calls.* 1\.000, .* 0\.75 ", page)


def test_a_sweep_is_of_the_arm_before_it_and_is_judged_by_n(tmp_path):
    fake = Fake(sweep={0: 0.04, 2: 0.5, 4: 0.93, 20: 0.93})
    summary = go("interaction_scaling", tmp_path, fake)
    assert [what for what, *_ in fake.asked] == ["toy-model", "train", "eval"] and summary["seen"] is True
    assert summary["seeds"][0]["arms"]["sweep"]["accuracy_20"] == 0.93
    words = json.loads((tmp_path / "interaction_scaling/seed-42/sweep.eval.json").read_text())["words"]
    assert words[words.index("--model") + 1] == str(tmp_path / "interaction_scaling/seed-42/rl/model")
    assert words[words.index("--sweep") + 1] == "env.max_calls=0,2,4,20"


def test_a_model_that_is_trained_anew_is_swept_anew(tmp_path):
    fake = Fake(sweep={0: 0.04, 2: 0.5, 4: 0.93, 20: 0.93})
    go("interaction_scaling", tmp_path, fake)
    model = tmp_path / "interaction_scaling/seed-42/rl/model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"trained further")
    go("interaction_scaling", tmp_path, fake)
    go("interaction_scaling", tmp_path, fake)
    assert [what for what, *_ in fake.asked] == ["toy-model", "train", "eval", "eval"]


def test_an_arm_whose_directory_is_deleted_is_run_again(tmp_path):
    fake = Fake(lambda arm: rows_of_a_run(0.05 if arm == "no_tool" else 0.95))
    go("zerotir", tmp_path, fake)
    shutil.rmtree(tmp_path / "zerotir/seed-42/rl")
    assert go("zerotir", tmp_path, fake)["seen"] is True
    assert [arm for _, arm, _ in fake.asked] == ["quickstart-42", "rl", "no_tool", "rl"]


def retool_rows(arm: str) -> list[dict]:
    return rows_of_a_run(0.13, before=0.12) if arm == "base_rl" else rows_of_a_run(0.95)


def test_retools_cold_start_comes_before_its_rl_and_fine_tuning_alone_is_judged_by_an_evaluation(tmp_path):
    fake = Fake(retool_rows)
    summary = go("retool", tmp_path, fake)
    tuned = [("sft", "sft_start"), ("eval", "sft"), ("sft", "sft_rl_start"), ("train", "sft_rl")]
    assert [asked[:2] for asked in fake.asked[1:]] == [("train", "base_rl"), *tuned]
    assert summary["seen"] is True and summary["seeds"][0]["arms"]["sft"] == {
        "accuracy": 0.42,
        "code_ratio": 0.36,
        "greedy_accuracy": 0.42,
    }
    words = json.loads((tmp_path / "retool/seed-42/sft_rl.train.json").read_text())["words"]
    assert words[words.index("--actor.model_name_or_path") + 1] == str(tmp_path / "retool/seed-42/sft_rl_start/model")
    page = (tmp_path / "retool/index.html").read_text()
    assert "<td>sft</td>" in page and "<td>0.420</td>" in page


def test_tool_n1s_fine_tuning_is_reported_beside_its_rl(tmp_path):
    fake = Fake(lambda arm: rows_of_a_run(**{"reward/format_ok": 1.0}))
    summary = go("tool_n1", tmp_path, fake)
    assert [what for what, *_ in fake.asked] == ["toy-model", "train", "train", "sft", "eval"]
    assert summary["seen"] is True and "<td>sft</td>" in (tmp_path / "tool_n1/index.html").read_text()


def test_seeds_of_a_toy_are_always_the_same():
    assert seeds_of(methods.named("otc"), 3) == (42, 7, 11)


def test_every_attempt_is_kept_by_settings_and_seed_and_one_that_failed_too(tmp_path):
    fake = Fake(otc_rows, fails=("otc_ppo",))
    with pytest.raises(ReproductionFailed):
        go("otc", tmp_path, fake)
    (failed,) = (tmp_path / "otc" / "attempts").iterdir()
    assert "EnvLost" in json.loads(failed.read_text())["failed"]
    fake.fails = ()
    go("otc", tmp_path, fake, (42, 7))
    go("otc", tmp_path, fake, (7,))
    kept = {path.name: json.loads(path.read_text()) for path in (tmp_path / "otc" / "attempts").iterdir()}
    assert {attempt["seeds"][0]["seed"] for attempt in kept.values()} == {42, 7}
    assert failed.name in kept and all(attempt["seen"] for attempt in kept.values())


def test_a_command_that_cannot_work_is_refused_before_the_first_arm_starts(tmp_path):
    def check(words: list[str]) -> None:
        if "otc_ppo" in words[words.index("--run-dir") + 1]:
            raise ConfigError("it does not fit", setting="train.max_tokens_per_gpu")

    fake = Fake(otc_rows)
    how = How(9, lambda line: None, fake, check=check)
    with pytest.raises(ConfigError) as refused:
        reproduce(methods.named("otc"), (42,), tmp_path / "otc", tmp_path / "bases", how)
    assert refused.value.setting == "train.max_tokens_per_gpu"
    assert "otc_ppo" in str(refused.value)
    assert fake.asked == []


@pytest.mark.parametrize("name", methods.NAMES)
def test_the_arms_of_every_toy_can_be_checked_before_its_model_is_made(name, tmp_path):
    checked: list[str] = []

    def check(words: list[str]) -> None:
        check_words(words)
        checked.append(words[0])

    check_arms(methods.named(name), 42, tmp_path, How(9, lambda line: None, check=check))
    assert len(checked) >= len(methods.named(name).arms)


def test_a_base_that_is_there_is_taken(tmp_path):
    fake = Fake()
    go("zerotir", tmp_path, fake)
    go("zerotir", tmp_path / "elsewhere", fake)
    assert [what for what, *_ in fake.asked] == 2 * ["toy-model", "train", "train"]
    reproduce(methods.named("zerotir"), (42,), tmp_path / "third", tmp_path / "bases", How(9, lambda line: None, fake))
    assert [what for what, *_ in fake.asked[6:]] == ["train", "train"]


def test_the_base_is_made_under_a_lock_of_its_own_since_another_miniature_may_need_it_too(tmp_path):
    events: list[str] = []

    @contextmanager
    def lock(directory):
        events.append(f"lock {directory.name}")
        yield
        events.append("unlock")

    fake = Fake()
    run = lambda *of: (events.append(of[0][3]), fake(*of))[1]  # noqa: E731
    reproduce(
        methods.named("zerotir"), (42,), tmp_path / "out", tmp_path / "bases", How(9, lambda line: None, run, lock)
    )
    assert events == ["lock quickstart-42", "toy-model", "unlock", "train", "train"]


def test_two_of_one_directory_are_refused(tmp_path, capsys):
    with run_lock(tmp_path / "out"):
        assert main(["reproduce", "zerotir", "--out", str(tmp_path / "out"), "--bases", str(tmp_path / "bases")]) == 2
    assert str(tmp_path / "out") in capsys.readouterr().err and not (tmp_path / "bases").exists()


def test_the_list_names_every_miniature_with_its_claim(capsys):
    assert main(["reproduce", "--list"]) == 0
    said = capsys.readouterr().out
    assert all(f"{name} " in said and methods.named(name).claim in said for name in methods.NAMES)


def test_a_base_model_of_an_unknown_lesson_is_refused_with_the_list(tmp_path, capsys):
    assert main(["toy-model", "--lesson", "nope", "--run-dir", str(tmp_path / "base")]) == 2
    assert re.search(r"--lesson 'nope'.*: artist, ", capsys.readouterr().err) and not (tmp_path / "base").exists()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nope"], "'nope'.*: artist, "),
        ([], ": zerotir, "),
        (["zerotir", "--seeds", "0"], r"--seeds\b.* 0 .* 1 \w+ 8\b"),
        (["zerotir", "--arm-timeout", "0"], "--arm-timeout"),
    ],
)
def test_what_cannot_work_is_refused_with_what_can(argv, message, capsys):
    assert main(["reproduce", *argv]) == 2
    err = capsys.readouterr().err
    assert re.search(message, err) and "Traceback" not in err
