"""The GPU benchmark, as far as a CPU shows it: what it says where packages are missing, and the shapes it knows."""

from __future__ import annotations

import argparse
import json
import sys

import pytest

from benchmarks.gpu import h200
from tests.contract.docs.docs_blocks import REPO

pytestmark = pytest.mark.extended


def test_what_is_not_installed_is_said_and_torch_shows_the_rest(tmp_path):
    asked = []

    def run(part, model):
        asked.append(part)
        return {f"{part}_s": 1.0}

    facts = h200.run_all(["learner", "engine", "canary"], lambda package: package != "vllm", run, tmp_path)
    assert asked == ["learner", "torch"]
    assert [reason.partition(":")[0] for reason in facts["could_not"]] == ["engine", "canary"]
    assert "vllm" in facts["could_not"][0]
    assert (facts["learner_s"], facts["torch_s"]) == (1.0, 1.0)


def test_a_part_that_fails_costs_no_other(tmp_path):
    facts = h200.run_all(
        ["learner", "engine"],
        lambda package: True,
        lambda part, model: "no" if part == "learner" else {part: 1},
        tmp_path,
    )
    assert facts == {"engine": 1, "torch": 1, "could_not": ["no"]}


def test_it_is_the_users_recipe():
    given = dict(groups=2, samples=2, tokens=64, micro_tokens=512, requests=4, learning_rate=1e-4, model="m")
    made = h200.config(
        argparse.Namespace(shape="7b", attention="flash_attention_2", recompute="all", no_liger=False, **given)
    )
    assert (made.ds.packing_samples, made.ds.param_dtype, made.ds.attn_implementation, made.vllm.enforce_eager) == (
        True,
        "bf16",
        "flash_attention_2",
        False,
    )


@pytest.mark.slow
def test_torch_alone_runs_on_a_cpu(monkeypatch, capsys):
    """The command in this process; its part has one of its own."""
    monkeypatch.chdir(REPO)
    monkeypatch.setattr(sys, "argv", ["h200", "--shape", "tiny", "--only", "torch", "--tokens", "64"])
    with pytest.raises(SystemExit) as ended:
        h200.main()
    assert ended.value.code == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert facts["could_not"] == [] and facts["chunked_head_s"] > 0 and facts["sdpa_s"] > 0
