"""Heartbeat: a line after so many seconds of silence, and status.json, from before the first update on."""

import io
import json
import re
import time

import pytest
from rich.console import Console

from openrlhf_tir.errors import Stopped
from openrlhf_tir.telemetry import heartbeat
from openrlhf_tir.telemetry.heartbeat import EVERY_S, FILE, Heartbeat, Status, status_line

STATUS = Status(
    waits_for="waiting for groups: 12 of 16 accepted",
    max_steps=24,
    needed=16,
    ready=12,
    rolling=20,
    in_env={"python": 3, "search": 0},
    rolled=40,
    accepted=12,
    dropped={"too_long": 3, "accuracy_low": 25},
    failed={"timeout": 2},
    tokens_per_s=1204.4,
    first_step_s=80.0,
)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def console() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=40)


def test_the_line_says_what_is_waited_for_and_what_became_of_the_groups():
    step, waits_for, rolling, rolled, dropped, failed, speed, first_step = status_line(STATUS).split("  ")
    assert (step, waits_for) == ("step 0/24", STATUS.waits_for)
    assert re.fullmatch(r"\w+ 20 \(.* 3 .* python\)", rolling) and re.findall(r"\d+", rolled) == ["40", "12"]
    assert re.fullmatch(r"\w+ 28 \(accuracy_low 25, too_long 3\)", dropped)
    assert re.fullmatch(r"\w+ 2 \(timeout 2\)", failed)
    assert speed.startswith("1,204 ") and first_step.endswith(" 1:20")


def test_a_line_is_due_after_the_seconds_of_silence_and_not_before():
    clock = Clock()
    beat = Heartbeat(clock)
    assert beat.due() == ""
    with beat.doing("starting engines") as note:
        clock.now = EVERY_S - 1
        assert beat.due() == ""
        clock.now = EVERY_S
        note("2 of 3")
        assert beat.due() == "+0:20  starting engines (for 0:20)  2 of 3"
        clock.now = 2 * EVERY_S - 1
        assert beat.due() == "", "it has just been said"
        beat.line_printed()
        clock.now = 3 * EVERY_S - 2
        assert beat.due() == "", "somebody else has said something"
        clock.now = 3 * EVERY_S - 1
        assert beat.due()
    beat.show(STATUS)
    clock.now += EVERY_S
    assert "12 of 16" in beat.due()
    beat.show(None)
    clock.now += EVERY_S
    assert beat.due() == "", "nothing is under way"


def test_the_innermost_stage_is_named_and_the_outer_one_again_after_it():
    beat = Heartbeat(Clock())
    with beat.doing("outer"):
        with beat.doing("inner"):
            assert "inner" in beat.line
        assert "outer" in beat.line


def test_silence_is_promised_for_less_than_thirty_seconds():
    assert EVERY_S + heartbeat.TICK_S < 30


def test_the_thread_prints_while_the_main_thread_is_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY_S", 0.05)
    monkeypatch.setattr(heartbeat, "TICK_S", 0.01)
    out = console()
    with heartbeat.beating(out, tmp_path), heartbeat.doing("loading"):
        for _ in range(30_000):
            if "loading" in out.file.getvalue():
                break
            time.sleep(0.01)
    assert "loading" in out.file.getvalue()


@pytest.mark.parametrize(
    ("error", "said"), [(None, "finished"), (Stopped("asked"), "stopped"), (KeyError("x"), "KeyError: 'x'")]
)
def test_the_status_file_says_what_is_done_and_how_it_ended(tmp_path, error, said):
    run_dir = tmp_path / "run"
    try:
        with heartbeat.beating(console(), run_dir), heartbeat.doing("loading"):
            facts = heartbeat.read(run_dir)
            assert "ended" not in facts
            heartbeat.show(STATUS)
            heartbeat.show(None)
            heartbeat.notice(["WARNING: nothing was accepted"])
            if error:
                raise error
    except (Stopped, KeyError):
        pass
    facts = heartbeat.read(run_dir)
    assert facts["ended"] == said and facts["status"]["accepted"] == 12
    assert facts["notice"] == ["WARNING: nothing was accepted"] and [p.name for p in run_dir.iterdir()] == [FILE]


def test_a_status_that_cannot_be_read_is_none(tmp_path):
    assert heartbeat.read(tmp_path) is None
    for text in ("{", json.dumps([1]), json.dumps({"time": "late"})):
        (tmp_path / FILE).write_text(text)
        assert heartbeat.read(tmp_path) is None
