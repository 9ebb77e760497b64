"""What a start is made of (benchmarks/start_up.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.start_up import TOKENS, kind_of, run_dir_of, tokens_of


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (["ray::RolloutActor.invoke"], "rollout actor"),
        (["VLLM::EngineCore"], "vLLM EngineCore"),
        (["ray::LearnerRank.start"], "learner"),
        (["python", "-m", "env_servers.python_tir", "--port", "0"], "environment server"),
        (["python", "-m", "openrlhf_tir.cluster.jobs.reading"], "reader of the prompts"),
        (["/venv/ray/core/src/ray/raylet/raylet"], "Ray's daemons"),
        (["bwrap"], "others"),
    ],
)
def test_a_process_is_told_by_its_command_line(command, kind):
    assert kind_of(command) == kind


@pytest.mark.parametrize(
    ("arguments", "run_dir"),
    [
        (["train", "--run-dir", "runs/a", "--recipe", "x"], Path("runs/a")),
        (["train", "--run_dir=runs/a"], Path("runs/a")),
        (["train", "--run-dir"], None),
        (["train"], None),
    ],
)
def test_the_run_directory_is_found_however_it_is_written(arguments, run_dir):
    assert run_dir_of(arguments) == run_dir


def test_an_actor_that_does_not_answer_has_sampled_nothing(tmp_path):
    endpoint = tmp_path / "rollout-0"
    endpoint.write_text("http://127.0.0.1:9\n")
    assert tokens_of(endpoint) == 0.0


def test_the_counter_is_one_that_actors_export():
    from openrlhf_tir.rollout.serving import metrics

    assert f'"{TOKENS}"' in Path(metrics.__file__).read_text()
