"""benchmarks.canary: what a collecting process starts ends with it, and the judgement of what was collected."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchmarks.canary import __main__ as canary_main
from benchmarks.canary import collect, summary

ROOT = Path(__file__).parents[3]
COLLECTS = """
import asyncio, subprocess, sys, types
sys.modules["torch"] = types.SimpleNamespace(set_num_threads=lambda n: None)
from pathlib import Path
from benchmarks.canary import collect

class Collector:
    def __init__(self, setup, stage):
        self.out = setup.out

    async def run(self, deadline):
        engine = subprocess.Popen(["sleep", "600"])
        try:
            print(engine.pid, flush=True)
            await asyncio.sleep(600)
        finally:
            (self.out / "stopped").touch()

collect.Collector = Collector
collect.collect(collect.Setup("model", Path(sys.argv[1])), collect.Stage("bf16", 1e-5, 1), 1e9)
"""
"""A collecting process whose engine is a `sleep`; it prints that one's process id."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)]
)
def test_no_engine_outlives_the_process_that_collects(number, tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", COLLECTS, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        engine = psutil.Process(int(process.stdout.readline()))
        os.kill(process.pid, number)
        process.wait()
        _, alive = psutil.wait_procs([engine], timeout=60)
        assert alive == []
    assert (tmp_path / "stopped").exists() == (number != signal.SIGKILL)


def test_the_weights_of_a_killed_process_are_removed_and_those_of_a_live_one_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "FILES", tmp_path)
    live, dead = (tmp_path / f"{collect.FILES_PREFIX}{pid}" for pid in (os.getpid(), 2**22 + 1))
    for directory in (live, dead):
        directory.mkdir()
        (directory / "v1.safetensors").touch()
    collect.remove_files_of_killed()
    assert [live.exists(), dead.exists()] == [True, False]


def test_right_pushes_and_faults_are_judged_against_the_pushes_before_them():
    """Log-probs of -20 differ as they are: levels of .01, .012 (a right push), .05 (a fault) and .012 again."""

    def line(level: float, fault: str = "", read_back: str | None = None) -> dict:
        return SimpleNamespace(
            part=0, fault=fault, read_back=read_back, read_back_s=1.0, canary_s=0.5, score_s=0.5,
            engine=[[-20.0 - level] * 80], learner=[[-20.0] * 80], forced=[70], shared=[0],
        ).__dict__  # fmt: skip

    other = line(0.011)
    judged = summary._judged(
        [
            line(0.01),
            line(0.012) | {"other": other},
            line(0.05, "rope_base"),
            line(0.01, "nothing_loaded", "1 differs"),
            line(0.012),
        ],
        fp32=False,
    )
    assert judged["alarms"] == 0 and judged["seconds"] == [2.0, 2.0]
    assert judged["excess"] == pytest.approx([0.6, 0.012 / 0.022])
    assert judged["others"] == pytest.approx([0.55]), "against the reference before this push"
    assert judged["faults"]["rope_base"] == (False, pytest.approx(0.05 / 0.022))
    assert judged["faults"]["nothing_loaded"][0]


def test_texts_that_the_reference_has_not_seen_have_figures_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "replay", dict)  # the simulated pushes: below

    def line(level: float, **more) -> dict:
        return {
            "part": 0, "fault": "", "read_back": None, "read_back_s": 1.0, "canary_s": 0.5, "score_s": 0.5,
            "engine": [[-20.0 - level] * 80], "learner": [[-20.0] * 80], "forced": [70], "shared": [0], **more,
        }  # fmt: skip

    stage = [line(0.01), line(0.01, other=line(0.01)), line(0.01), line(0.01, other=line(0.05))]
    torn = json.dumps(line(0.01))[:-9]
    (tmp_path / "bf16_1e-05.jsonl").write_text("".join(json.dumps(r) + "\n" for r in stage) + torn)
    found = summary.summary(tmp_path)
    assert found["other_texts"] == {"pushes": 2, "false_alarms": 1, "worst_over_threshold": 2.5}
    assert (found["pushes"], found["false_alarms"]) == ({"bf16_1e-05": 3}, 0)


def test_a_stage_that_fails_is_named_with_how_to_go_on(tmp_path, monkeypatch):
    monkeypatch.setattr(canary_main.subprocess, "run", lambda command: SimpleNamespace(returncode=1))
    monkeypatch.setattr(sys, "argv", ["benchmarks.canary", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"bf16_1e-05.*--only judge"):
        canary_main.main()


def test_without_pushes_there_is_no_worst_one_and_without_faults_no_weakest(tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "replay", dict)
    found = summary.summary(tmp_path)
    assert found["worst_right_over_threshold"] is found["weakest_mutant_over_threshold"] is None
    assert found["other_texts"]["worst_over_threshold"] is None


def test_a_first_push_whose_read_back_found_a_difference_is_a_false_alarm():
    first = {
        "part": 0, "fault": "", "read_back": "1 differs", "read_back_s": 1.0, "canary_s": 0.5, "score_s": 0.5,
        "engine": [[-20.01] * 80], "learner": [[-20.0] * 80], "forced": [70], "shared": [0],
    }  # fmt: skip
    assert summary._judged([first], fp32=False)["alarms"] == 1


@pytest.mark.parametrize("torn", ["", '{"part": 0, "vers'])
@pytest.mark.parametrize("whole", [[], [{"part": 0}, {"part": 0}]])
def test_a_record_that_a_kill_has_torn_is_left_out_and_not_continued(tmp_path, torn, whole):
    path = tmp_path / "bf16_1e-05.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in whole) + torn)
    assert collect.load_lines(path) == whole
    collect.drop_torn_line(path)
    with path.open("a") as out:
        out.write('{"part": 1}\n')
    assert collect.load_lines(path) == [*whole, {"part": 1}]
    collect.drop_torn_line(tmp_path / "not there")


@pytest.mark.slow
def test_simulated_pushes_with_levels_fitted_to_an_h100s_and_the_spread_of_a_cpu_raise_no_alarm():
    found = summary.replay(trials=2_000)
    assert (found["first_round_false_alarms"], found["false_alarms"]) == (0, 0)
    assert found["old_rule_false_alarms"] > 0
