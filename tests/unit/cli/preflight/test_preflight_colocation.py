"""train.colocate_all before a run: what is refused, what is said, and how many GPUs it takes."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.cli.preflight import check
from openrlhf_tir.config.settings import load

from ...memory.test_model_size import QWEN_7B
from .runs import CPU, GPUS, refused

SHARED = {"train.colocate_all": True, "pipeline.mode": "sync", "actor.num_gpus_per_node": 4, "vllm.num_engines": 4}


def test_on_a_machine_without_gpus_it_is_refused_with_the_reason(ready, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    said = refused({**ready, **SHARED})
    assert re.match(r"train\.colocate_all .*GPUs\b.*vLLM .*train\.colocate_all ", said)


def test_the_engine_that_is_for_tests_and_a_cluster_elsewhere_are_not_refused(ready, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    shared = {**ready, **SHARED}
    assert any(
        "train.colocate_all" in fact for fact in check(load(None, {**shared, "rollout.engine": "torch"}), machine=CPU)
    )
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert any("train.colocate_all" in fact for fact in check(load(None, shared), machine=CPU))


def test_engines_need_no_gpus_beside_the_ranks(ready, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    shared = {**ready, **SHARED}
    assert "4 GPUs, 32 CPUs" in check(load(None, shared), machine=GPUS)
    assert re.search(r"^4 .* 4 .* x 1 GPUs .* 8 GPUs", refused({**shared, "train.colocate_all": False}, machine=GPUS))
    more = {**shared, "actor.num_gpus_per_node": 8, "vllm.num_engines": 8, "rollout.n_samples_per_prompt": 4}
    assert re.search(r"^8 .* 8 .*(?<! x 1) GPUs .* 8 GPUs, .* 4\b", refused(more, machine=GPUS))


def test_what_each_keeps_of_a_gpu_in_the_others_turn_is_said(ready, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN_7B))
    facts = check(load(None, {**ready, **SHARED}), machine=replace(GPUS, gpu_bytes=None))
    (said,) = [fact for fact in facts if "vllm.gpu_memory_utilization = 0.9" in fact]
    assert "train.colocate_all" in said and said.count(" GiB") == 3


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (
            ("--pipeline.mode", "sync", "--rollout.engine", "torch"),
            0,
            r"train\.colocate_all: .*GPU .* 1 .* 1 ",
        ),
        (
            ("--pipeline.mode", "one_step", "--rollout.engine", "torch"),
            2,
            r"train\.colocate_all.*pipeline\.mode = 'one_step'|pipeline\.mode = 'one_step'.*train\.colocate_all",
        ),
        (("--pipeline.mode", "sync"), 2, r"train\.colocate_all .*GPUs"),
    ],
)
def test_check_only_accepts_and_refuses_it_from_outside(ready, tmp_path, monkeypatch, capsys, flags, code, said):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("openrlhf_tir.cli.checks.host.usable_gpus", lambda: 0)
    given = [text for name, value in ready.items() for text in (f"--{name}", str(value))]
    monkeypatch.setattr("openrlhf_tir.cli.preflight.Machine", lambda: CPU)
    found = main(["train", "--check-only", "--run-dir", str(tmp_path / "run"), *given, "--train.colocate_all", *flags])
    printed = capsys.readouterr()
    assert found == code and re.search(said, printed.out + printed.err)
