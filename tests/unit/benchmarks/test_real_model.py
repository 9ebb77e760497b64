"""The real model's benchmark: seeds from settings, what an attempt reads of a run, and the figures over attempts."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from threading import Timer

import psutil
import pytest

from benchmarks.real_model import attempt as attempts
from benchmarks.real_model.summary import summarise, summarise_with_cold_start
from miniatures.seeds import _settings, seeds
from openrlhf_tir.telemetry import metrics


def made(arm: str = "tool", **more) -> attempts.Attempt:
    figures = {"trained_kinds": 0.9, "unseen_kinds": 0.8, "by_kind": {}}
    facts = {
        "arm": arm, "seed": 1, "settings": "00", "status": 0, "minutes": 20.0, "peak_pss_gb": 8.0,
        "cpu": "", "load": [],
        "before": {"sampled": figures, "greedy": figures}, "after": {"sampled": figures, "greedy": figures},
    }  # fmt: skip
    return attempts.Attempt(**(facts | more))


def of(sampled: float, greedy: float, unseen: float) -> dict:
    """Return an evaluation with these accuracies; `unseen` is greedy on kinds never trained."""
    return {
        "sampled": {"trained_kinds": sampled, "unseen_kinds": 0.0, "by_kind": {}},
        "greedy": {"trained_kinds": greedy, "unseen_kinds": unseen, "by_kind": {}},
    }


def test_seeds_follow_from_the_settings_and_change_with_them(tmp_path, monkeypatch):
    plain, again = attempts.digest("tool", ()), attempts.digest("tool", ())
    other = attempts.digest("tool", ("--actor.learning_rate", "1e-5"))
    assert plain == again
    assert len({plain, other, attempts.digest("no_tool", ())}) == 3
    assert seeds(plain, 3)[:2] == seeds(plain, 2)
    assert set(seeds(plain, 3)).isdisjoint(seeds(other, 3))
    monkeypatch.chdir(tmp_path)
    _settings.cache_clear()
    assert attempts.digest("tool", ()) == plain, "the directory does not count"


def test_the_worst_seed_counts_and_the_best_prompt_before():
    runs = [
        made(before=of(0.1, 0.1, 0.1), after=of(0.85, 0.95, 0.75), minutes=20.0),
        made(before=of(0.2, 0.1, 0.1), after=of(0.81, 0.91, 0.9), minutes=29.0, false_alarms=1, errors=["x"]),
        made("no_tool", after=of(0.3, 0.4, 0.1), minutes=40.0, peak_pss_gb=9.0),
    ]
    found = summarise(runs)
    assert found["accuracy_before"] == 0.15
    assert summarise(runs, {"sampled": {"form": 0.22, "use_python": 0.9}})["accuracy_before"] == 0.22
    assert summarise([], {"sampled": {"form": 0.22, "use_python": 0.24}})["accuracy_before"] == 0.24
    assert (found["greedy_after_min"], found["accuracy_after_min"], found["unseen_kinds_min"]) == (0.91, 0.81, 0.75)
    assert found["accuracy_no_tool"] == 0.4
    assert (found["minutes_max"], found["peak_pss_gb"]) == (29.0, 9.0)
    assert (found["false_alarms"], found["errors"]) == (1, 1)


def test_the_gain_of_a_task_with_a_cold_start_is_within_a_seed_and_the_worst_one_counts():
    runs = [
        made(task="search", untrained=of(0.0, 0.0, 0.0), before=of(0.7, 0.7, 0.0), after=of(0.8, 0.9, 0.0)),
        made(task="search", untrained=of(0.5, 0.1, 0.0), before=of(0.6, 0.7, 0.0), after=of(0.75, 0.95, 0.0)),
    ]
    found = summarise_with_cold_start(runs)
    assert found["gain_over_untrained_min"] == pytest.approx(0.25)
    assert found["gain_over_cold_start_min"] == pytest.approx(0.1)
    assert (found["accuracy_untrained_max"], found["accuracy_cold_start_max"]) == (0.5, 0.7)
    assert (found["accuracy_after_min"], found["greedy_after_min"]) == (0.75, 0.9)
    stopped = made(task="search", status=1, untrained={}, before={}, after={}, errors=["exit code 1: no memory"])
    assert summarise_with_cold_start([stopped])["gain_over_untrained_min"] is None
    assert summarise_with_cold_start([*runs, stopped])["errors"] == 1


def test_attempts_of_another_task_have_other_settings_and_files(tmp_path, monkeypatch):
    of_search = attempts.digest("tool", (), "search")
    assert of_search != attempts.digest("tool", ())
    longer = replace(attempts.TASKS["search"], cold_start=2 * attempts.TASKS["search"].cold_start)
    monkeypatch.setitem(attempts.TASKS, "search", longer)
    assert attempts.digest("tool", (), "search") != of_search, "another cold start is another run"
    paths = {attempts.path_of(tmp_path, "tool", 1, "abcdef", task) for task in attempts.TASKS}
    assert len(paths) == len(attempts.TASKS)


def test_kinds_that_a_task_never_trains_are_apart_and_its_untrained_model_is_read(tmp_path):
    def evaluated(directory, step, trained, unseen):
        kinds = {"simple": trained, "irrelevance": unseen}
        row = {"step": step}
        for kind, value in kinds.items():
            row |= {f"eval/kind/{kind}/accuracy": value, f"eval/kind/{kind}/greedy_accuracy": value}
        directory.mkdir(exist_ok=True)
        with (directory / metrics.FILE).open("a") as file:
            file.write(json.dumps(row) + "\n")

    evaluated(tmp_path, 0, 0.2, 0.5)
    evaluated(tmp_path, 4, 0.4, 0.25)
    figures = tmp_path / attempts.UNTRAINED_FIGURES
    # Accuracy, and the share of responses with a call.
    sampled = {"all": [0.5, 0.0], "simple": [0.125, 0.0], "irrelevance": [0.875, 0.0]}
    greedy = {"all": [0.5, 0.0], "simple": [0.0, 0.0], "irrelevance": [1.0, 0.0]}
    figures.write_text(json.dumps({"sampled": {"by_kind": sampled}, "greedy": {"by_kind": greedy}}))
    attempt = made(task="functions", before={}, after={})
    attempts.read_run(attempt, tmp_path)
    read = [
        (at["greedy"]["trained_kinds"], at["greedy"]["unseen_kinds"])
        for at in (attempt.untrained, attempt.before, attempt.after)
    ]
    assert read == [(0.0, 1.0), (0.2, 0.5), (0.4, 0.25)]
    assert attempt.untrained["sampled"]["trained_kinds"] == 0.125


def test_without_an_arm_its_figure_is_none():
    assert summarise([made()])["accuracy_no_tool"] is None
    assert summarise([])["greedy_after_min"] is None


def test_an_attempt_that_failed_is_kept_and_is_not_taken_for_finished(tmp_path):
    path = attempts.path_of(tmp_path, "tool", 1, "abcdef1234")
    attempts.write(made(status=1, before={}, after={}, errors=["exit code 1: no memory"]), path)
    assert json.loads(path.read_text())["errors"] == ["exit code 1: no memory"]
    assert attempts.stored(path) is None
    attempts.write(made(), path)
    assert attempts.stored(path) == made()
    assert attempts.path_of(tmp_path, "tool", 1, "ffff") != path


def test_an_attempt_without_the_evaluation_of_its_untrained_model_is_run_again(tmp_path):
    path = attempts.path_of(tmp_path, "tool", 1, "abcdef1234", "search")
    attempts.write(made(task="search", errors=["evaluation of the untrained model: exit code 1"]), path)
    assert attempts.stored(path) is None
    whole = made(task="search", untrained=of(0.1, 0.1, 0.0))
    attempts.write(whole, path)
    assert attempts.stored(path) == whole


def test_a_run_directory_gives_accuracy_by_kind_failures_and_refused_proofs(tmp_path):
    rows = [
        {
            "step": 0,
            "eval/kind/product/accuracy": 0.25, "eval/kind/product/greedy_accuracy": 0.5,
            "eval/kind/eggs/accuracy": 0.0, "eval/kind/eggs/greedy_accuracy": 0.0, "canary_repeats": 1,
        },
        {"step": 1, "wall_s": 60.0, "accuracy": 0.5, "canary_repeats": 1, "pushes_repeated": 1, "failed/deadline": 2},
        {
            "step": 1,
            "eval/kind/product/accuracy": 0.75, "eval/kind/product/greedy_accuracy": 1.0,
            "eval/kind/eggs/accuracy": 0.5, "eval/kind/eggs/greedy_accuracy": 0.25,
        },
    ]  # fmt: skip
    (tmp_path / metrics.FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "config.toml").write_text('[ds]\nparam_dtype = "fp32"\n')
    attempt = made(before={}, after={})
    attempts.read_run(attempt, tmp_path)
    assert attempt.before["sampled"]["trained_kinds"] == 0.25
    assert attempt.after["greedy"] == {
        "trained_kinds": 1.0,
        "unseen_kinds": 0.25,
        "by_kind": {"product": 1.0, "eggs": 0.25},
    }
    assert attempt.false_alarms == 2, "one push was refused once, one on other texts as well"
    assert attempt.errors == ["failed/deadline: 2"]
    assert attempt.precision == "fp32"
    assert [row["wall_s"] for row in attempt.steps] == [60.0]


@pytest.mark.slow
@pytest.mark.parametrize("deadline_s", [0.01, 600.0], ids=["it takes too long", "it fails"])
def test_an_attempt_whose_untrained_model_gives_no_figures_keeps_the_others_and_is_not_complete(
    tmp_path, monkeypatch, deadline_s
):
    monkeypatch.setattr(attempts, "EVAL_S", deadline_s)
    (tmp_path / attempts.UNTRAINED_FIGURES).write_text("of an earlier run")
    attempt = made(task="search")
    attempts._evaluate_untrained(attempt, tmp_path, tmp_path / "log")  # there is no config.toml
    assert len(attempt.errors) == 1
    assert not (tmp_path / attempts.UNTRAINED_FIGURES).exists()
    assert attempt.after and not attempt.untrained and not attempt.complete


@pytest.mark.parametrize("arm", attempts.ARMS)
def test_every_arm_is_a_configuration(arm):
    assert len(attempts.digest(arm, ())) == 64


@pytest.mark.parametrize("moment", ["as it begins to watch", "as it watches"])
def test_a_benchmark_that_is_told_to_stop_stops_the_run_under_way(tmp_path, monkeypatch, moment):
    script = tmp_path / "train_scripts" / "quickstart.sh"
    script.parent.mkdir()
    script.write_text(f"echo $$ > {tmp_path}/started; mv {tmp_path}/started {tmp_path}/pid; exec sleep 600\n")
    monkeypatch.setattr(attempts, "REPO", tmp_path)
    pid = tmp_path / "pid"

    class Sampler(attempts.PssSampler):
        def __enter__(self) -> Sampler:
            while not pid.exists():
                time.sleep(0.01)
            if moment == "as it begins to watch":
                signal.raise_signal(signal.SIGUSR1)
            Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            return super().__enter__()

    monkeypatch.setattr(attempts, "PssSampler", Sampler)
    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            attempts.make("tool", 1, "settings", (), tmp_path / "run")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not psutil.pid_exists(int(pid.read_text()))
