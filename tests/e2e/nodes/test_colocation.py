"""train.colocate_all as a run: Ray, two ZeRO-3 ranks, two engines in the ranks' own reservation. On CPU, so engines and
states are stand-ins that move nothing: what is shown is the order, the placement, and that nothing else changes.
Nothing here says that a GPU's memory is enough."""

from __future__ import annotations

import re

import pytest

from benchmarks.crash_trial import Fault, clean, command, end, outcome, start, strike
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.telemetry import metrics

SHARED = ("--train.colocate_all", "--vllm.num_engines", "2")


@pytest.mark.long
def test_a_run_on_shared_gpus_whose_learner_and_engine_are_killed_has_the_weights_of_one_on_gpus_of_its_own(
    toy_run, tmp_path
):
    """The ranks that replace the lost one start in the learner's turn, in their old places, and take up the checkpoint;
    the engine waits for its turn."""
    log, rank, engine = tmp_path / "log", Fault("learner-1", 2.5), Fault("rollout-0", 3.5)
    process = start([*command(tmp_path, toy_run.job, deadlines={}), *SHARED], log)
    strike(process, tmp_path, rank, toy_run.step_s)
    strike(process, tmp_path, engine, toy_run.step_s)
    code, said = end(process), " ".join(log.read_text().split())
    assert code == 0 and rank.at_step is not None and engine.at_step is not None, said[-3000:]
    assert re.search(r"\b2 [^:]*\b2 [^:]*: [\d.]+ x 2\b", said), "ranks and engines have one reservation"
    assert re.search(r"\b1 \+ \w+ 1\b", said), "rank 1 and engine 1 are on one GPU"
    columns = metrics.read(tmp_path)
    assert clean(tmp_path, toy_run.job.steps) and audit(tmp_path / "ledger.jsonl").rollbacks == 1
    assert min(columns["turn_s"]) > 0, "every step has waited for its turn"
    assert outcome(tmp_path) == (toy_run.digest, None)


@pytest.mark.long
def test_a_run_whose_engines_hold_gpus_together_with_the_ranks_has_the_weights_of_one_on_gpus_of_its_own(
    toy_run, tmp_path
):
    """train.share_gpus: nobody waits for a turn, and nothing else changes."""
    log = tmp_path / "log"
    beside = ("--train.share_gpus", "--vllm.num_engines", "2")
    process = start([*command(tmp_path, toy_run.job, deadlines={}), *beside], log)
    code, output = end(process), " ".join(log.read_text().split())
    assert code == 0, output[-3000:]
    assert re.search(r"\b1 \+ \w+ 1\b", output), "rank 1 and engine 1 are on one GPU"
    assert not any(metrics.read(tmp_path).get("turn_s", ())), "nobody waits for a turn"
    assert clean(tmp_path, toy_run.job.steps)
    assert outcome(tmp_path) == (toy_run.digest, None)
