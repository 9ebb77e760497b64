"""A model's text on a terminal: shown, never obeyed."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from openrlhf_tir.cli.play import show as show_sample
from openrlhf_tir.cluster.jobs.play import show as show_episode
from openrlhf_tir.observability.report.samples import Sample
from openrlhf_tir.telemetry.printable import printable
from openrlhf_tir.types import Segment, Task, Trajectory

TITLE = "\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc é 漢", "a\nb\tc é 漢"),
        ("\x1b[2J", "\\x1b[2J"),
        (TITLE, "\\x1b]0;owned\\x07"),
        ("a\rb\x08c\x7f", "a\\rb\\x08c\\x7f"),
        ("\x9b31m", "\\x9b31m"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_shown_as_they_are_written(text, shown):
    assert printable(text) == shown


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=False, width=200)


def test_play_sends_no_escape_of_the_model_to_the_terminal():
    arrays = np.zeros(1, np.int32), np.zeros(1, np.float32), np.zeros(1, np.int32)
    trajectory = Trajectory(0, np.zeros(1, np.int32), [Segment("model", *arrays, TITLE)], [], finish_reason="stop")
    console = terminal()
    show_episode(console, Task(TITLE, "0"), trajectory)
    assert "\x1b" not in console.file.getvalue() and "owned" in console.file.getvalue()


def test_play_of_a_run_sends_no_escape_of_the_model_to_the_terminal():
    row = {
        "key": [0, 0, 0],
        "index": 0,
        "prompt": TITLE,
        "runs": [{"source": "model", "text": TITLE, "tokens": 1, "versions": [0, 0]}],
        "failed": None,
        "masked": False,
        "reward": 1.0,
        "parts": {},
        "calls": [],
        "label": TITLE,
        "verdict": "",
        "finish_reason": "stop",
        "stop_reason": None,
        "env": "x",
        "versions": [0, 0],
        "update": 0,
        "why": TITLE,
    }
    console = terminal()
    show_sample(console, Sample("", row))
    assert "\x1b" not in console.file.getvalue() and "owned" in console.file.getvalue()
