"""Commands of a miniature: run once, gone on with, run anew in other words, failures told with the log."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from miniatures.reproduce import commands
from miniatures.reproduce.commands import Command, is_finished, mark_of, run, share
from openrlhf_tir.errors import ReproductionFailed


def command(tmp_path, *more: str, resumes: bool = True) -> Command:
    return Command(["train", "--run-dir", str(tmp_path / "rl"), *more], tmp_path / "rl", resumes)


class Execute:
    def __init__(self, code: int = 0, raises: BaseException | None = None, says: str = "") -> None:
        self.code, self.raises, self.says, self.words = code, raises, says, []

    def __call__(self, arguments, log, timeout_s, tick):
        self.words.append(arguments[3:])
        log.write_text(self.says)
        Path(arguments[arguments.index("--run-dir") + 1]).mkdir(exist_ok=True)
        if self.raises:
            raise self.raises
        return self.code


def test_what_is_finished_is_not_run_again(tmp_path):
    asked, execute = command(tmp_path), Execute()
    run(asked, timeout_s=9, execute=execute)
    seconds = run(asked, timeout_s=9, execute=execute)
    assert len(execute.words) == 1 and is_finished(asked) and seconds == mark_of(asked).seconds


def test_what_was_asked_in_other_words_is_deleted_and_run_anew(tmp_path):
    execute = Execute()
    run(command(tmp_path), timeout_s=9, execute=execute)
    (tmp_path / "rl" / "metrics.jsonl").write_text("of the run before")
    run(command(tmp_path, "--train.max_steps", "3"), timeout_s=9, execute=execute)
    assert len(execute.words) == 2 and not (tmp_path / "rl" / "metrics.jsonl").exists()


def test_what_was_finished_and_is_gone_is_run_anew(tmp_path):
    asked, execute = command(tmp_path)._replace(out=tmp_path / "rl.figures.json"), Execute()
    asked.out.write_text("{}")
    run(asked, timeout_s=9, execute=execute)
    run(asked, timeout_s=9, execute=execute)
    assert len(execute.words) == 1
    shutil.rmtree(asked.directory)
    assert not is_finished(asked)
    run(asked, timeout_s=9, execute=execute)
    asked.out.unlink()
    assert not is_finished(asked)
    run(asked, timeout_s=9, execute=execute)
    assert len(execute.words) == 3


def of_claim(tmp_path, claim: str, settings: str = "a/42") -> Command:
    """Return a command of the comparison `claim`. All comparisons start from one model."""
    directory = tmp_path / claim / "seed-42" / "rl"
    directory.parent.mkdir(parents=True, exist_ok=True)
    return Command(["train", "--run-dir", str(directory)], directory, True, (tmp_path / "base",), settings=settings)


@pytest.fixture
def finished(tmp_path) -> Command:
    """A command of another comparison, which has ended well."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "model.safetensors").write_bytes(b"weights")
    other = of_claim(tmp_path, "other")
    run(other, timeout_s=9, execute=Execute())
    return other


def test_a_finished_run_of_another_comparison_is_linked(tmp_path, finished):
    own = of_claim(tmp_path, "own")
    assert share(own, tmp_path) == mark_of(finished)
    assert own.directory.resolve() == finished.directory
    assert not own.mark.exists()


def test_the_link_takes_the_place_of_a_run_of_other_settings_and_of_its_mark(tmp_path, finished):
    """The mark would say that the run behind the link is one of those settings."""
    run(of_claim(tmp_path, "own", "b/42"), timeout_s=9, execute=Execute())
    own = of_claim(tmp_path, "own")
    assert share(own, tmp_path) == mark_of(finished)
    assert own.directory.is_symlink() and not own.mark.exists()


def fail_again(finished: Command) -> None:
    with pytest.raises(ReproductionFailed):
        run(finished._replace(words=[*finished.words, "--eval.wait"]), timeout_s=9, execute=Execute(3))
    assert finished.directory.is_dir()


@pytest.mark.parametrize(
    "change",
    [
        fail_again,
        lambda finished: (finished.of[0] / "model.safetensors").write_bytes(b"other weights"),
        lambda finished: shutil.rmtree(finished.directory),
        lambda finished: finished.mark.write_text("torn"),
    ],
    ids=["not finished", "of other weights", "gone", "its mark is torn"],
)
def test_a_run_that_is_not_the_same_is_not_linked(tmp_path, finished, change):
    change(finished)
    assert share(of_claim(tmp_path, "own"), tmp_path) is None
    assert not (tmp_path / "own/seed-42/rl").exists()


@pytest.mark.parametrize("settings", ["b/42", "a/7", ""])
def test_a_run_of_other_or_unknown_settings_is_not_linked(tmp_path, finished, settings):
    assert share(of_claim(tmp_path, "own", settings), tmp_path) is None


def test_a_run_that_was_begun_goes_on_although_another_comparison_has_finished_it(tmp_path, finished):
    own = of_claim(tmp_path, "own")
    with pytest.raises(ReproductionFailed):
        run(own, timeout_s=9, execute=Execute(3))
    assert share(own, tmp_path) is None
    assert own.directory.is_dir() and not own.directory.is_symlink()


def test_what_was_made_of_a_model_that_is_another_by_now_is_deleted_and_run_anew(tmp_path):
    model, execute = tmp_path / "base" / "model.safetensors", Execute()
    model.parent.mkdir()
    model.write_bytes(b"of the run before")
    asked = command(tmp_path)._replace(of=(model.parent,))
    run(asked, timeout_s=9, execute=execute)
    assert is_finished(asked)
    (asked.directory / "eval").mkdir()
    model.write_bytes(b"trained further")
    assert not is_finished(asked)
    run(asked, timeout_s=9, execute=execute)
    assert len(execute.words) == 2 and is_finished(asked) and not (asked.directory / "eval").exists()


def test_what_was_interrupted_goes_on_from_its_checkpoint_and_keeps_its_seconds(tmp_path):
    asked = command(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(asked, timeout_s=9, execute=Execute(raises=KeyboardInterrupt()))
    mark = mark_of(asked)
    assert not is_finished(asked) and mark.seconds >= 0
    asked.mark.write_text(json.dumps({**mark._asdict(), "seconds": 100.0}))
    execute = Execute()
    (tmp_path / "rl" / "ckpt").mkdir(parents=True)
    (tmp_path / "rl" / "ckpt" / "latest").write_text("step_000006")
    assert run(asked, timeout_s=9, execute=execute) >= 100.0
    assert execute.words[0][-1] == "--resume" and is_finished(asked)


def test_without_a_checkpoint_it_begins_anew_and_a_command_that_cannot_resume_is_not_told_to(tmp_path):
    execute = Execute()
    run(command(tmp_path), timeout_s=9, execute=execute)
    (tmp_path / "rl" / "ckpt").mkdir(parents=True)
    (tmp_path / "rl" / "ckpt" / "latest").write_text("x")
    other = command(tmp_path, resumes=False)
    other.mark.unlink()
    run(other, timeout_s=9, execute=execute)
    assert all("--resume" not in words for words in execute.words)


def test_a_command_that_fails_is_an_error_with_its_last_line_and_its_log(tmp_path):
    asked = command(tmp_path)
    with pytest.raises(ReproductionFailed, match=r" 3: EnvLost: no server is up\n.*rl\.train\.log") as e:
        run(asked, timeout_s=9, execute=Execute(3, says="starting\nEnvLost: no server is up\n\n"))
    assert "openrlhf-tir train --run-dir" in str(e.value) and not is_finished(asked)


def test_a_missed_deadline_names_the_flag_and_the_log(tmp_path):
    with pytest.raises(ReproductionFailed, match=r" 9 s\. .*--arm-timeout.*rl\.train\.log"):
        run(command(tmp_path), timeout_s=9, execute=Execute(raises=subprocess.TimeoutExpired("x", 9)))


def test_a_mark_that_is_no_json_is_no_mark(tmp_path):
    asked, execute = command(tmp_path), Execute()
    asked.mark.parent.mkdir(parents=True, exist_ok=True)
    asked.mark.write_text("{")
    run(asked, timeout_s=9, execute=execute)
    assert execute.words and is_finished(asked)


def test_the_real_thing_gives_the_exit_code_and_keeps_the_output(tmp_path):
    log = tmp_path / "log"
    assert commands._execute([sys.executable, "-c", "print('said'); raise SystemExit(4)"], log, 60, lambda: None) == 4
    assert log.read_text() == "said\n" and commands.last_line(log) == "said"


ENDS_WELL = (
    "import signal,sys,time\nsignal.signal(signal.SIGTERM, lambda *_: (print('told to stop', flush=True),"
    " sys.exit(5)))\nprint('up', flush=True)\nwhile True: time.sleep(0.01)"
)


@pytest.mark.parametrize("how", ["deadline", "interrupt"])
def test_what_ends_the_wait_tells_the_command_to_stop_and_waits_for_it(tmp_path, how, monkeypatch):
    log = tmp_path / "log"
    monkeypatch.setattr(commands, "LOOK_S", 0.05)
    up = threading.Event()

    def tick() -> None:
        if not up.is_set() and log.exists() and "up" in log.read_text():
            up.set()
            if how == "interrupt":
                signal.raise_signal(signal.SIGINT)

    expected = subprocess.TimeoutExpired if how == "deadline" else KeyboardInterrupt
    heard_before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    with pytest.raises(expected):
        commands._execute(
            [sys.executable, "-c", ENDS_WELL],
            log,
            60,
            tick,
            clock=lambda: 100.0 if up.is_set() and how == "deadline" else 0.0,
        )
    signal.signal(signal.SIGINT, heard_before)
    assert up.is_set() and log.read_text() == "up\ntold to stop\n"
