"""A cold start: what is resumed, what is made anew, and how its process ends."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import pytest

from miniatures import cold_start as module
from miniatures import lookup, numbers
from miniatures.cold_start import cold_start, run_watched
from openrlhf_tir.cli import main
from openrlhf_tir.cli.exit_codes import MISTAKE
from openrlhf_tir.cli.quickstart import check_cold_start, resumable_before_the_first_checkpoint
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.config.rules import violations_of_fine_tuning
from openrlhf_tir.config.settings import attempt, load, to_toml
from openrlhf_tir.errors import (
    ConfigError,
    DataError,
    DeadlineMissed,
    InfraError,
    Stopped,
    Unavailable,
    Unproductive,
)

RECIPE = "smollm2_search_cpu"


def child(tmp_path, code: str, **options) -> None:
    """Run Python code as the fine-tuning's process."""
    usual = {"progress": lambda: 0, "quiet_s": 60.0, "grace_s": 20.0, "poll_s": 0.02}
    run_watched([sys.executable, "-c", code], log=tmp_path / "log", **usual | options)


def ends_with(line: str, code: int) -> str:
    """Return code of a process that writes `line` to its standard error and ends."""
    return f"import sys; print({line!r}, file=sys.stderr); sys.exit({code})"


def is_running(pid: int) -> bool:
    """Return True if the process `pid` exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def configured(tmp_path, **changed):
    """Return the configuration of a run in `tmp_path`."""
    return load(RECIPE, {"run_dir": str(tmp_path / "run"), **changed})


@pytest.fixture
def started(monkeypatch) -> list[list[str]]:
    """Take the place of the fine-tuning: record its command lines, and leave what `sft` leaves."""
    commands: list[list[str]] = []

    def run(command: list[str], **how) -> None:
        commands.append(command)
        cfg = load(command[command.index("--recipe") + 1])
        rows = int(command[command.index("--data.max_samples") + 1])
        directory = Path(command[command.index("--run-dir") + 1])
        (directory / "model").mkdir(parents=True, exist_ok=True)
        (directory / "ckpt").mkdir(exist_ok=True)
        (directory / "model" / "config.json").write_text("{}")
        actor = {"model_name_or_path": command[command.index("--actor.model_name_or_path") + 1]}
        learned = cfg.model_copy(
            update={
                "data": cfg.data.model_copy(update={"max_samples": rows}),
                "actor": cfg.actor.model_copy(update=actor),
            }
        )
        (directory / "config.toml").write_text(to_toml(learned))
        (directory / "sft.json").write_text(json.dumps({"rows": rows}))

    monkeypatch.setattr(module, "run_watched", run)
    return commands


def begin(cfg, number: int = 64):
    """Run the cold start of `cfg`, whose run directory the command would have made."""
    cfg.run_dir.mkdir(parents=True, exist_ok=True)
    return cold_start(cfg, Path("base"), Path("rows.jsonl"), number)


def test_a_finished_cold_start_is_not_made_again_and_leaves_no_checkpoint(tmp_path, started):
    cfg = configured(tmp_path)
    assert begin(cfg) == begin(cfg) == tmp_path / "run" / "cold_start" / "model"
    assert len(started) == 1
    assert not (tmp_path / "run" / "cold_start" / "ckpt").exists()


def test_a_checkpoint_of_a_stopped_cold_start_is_resumed_and_without_one_it_begins_anew(tmp_path, started):
    cfg = configured(tmp_path)
    checkpoints = tmp_path / "run" / "cold_start" / "ckpt"
    checkpoints.mkdir(parents=True)
    (checkpoints / "latest").write_text("step_000004")
    begin(cfg)
    assert "--resume" in started[0]
    assert "--train.overwrite" not in started[0]
    (tmp_path / "run" / "cold_start" / "sft.json").unlink()  # as if it had been killed before its end
    begin(cfg)
    assert "--train.overwrite" in started[1]
    assert "--resume" not in started[1]


def test_overwriting_makes_the_cold_start_again(tmp_path, started):
    begin(configured(tmp_path))
    (tmp_path / "run" / "cold_start" / "old").touch()
    begin(configured(tmp_path, **{"train.overwrite": True}))
    assert len(started) == 2
    assert not (tmp_path / "run" / "cold_start" / "old").exists()


@pytest.mark.parametrize(
    ("changed", "number", "named"),
    [({}, 32, ("--cold-start", "64", "32")), ({"sft.learning_rate": 5e-5}, 64, ("--sft.learning_rate", "5e-05"))],
)
def test_a_finished_cold_start_with_other_settings_is_told(tmp_path, started, changed, number, named):
    begin(configured(tmp_path))
    with pytest.raises(ConfigError) as refused:
        begin(configured(tmp_path, **changed), number)
    assert all(word in str(refused.value) for word in named)


def test_another_spelling_of_the_models_directory_is_no_other_model(tmp_path, started):
    cfg = configured(tmp_path)
    assert begin(cfg) == cold_start(cfg, Path("base").absolute(), Path("rows.jsonl"), 64)


def test_a_finished_cold_start_from_another_model_is_told(tmp_path, started):
    begin(configured(tmp_path))
    with pytest.raises(ConfigError) as refused:
        cold_start(configured(tmp_path), Path("other"), Path("rows.jsonl"), 64)
    assert (refused.value.code, refused.value.setting) == ("resume", "actor.model_name_or_path")
    assert "other" in str(refused.value)


def test_the_recipe_of_the_cold_start_does_not_hold_the_key_of_a_logging_service(tmp_path, started):
    begin(configured(tmp_path, **{"logger.wandb.key": "a-secret"}))
    assert "a-secret" not in (tmp_path / "run" / "cold_start.toml").read_text()


def test_the_cold_start_of_a_run_without_checkpoints_has_one(tmp_path, started):
    begin(configured(tmp_path, **{"ckpt.max_num": 0}))
    flags = started[0][started[0].index("sft") + 1 : started[0].index("--train.start_wait_s")]
    given = {name.removeprefix("--"): value for name, value in zip(flags[::2], flags[1::2], strict=True)}
    recipe = given.pop("recipe")
    problems = Problems()
    attempt(recipe, {key.replace("-", "_"): value for key, value in given.items()}, problems, violations_of_fine_tuning)
    assert problems.lines == []


@pytest.mark.parametrize(
    ("line", "code", "kind"),
    [
        ("ConfigError: no such column", 2, ConfigError),
        ("ConfigError: no such column\nno such file", 2, ConfigError),
        ("DataError: row 3\nresource_tracker: there appear to be leaked objects", 2, DataError),
        ("Unproductive: no group can be used", 6, Unproductive),
        ("ClusterFull: no room", 4, Unavailable),
        ("Stopped: Stopped by SIGTERM after update 3 of 12.", 5, Stopped),
        ("LearnerDied: a rank is gone", 3, InfraError),
        ("ValueError: a bug", 1, InfraError),
    ],
)
def test_an_error_of_the_fine_tuning_is_one_of_the_same_kind(tmp_path, line, code, kind):
    with pytest.raises(kind) as failed:
        child(tmp_path, ends_with(line, code))
    assert type(failed.value) is kind
    assert " ".join(line.partition(": ")[2].splitlines()) in str(failed.value)


def test_a_fine_tuning_without_progress_is_ended_at_its_deadline(tmp_path):
    pid = tmp_path / "pid"
    written = f"{pid}.partly"
    code = (
        f"import os, time\nwith open({written!r}, 'w') as file: file.write(str(os.getpid()))\n"
        f"os.rename({written!r}, {str(pid)!r}); time.sleep(600)"
    )
    seconds = itertools.count(step=10)
    with pytest.raises(DeadlineMissed):
        child(tmp_path, code, quiet_s=25.0, clock=lambda: next(seconds) if pid.exists() else 0)
    assert not is_running(int(pid.read_text()))


def test_a_fine_tuning_that_makes_progress_may_take_longer_than_the_deadline(tmp_path):
    end = tmp_path / "end"
    code = f"import os, time\nwhile not os.path.exists({str(end)!r}): time.sleep(.01)"
    looks = itertools.count()
    seconds = itertools.count(step=20)

    def progress() -> int:
        look = next(looks)
        if look == 6:
            end.touch()
        return look

    child(tmp_path, code, progress=progress, quiet_s=25.0, clock=lambda: next(seconds))
    assert next(seconds) > 100


def test_whoever_interrupts_the_command_stops_the_fine_tuning_in_good_order(tmp_path):
    ready = tmp_path / "ready"
    said = tmp_path / "said"
    code = (
        "import signal, sys, time\n"
        f"def stop(*_): open({str(said)!r}, 'w').write('stopped'); sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        f"open({str(ready)!r}, 'w').close()\n"
        "while True: time.sleep(0.01)"
    )

    def progress() -> int:
        if ready.exists():
            raise KeyboardInterrupt
        return 0

    with pytest.raises(KeyboardInterrupt):
        child(tmp_path, code, progress=progress)
    assert said.read_text() == "stopped"


def test_fine_tuning_refuses_to_end_with_a_process_that_is_not_its_parent(capsys):
    """That it does end with its parent is seen in tests/e2e/test_cold_start.py."""
    itself = str(os.getpid())
    assert main(["sft", "--die-with-parent", itself]) == MISTAKE
    assert f"--die-with-parent {itself}" in capsys.readouterr().err


def test_a_run_that_was_stopped_at_its_cold_start_can_be_resumed(tmp_path):
    cfg = configured(tmp_path, **{"train.resume": True})
    assert not resumable_before_the_first_checkpoint(cfg).train.resume_or_start
    (tmp_path / "run" / "cold_start").mkdir(parents=True)
    assert resumable_before_the_first_checkpoint(cfg).train.resume_or_start
    assert not resumable_before_the_first_checkpoint(configured(tmp_path)).train.resume_or_start


def test_settings_of_a_cold_start_that_cannot_work_are_told_before_a_model_is_made(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{}\n" * 5)
    check_cold_start(configured(tmp_path), rows, 5)
    with pytest.raises(ConfigError) as refused:
        check_cold_start(configured(tmp_path, **{"sft.max_len": 100_000}), rows, 6)
    assert all(word in str(refused.value) for word in ("sft.max_len", "--cold-start 6"))


def test_demonstrations_of_numbers_compute_the_answer_and_none_is_of_the_test_split():
    made = numbers.demonstrations(40)
    tested = {row["prompt"][1]["content"] for row in numbers.held_out_rows(numbers.PROMPTS[numbers.PROMPT])}
    assert len(made) == 40
    for row in made:
        _, user, code, reply, answer = row["messages"]
        assert user["content"] not in tested
        printed = code["content"].removeprefix("```python\nprint(").removesuffix(")\n```")
        assert str(eval(printed)) == reply["content"]
        assert reply["content"] in answer["content"]


def test_the_first_demonstrations_of_search_hold_every_trained_kind_as_often():
    first = [row["messages"][1]["content"] for row in lookup.demonstrations()[:16]]
    assert sum("Who leads the company" in text for text in first) == 2
    assert sum("In which land is the home town" in text for text in first) == 2
