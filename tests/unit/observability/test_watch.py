"""watch: the live page of a run before its first update, while it runs, when it is silent, and after its end."""

from __future__ import annotations

import json
import re

import pytest
from starlette.testclient import TestClient

from openrlhf_tir.cli import main
from openrlhf_tir.config import Logger
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.observability.live_page import REDRAW_S, LivePage, check_is_run
from openrlhf_tir.observability.watch import watch_app
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.telemetry import heartbeat
from openrlhf_tir.telemetry.heartbeat import STALE_S
from openrlhf_tir.telemetry.metrics import MetricsLog
from openrlhf_tir.telemetry.trajectories import TrajectoryLog
from openrlhf_tir.types import Group, GroupKey, Task, Verdict
from tests.pipeline.fakes import group_of

from .report.test_samples import member

NOW = 1_000_000.0
STATUS = {
    "waits_for": "waiting for groups: 3 of 16 accepted",
    "step": 0,
    "max_steps": 24,
    "rolling": 20,
    "in_env": {"python_tir": 2},
    "rolled": 103,
    "accepted": 3,
    "dropped": {"accuracy_low": 100},
    "failed": {},
    "tokens_per_s": 943.0,
    "first_step_s": 130.0,
    "eta_s": None,
}


class Clock:
    now = NOW

    def __call__(self):
        return self.now


def write_status(run_dir, **facts):
    status = {"time": NOW, "pid": 1, "since_start_s": 92.0, "stage": "", "stage_note": "", "notice": []}
    (run_dir / heartbeat.FILE).write_text(json.dumps({**status, "status": STATUS, **facts}))


def write_steps(run_dir, first, last):
    with MetricsLog(run_dir, Logger(tensorboard_dir=None)) as log:
        for step in range(first, last + 1):
            log.log(step, {"reward_mean": step / 10, "accuracy": 0.5, "entropy": 0.4})


def drop_a_group(run_dir, text):
    ledger = Ledger(run_dir / "ledger.jsonl")
    log = TrajectoryLog(run_dir, "rollout-0", 0.0, sampled=8)
    key = GroupKey(0, 7)
    ledger.issued(key, 0)
    log.write(group_of(key, 0, Verdict(False, "accuracy_low"))[0], Group(key, Task("Q: ", "42"), [member(0, text)]))
    ledger.ended("filtered", key, reason="accuracy_low")
    ledger.close()
    log.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(tmp_path, clock):
    return TestClient(watch_app(LivePage(tmp_path, clock)), base_url="http://localhost")


def test_a_directory_that_is_no_run_is_refused_before_a_server_starts(tmp_path, capsys):
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError):
            check_is_run(directory)
        assert main(["watch", str(directory)]) == 2
    write_status(tmp_path)
    check_is_run(tmp_path)


def test_before_the_first_update_the_page_says_what_is_waited_for(client, tmp_path):
    write_status(tmp_path, notice=["WARNING: nothing was accepted"])
    drop_a_group(tmp_path, "<script>alert(1)</script>")
    page = client.get("/")
    assert page.status_code == 200
    for text in ("running", "3 of 16 accepted", "accuracy_low", "100", "WARNING: nothing", "2:10", "20 groups rolling"):
        assert text in page.text
    assert "<script>alert" not in page.text and "&lt;script&gt;alert(1)" in page.text
    assert "<img" not in page.text, "there is no curve yet"
    assert "script-src 'self'" in page.headers["content-security-policy"]


def test_the_page_shows_an_update_when_it_is_there_and_draws_again_at_most_every_few_seconds(client, tmp_path, clock):
    write_status(tmp_path)
    before = client.get("/state.json").json()
    write_steps(tmp_path, 1, 3)
    clock.now += REDRAW_S
    after = client.get("/state.json").json()
    assert before["figures"] != after["figures"] and "0.300" in after["now"], "the last reward"
    figures = client.get("/figures").text
    assert 'id="reward"' in figures and 'id="staleness"' not in figures
    write_steps(tmp_path, 4, 4)
    clock.now += REDRAW_S / 2
    assert client.get("/state.json").json()["figures"] == after["figures"]
    clock.now += REDRAW_S
    assert client.get("/state.json").json()["figures"] != after["figures"]


@pytest.mark.parametrize("ahead_s", [-300.0, 300.0])
def test_a_run_on_a_node_whose_clock_differs_lives_as_long_as_its_status_changes(client, tmp_path, clock, ahead_s):
    def shown() -> str:
        return client.get("/").text

    for _ in range(2):
        clock.now += 3.0
        write_status(tmp_path, time=clock.now + ahead_s, stage="starting engines")
        page = shown()
    assert "running" in page and "no sign of life" not in page
    clock.now += STALE_S + 1
    assert "no sign of life" in shown()


@pytest.mark.parametrize("ahead_s", [-300.0, 0.0, 300.0])
def test_a_run_that_died_while_nobody_looked_at_the_page_is_shown_as_dead(client, tmp_path, clock, ahead_s):
    """A laptop slept: the page knows the status of the evening, and the last one is of soon after."""

    def shown() -> str:
        return client.get("/").text

    for _ in range(2):
        clock.now += 3.0
        write_status(tmp_path, time=clock.now + ahead_s, stage="starting engines")
        assert "running" in shown() or ahead_s
    write_status(tmp_path, time=clock.now + 60.0 + ahead_s, stage="starting engines")
    clock.now += 60.0 + 7200.0
    assert "no sign of life for 2:00:00" in shown()
    write_status(tmp_path, time=clock.now + ahead_s, stage="starting engines")
    assert "no sign of life" not in shown()


def test_samples_are_asked_for_again_when_a_group_ended_and_at_most_every_few_seconds(client, tmp_path, clock):
    def version() -> str:
        write_status(tmp_path, time=clock.now)
        return client.get("/state.json").json()["samples"]

    def end_a_group() -> None:
        with (tmp_path / "ledger.jsonl").open("a") as file:
            file.write("{}\n")

    drop_a_group(tmp_path, "x")
    first = version()
    clock.now += REDRAW_S
    assert version() == first, "nothing has ended since"
    end_a_group()
    second = version()
    assert second != first
    clock.now += REDRAW_S / 2
    end_a_group()
    assert version() == second
    clock.now += REDRAW_S
    assert version() != second


def test_a_group_that_ends_while_the_page_is_made_is_asked_for_later(tmp_path, clock, monkeypatch):
    write_status(tmp_path)
    drop_a_group(tmp_path, "x")
    page = LivePage(tmp_path, clock)

    def read_while_a_group_ends() -> str:
        read = LivePage.samples(page)
        drop_a_group(tmp_path, "y")
        return read

    monkeypatch.setattr(page, "samples", read_while_a_group_ends)
    shown = re.search(r'id="samples" data-version="([^"]*)"', page.page())[1]
    clock.now += REDRAW_S
    assert page.state()["samples"] != shown


def test_both_sides_of_the_clip_range_are_shown(client, tmp_path):
    write_status(tmp_path)
    with MetricsLog(tmp_path, Logger(tensorboard_dir=None)) as log:
        log.log(1, {"clip_low": 0.25, "clip_high": 0.125})
    now = client.get("/state.json").json()["now"]
    assert "25.0%" in now and "12.5%" in now


@pytest.mark.slow
def test_a_figure_is_a_picture(client, tmp_path):
    write_status(tmp_path)
    write_steps(tmp_path, 1, 3)
    assert client.get("/picture/reward.png").content[:4] == b"\x89PNG"
    assert client.get("/picture/staleness.png").status_code == 404
    assert client.get("/picture/..%2Fconfig.png").status_code == 404


def condition_of(state: dict[str, str]) -> str:
    """The run's condition, which the title of the browser's tab ends with."""
    return state["title"].rpartition(" · ")[2]


@pytest.mark.parametrize(
    ("facts", "later_s", "condition"),
    [
        ({}, 5, "running"),
        ({}, 600, ".* 10:00"),
        ({"ended": "finished"}, 600, "finished"),
        ({"ended": "stopped"}, 600, "stopped"),
        ({"ended": "StallError: nothing moved"}, 600, "failed"),
    ],
)
def test_the_page_tells_a_run_that_runs_from_one_that_ended_and_one_that_was_killed(
    client, tmp_path, clock, facts, later_s, condition
):
    write_status(tmp_path, **facts)
    clock.now += later_s
    state = client.get("/state.json").json()
    assert re.fullmatch(condition, condition_of(state))
    assert ("StallError: nothing moved" in state["now"]) == (condition == "failed")


def test_a_run_of_an_earlier_version_is_shown_without_a_status(client, tmp_path):
    write_steps(tmp_path, 1, 3)
    assert condition_of(client.get("/state.json").json()) not in ("running", "finished", "")
    assert 'id="reward"' in client.get("/figures").text


def test_on_a_loopback_address_only_loopback_names_are_answered(client, tmp_path):
    write_status(tmp_path)
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    assert client.get("/", headers={"host": "127.0.0.1:6007"}).status_code == 200


def test_beyond_loopback_nothing_is_answered_without_the_token(tmp_path):
    write_status(tmp_path)
    app = watch_app(LivePage(tmp_path, Clock()), "secret")
    stranger = TestClient(app, base_url="http://10.0.0.1", follow_redirects=False)
    for path in ("/", "/state.json", "/figures", "/samples", "/picture/reward.png", "/watch.js", "/?token=wrong"):
        assert stranger.get(path).status_code == 401
    assert stranger.get("/", headers={"authorization": "Bearer secret"}).status_code == 200
    moved = stranger.get("/?token=secret")
    assert moved.status_code == 303 and moved.headers["location"] == "/", "the token leaves the address bar"
    cookie = moved.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert stranger.get("/").status_code == 200, "by the cookie"
