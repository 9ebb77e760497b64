"""Progress: plain lines where nobody watches, figures in place on a terminal, and an ETA from the last steps only."""

import io
import re

import pytest
from rich.console import Console

from openrlhf_tir.telemetry.progress import Progress, bar
from openrlhf_tir.types import KEEP, GroupKey, Verdict
from tests.pipeline.fakes import group_of

METRICS = {
    "reward_mean": 0.5,
    "accuracy": 0.523,
    "code_ratio": 0.61,
    "staleness_mean": 1.25,
    "staleness_max": 2,
    "rolling": 12,
    "buffered": 5,
    "tokens_per_s": 1204.6,
    "response_tokens_mean": 51.6,
    "entropy": 0.4126,
    "kl_rollout": 0.00213,
    "grad_norm": 0.8371,
    "clip_low": 0.004,
    "clip_high": 0.008,
    "wall_s": 104.0,
    "step_s": 58.2,
}


def dropped(reason):
    return group_of(GroupKey(0, 0), 0, Verdict(False, reason))[0]


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
        for _ in range(3):
            progress.group("filtered", dropped("zero_variance"), None)
        progress.group("requeued", None, "timeout")
        progress.update(1, METRICS)
    (line,) = console.file.getvalue().splitlines()
    assert line.split("  ") == [
        "step 1/4",
        "reward 0.500",
        "accuracy 52.3%",
        "code 61.0%",
        "length 52",
        "entropy 0.413",
        "kl 0.0021",
        "grad 0.837",
        "clip 1.2%",
        "staleness 1.2 (max 2)",
        "rolling 12",
        "buffered 5",
        "trained tok/s 1,205",
        "update 104.0 s (learner 58.2 s)",
        "dropped 3 (zero_variance 3)",
        "failed 1 (timeout 1)",
        "eta 4:30",
    ]


def test_a_run_without_code_is_not_told_of_code():
    console = plain()
    with Progress(4, console, runs_code=False) as progress:
        progress.update(1, METRICS)
        progress.update(2, {"reward_mean": 0.5})
    assert "code" not in console.file.getvalue() and "tools 61.0%" in console.file.getvalue()


def test_groups_are_counted_over_the_run_by_what_became_of_them():
    progress = Progress(4, plain())
    kept = group_of(GroupKey(0, 1), 0, KEEP)[0]
    progress.group("buffered", kept, None)
    progress.group("filtered", dropped("zero_variance"), None)
    progress.group("filtered", dropped("too_long"), None)
    progress.group("failed", None, "timeout")
    progress.group("failed", kept, "filter_error")  # no filter dropped it, and it is not accepted
    progress.group("requeued", None, "surplus")  # no fault: it is issued again
    assert (progress.rolled, progress.accepted) == (5, 1)
    assert progress.dropped == {"zero_variance": 1, "too_long": 1}
    assert progress.failed == {"timeout": 1, "filter_error": 1}
    assert progress.sampled_tokens == 4 * sum(kept.model_tokens)


def test_the_eta_is_the_wall_clock_of_whole_cycles_without_the_first():
    """The first update waits for an empty buffer: 1000 s. Then one every 2 s."""
    clock = Clock()
    progress = Progress(100, plain(), clock=clock)
    assert progress.eta_s is None
    clock.now = 1000.0
    progress.update(1, {"step_s": 1.0})
    assert progress.eta_s == 1000.0 * 99, "nothing better is known"
    for step in range(2, 12):
        clock.now += 2.0
        progress.update(step, {"step_s": 1.0})
    assert progress.eta_s == 2.0 * 89
    clock.now += 0.5
    assert progress.eta_s == 2.0 * 89 - 0.5, "between two updates it goes down"


def test_an_update_that_takes_longer_than_the_others_raises_the_eta():
    """Two cycles of 10 s, one of 70 s under way: at (10 + 10 + 70) / 3 = 30 s a cycle, 5 are left behind it."""
    clock = Clock()
    progress = Progress(9, plain(), clock=clock)
    for step, now in ((1, 30.0), (2, 40.0), (3, 50.0)):
        clock.now = now
        progress.update(step, {})
    clock.now = 120.0
    assert progress.eta_s == 30.0 * 5


def test_cycles_that_grow_longer_are_what_the_eta_goes_by():
    """Ten of 2 s, then five of 10 s: the filters drop more and more."""
    clock = Clock()
    progress = Progress(26, plain(), clock=clock)
    for step in range(1, 17):
        clock.now += 2.0 if step <= 11 else 10.0
        progress.update(step, {})
    assert progress.eta_s == 10.0 * 10


def test_a_batch_of_several_updates_is_one_cycle_of_as_many():
    clock = Clock()
    progress = Progress(12, plain(), clock=clock)
    for step in (4, 8):
        clock.now += 40.0
        progress.update(step, {})
    assert progress.cycles.seconds == 10.0 and progress.eta_s == 40.0


@pytest.mark.parametrize("updates", [1_000_000, 10**400])
def test_no_eta_is_shown_for_a_run_that_something_else_will_end(updates):
    """At 10 s an update, a million of them are 116 days, and 10**400 more than a float holds."""
    clock = Clock()
    console = plain()
    progress = Progress(updates, console, clock=clock)
    for step in (1, 2):
        clock.now += 10.0
        progress.update(step, {})
    assert progress.eta_s is None
    clock.now += 100.0
    assert progress.eta_s is None
    assert "eta" not in console.file.getvalue()


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
    assert re.match(r"step 1/4  reward 0\.250  (?!accuracy)", console.file.getvalue())


def test_a_bar_without_a_terminal_speaks_at_every_tenth_and_carries_the_note():
    console = plain()
    with bar("cold start", 30, console) as advance:
        for step in range(30):
            advance(note=f"loss {step}")
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 12 and all(line.startswith("cold start: ") for line in lines)
    assert lines[1] == "cold start: 3/30  loss 2" and re.search(r" 0:0\d", lines[-1])


@pytest.mark.parametrize("total", [10, None])
def test_a_bar_on_a_terminal_shows_what_it_does(total):
    console = terminal()
    with bar("evaluate /m[/b]", total, console) as advance:
        advance(4, note="accuracy 0.5[/]")
    assert "evaluate /m[/b]" in console.file.getvalue() and "accuracy 0.5[/]" in console.file.getvalue()


def test_a_fault_inside_a_bar_is_not_reported_as_done():
    console = plain()
    with pytest.raises(KeyError), bar("set-up", None, console):
        raise KeyError("x")
    assert re.fullmatch(r"set-up: \w+\n", console.file.getvalue())


def test_an_evaluation_is_told_with_the_update_that_it_is_of():
    """That of update 20 ends after step 22."""
    console = Console(file=io.StringIO(), width=200)
    with Progress(30, console) as progress:
        progress.update(22, {"reward_mean": 0.5})
        progress.evaluated(20, {"eval/accuracy": 0.453, "eval/code_ratio": 0.801, "eval/calls": 1.2})
        progress.update(23, {"reward_mean": 0.5})
        progress.evaluated(24, {"eval/failed": 1.0})
        progress.evaluated(
            25,
            {
                "eval/accuracy": 0.5,
                "eval/pass_at_2": 0.6,
                "eval/pass_at_4": 0.7,
                "eval/guess/accuracy": 0.25,
                "eval/guess/pass_at_4": 0.75,
                "eval/sums/accuracy": 0.75,
            },
        )
    lines = console.file.getvalue().splitlines()
    assert re.search(r" 20: accuracy 45\.3%  \w+ 80\.1%  \w+ 1\.20$", lines[1])
    assert "45.3%" not in lines[0] and re.search(r" 45\.3% \(\w+ 20\)", lines[2])
    assert re.search(r" 24: \w+$", lines[3])
    assert re.search(r" 25: accuracy 50\.0%  pass@4 70\.0%  guess 25\.0% \(pass@4 75\.0%\)  sums 75\.0%$", lines[4])
