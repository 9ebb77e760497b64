"""Preflight of a run that goes on: its checkpoint, what changed since, and room for the next ones."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import asdict, replace

import pytest

from openrlhf_tir.cli.checks import host, run_dir
from openrlhf_tir.cli.preflight import check
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import CheckpointDamaged, Unavailable
from openrlhf_tir.pipeline.checkpoints.lineage import checkpoints_of
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pipeline.ledger.lines import LEDGER
from openrlhf_tir.types import Task

from .runs import CPU, refused


class NoLearner:
    """A learner whose share of a checkpoint is one file."""

    async def save(self, directory):
        (directory / "rank0.pt").write_bytes(b"weights")

    async def written(self):
        return {}


def checkpointed(overrides, tmp_path) -> dict:
    """Overrides of a run that resumes from its own checkpoint."""
    run = {**overrides, "run_dir": str(tmp_path / "run")}
    cfg = load(None, run)
    checkpoints = checkpoints_of(cfg, [Task("1+1?", "2")] * 2)
    ledger = Ledger(cfg.run_dir / LEDGER)
    state = {
        "max_staleness": cfg.pipeline.requested_staleness,
        "batch_size": 2,
        "updates_per_batch": 1,
        "world_size": 1,
        "ledger": asdict(ledger.mark()),
    }

    async def save():
        await checkpoints.take(2, NoLearner())
        await checkpoints.commit(2, state, [], NoLearner())

    asyncio.run(save())
    return {**run, "train.resume": "true"}


def test_a_resume_with_another_staleness_bound_is_refused(ready, tmp_path):
    run = checkpointed(ready, tmp_path)
    assert any(fact.endswith(" step_000002") for fact in check(load(None, run), machine=CPU))
    assert re.search(r"pipeline\.max_staleness = 4, .* 1\b", refused({**run, "pipeline.max_staleness": "1"}))
    assert re.search(r"step_000002.*--resume", refused({**run, "train.resume": "false"}))


def test_all_that_does_not_fit_is_refused_at_once_and_what_changed_besides_is_listed(ready, tmp_path):
    run = checkpointed(ready, tmp_path)
    said = refused(run, train__seed="7", rollout__batch_size="1", ds__param_dtype="fp32", actor__learning_rate="0.1")
    for part in (
        r"train\.seed = 42, .* 7\b",
        r"rollout\.batch_size = 2, .* 1\b",
        r"ds\.param_dtype = bf16, .* fp32\b",
    ):
        assert re.search(part, said)
    other = {
        "actor.learning_rate": "0.5",
        "rollout.n_samples_per_prompt": "8",
        "vllm.num_engines": "2",
        "ckpt.max_num": "5",
    }
    facts = check(load(None, {**run, **other}), machine=CPU)
    changed = [fact.split(": ", 1)[1] for fact in facts if " -> " in fact]
    assert changed == [
        "actor.learning_rate 1e-06 -> 0.5",
        "rollout.n_samples_per_prompt 2 -> 8",
    ]


def test_a_resume_on_another_number_of_learner_ranks_says_so_and_zero_2_is_refused(ready, tmp_path):
    run = {**checkpointed(ready, tmp_path), "actor.num_gpus_per_node": "2"}
    facts = check(load(None, run), machine=CPU)
    unchanged = check(load(None, {**run, "actor.num_gpus_per_node": "1"}), machine=CPU)
    (said,) = {fact for fact in facts if re.search(r"= 1, .* 2: ", fact)} - set(unchanged)
    said = refused({**run, "ds.zero_stage": 2})
    assert re.search(r"\(actor\.num_nodes \* actor\.num_gpus_per_node\) = 1, .* 2 ", said)


def test_a_resume_with_another_model_or_tokenizer_is_refused_before_anything_loads(ready, tmp_path):
    run = checkpointed(ready, tmp_path)
    (tmp_path / "model/config.json").write_text(json.dumps({"hidden_size": 256, "num_attention_heads": 4}))
    (tmp_path / "model/tokenizer.json").write_text('{"other": 1}')
    said = refused(run)
    assert re.search(r"hidden_size = 128, .* 256\b", said) and "tokenizer" in said


def test_a_damaged_checkpoint_is_named_before_anything_loads(ready, tmp_path):
    run = checkpointed(ready, tmp_path)
    (tmp_path / "run/ckpt/step_000002/learner/rank0.pt").write_bytes(b"wEights")
    assert "learner/rank0.pt" in refused(run, error=CheckpointDamaged)


def test_resume_without_a_checkpoint_is_refused_unless_it_may_start_anew(ready, tmp_path):
    run = {**ready, "run_dir": str(tmp_path / "empty"), "train.resume": "true"}
    assert re.search(rf"{tmp_path}/empty.*--resume", refused(run))
    facts = check(load(None, {**run, "train.resume": "false", "train.resume_or_start": "true"}), machine=CPU)
    assert any(str(tmp_path / "empty") in fact for fact in facts)


def test_a_new_run_does_not_delete_checkpoints_whose_pointer_is_lost(ready, tmp_path):
    run = {**checkpointed(ready, tmp_path), "train.resume": "false"}
    (tmp_path / "run/ckpt/latest").unlink()
    assert re.search(rf"{tmp_path}/run .*\(step_000002\)", refused(run))


def test_a_disk_that_cannot_hold_one_checkpoint_is_refused_and_one_that_cannot_hold_all_is_told(
    ready, tmp_path, monkeypatch
):
    vocabulary_alone = {"hidden_size": 10**6, "vocab_size": 10**6, "num_hidden_layers": 0, "intermediate_size": 1}
    config = {**vocabulary_alone, "num_attention_heads": 4, "head_dim": 32, "tie_word_embeddings": True}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    (tmp_path / "model/model.safetensors").rename(tmp_path / "model/pytorch_model.bin")  # whose size nobody reads
    large = replace(CPU, memory=(0, 1 << 50))
    one = 12 * 10**12

    def told(free: int, **settings) -> list[str]:
        monkeypatch.setattr(run_dir, "free_above", lambda path: free)
        monkeypatch.setattr(host, "free_above", lambda path: 1 << 50)
        cfg = load(None, {**ready, **settings})
        return [fact for fact in check(cfg, machine=large) if "ckpt.max_num" in fact]

    with pytest.raises(Unavailable, match=r"11175\.87 GiB.* ckpt\.path.* ckpt\.max_num"):
        told(one)  # a twentieth is kept for more buffered groups
    assert told(one, **{"ckpt.max_num": "0"}) == []
    assert len(told(one * 21 // 20)) == 1
    assert told(one * (1 + load(None, ready).ckpt.max_num)) == []
    (tmp_path / "run/ckpt/step_000002").mkdir(parents=True)
    assert len(told(one, **{"run_dir": str(tmp_path / "run"), "train.overwrite": "true"})) == 1, "it makes room"
