"""Progress: plain lines where nobody watches, figures in place on a terminal, and an ETA from the last steps only."""

import io

import pytest
from rich.console import Console

from openrlhf_tir.logs.progress import Progress, bar

METRICS = {
    "reward_mean": 0.5,
    "accuracy": 0.523,
    "code_ratio": 0.61,
    "staleness_mean": 1.25,
    "staleness_max": 2,
    "rolling": 12,
    "buffered": 5,
    "tokens_per_s": 1204.6,
    "drops/zero_variance": 3,
    "failed/timeout": 1,
}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def plain():
    return Console(file=io.StringIO(), force_terminal=False, width=40)


def terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=120)


def test_without_a_terminal_a_step_is_one_plain_line_however_narrow_the_console():
    console, clock = plain(), Clock()
    with Progress(4, console, clock=clock) as progress:
        clock.now = 90.0
        progress.update(1, METRICS)
    assert (
        console.file.getvalue()
        == "step 1/4  reward 0.500  accuracy 52.3%  code 61.0%  staleness 1.2 (max 2)  rolling 12  buffered 5  tok/s"
        " 1,205  dropped 4 (zero_variance 3, failed timeout 1)  eta 4:30\n"
    )


def test_a_run_without_code_is_not_told_of_code():
    console = plain()
    with Progress(4, console, runs_code=False) as progress:
        progress.update(1, METRICS)
        progress.update(2, {"reward_mean": 0.5})
    assert "code" not in console.file.getvalue() and "tools 61.0%" in console.file.getvalue()


def test_drops_are_summed_over_the_run():
    console = plain()
    with Progress(4, console) as progress:
        progress.update(1, {"drops/zero_variance": 3})
        progress.update(2, {"drops/zero_variance": 2, "drops/too_long": 1})
    assert "dropped 6 (zero_variance 5, too_long 1)" in console.file.getvalue().splitlines()[-1]


def test_the_eta_forgets_slow_first_steps():
    clock = Clock()
    progress = Progress(100, plain(), clock=clock)
    assert progress.eta_s is None
    clock.now = 1000.0
    progress.update(1, {})
    assert progress.eta_s == 1000.0 * 99
    for step in range(2, 41):
        clock.now += 2.0
        progress.update(step, {})
    assert progress.eta_s == 2.0 * 60


def test_a_resumed_run_counts_only_its_own_steps_for_the_eta():
    clock = Clock()
    progress = Progress(100, plain(), start_step=40, clock=clock)
    clock.now = 3.0
    progress.update(41, {})
    assert progress.eta_s == 3.0 * 59


def test_on_a_terminal_the_figures_are_shown_beside_the_bar():
    console = terminal()
    with Progress(4, console) as progress:
        progress.update(2, METRICS)
    text = console.file.getvalue()
    assert "2/4" in text and "52.3%" in text and "step 2/4" not in text


def test_a_metric_without_a_value_is_left_out():
    console = plain()
    with Progress(4, console) as progress:
        progress.update(1, {"accuracy": None, "reward_mean": 0.25})
    assert console.file.getvalue().startswith("step 1/4  reward 0.250  eta")


def test_a_bar_without_a_terminal_speaks_at_every_tenth_and_carries_the_note():
    console = plain()
    with bar("cold start", 30, console) as advance:
        for step in range(30):
            advance(note=f"loss {step}")
    lines = console.file.getvalue().splitlines()
    assert lines[:2] == ["cold start: starts", "cold start: 3/30  loss 2"]
    assert len(lines) == 12 and lines[-1].startswith("cold start: done in 0:0")


@pytest.mark.parametrize("total", [10, None])
def test_a_bar_on_a_terminal_shows_what_it_does(total):
    console = terminal()
    with bar("evaluation", total, console) as advance:
        advance(4, note="accuracy 0.5")
    assert "evaluation" in console.file.getvalue() and "accuracy 0.5" in console.file.getvalue()


def test_a_fault_inside_a_bar_is_not_reported_as_done():
    console = plain()
    with pytest.raises(KeyError), bar("set-up", None, console):
        raise KeyError("x")
    assert console.file.getvalue() == "set-up: starts\n"


def test_an_evaluation_is_told_with_the_update_that_it_is_of():
    """That of update 20 ends after step 22."""
    console = Console(file=io.StringIO(), width=200)
    with Progress(30, console) as progress:
        progress.update(22, {"reward_mean": 0.5})
        progress.evaluated(20, {"eval/accuracy": 0.453, "eval/code_ratio": 0.801, "eval/calls": 1.2})
        progress.update(23, {"reward_mean": 0.5})
        progress.evaluated(24, {"eval/failed": 1.0})
    lines = console.file.getvalue().splitlines()
    assert lines[1] == "evaluation of update 20: accuracy 45.3%  code 80.1%  calls 1.20"
    assert "eval" not in lines[0] and "eval 45.3% (update 20)" in lines[2]
    assert lines[3] == "evaluation of update 24: failed"
