"""Random runs of the whole loop on a virtual clock, with deaths, hangs, refusals, full disks, stops and crashes."""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from openrlhf_tir.pipeline.checkpoints import checkpoint
from openrlhf_tir.pipeline.scheduler import RolloutScheduler
from tests.ordinary import ordinary_first

from .scenarios import Event, Scenario, play, scenario, shrink

FAST, LONG, PER_TEST = 160, 10_000, 40
FIRST = int(os.environ.get("TIR_RANDOM_SEED", "0"))
"""Of the seeds; set it to try others."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Thousands of runs: no disk is waited for, and what a fault makes the code log is expected."""
    monkeypatch.setattr(checkpoint, "flush", lambda path: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


def broken(s: Scenario, directory: Path) -> list[str]:
    """What is wrong after the scenario; its files are gone."""
    directory.mkdir()
    try:
        return play(s, directory)
    finally:
        shutil.rmtree(directory)


def check(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        s = scenario(seed)
        if broken(s, tmp_path / "run"):
            short = shrink(s, lambda shorter: bool(broken(shorter, tmp_path / "run")))
            wrong, events = broken(short, tmp_path / "run"), "\n".join(map(repr, short.events))
            pytest.fail(
                f"seed {seed}: {wrong}\n{replace(short, events=())}\nwith {len(short.events)} of {len(s.events)}"
                f" events:\n{events}"
            )


@pytest.mark.slow
@pytest.mark.parametrize("first", ordinary_first(range(FIRST, FIRST + FAST, PER_TEST), 2))
def test_whatever_happens_a_run_ends_and_every_prompt_ends_once(tmp_path, first):
    check(range(first, first + PER_TEST), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("first", range(FIRST + FAST, FIRST + FAST + LONG, 250))
def test_whatever_happens_a_run_ends_and_every_prompt_ends_once_ten_thousand_times(tmp_path, first):
    check(range(first, first + 250), tmp_path)


@pytest.mark.slow
def test_a_broken_loop_is_found_and_its_events_shrink_to_the_one_that_matters(tmp_path, monkeypatch):
    """A resume that forgets what rolled: of nine events the crash remains."""
    requeue = RolloutScheduler._requeue

    def forgetful(self, group, reason, *, counts_as_retry):
        state = requeue(self, group, reason, counts_as_retry=counts_as_retry)
        if reason == "resume":
            self.queue.waiting.pop()
        return state

    monkeypatch.setattr(RolloutScheduler, "_requeue", forgetful)
    kinds = ["kill", "refuse", "evaluation_fail", "hang", "crash", "env_hang", "no_start", "learner_nan", "disk_full"]
    events = tuple(Event(0, 4.0 + i, 0, kind, 1) for i, kind in enumerate(kinds))
    s = replace(scenario(10), mode="pipeline", S=2, push_every=1, save_steps=1, max_steps=1000, events=events)
    s = replace(s, shares=False, curriculum=False)
    assert broken(s, tmp_path / "run")
    short = shrink(s, lambda shorter: bool(broken(shorter, tmp_path / "run")))
    assert [e.kind for e in short.events] == ["crash"]
