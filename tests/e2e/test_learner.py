"""The learner on real DeepSpeed ranks, against a plain PyTorch model on one process. Everything runs in
tests/e2e/support/learner_runs.py."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.errors import CheckpointDamaged
from openrlhf_tir.pipeline.checkpoints import manifest

from .support.learner_runs import SEQUENCES, SFT_ROWS, batch, cut_config, run
from .support.plain_learner import (
    assert_same_gradient,
    plain_actor_critic,
    plain_gradient,
    plain_gradient_of_value,
    plain_logprobs,
    plain_policy_loss,
    plain_updates,
    relative,
)
from .support.ports import store_port
from .support.ranks import run_ranks
from .support.tiny_model import save_tiny

pytestmark = pytest.mark.slow
WORLDS = (1, 2)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    out = tmp_path_factory.mktemp("learner")
    save_tiny(out / "model", scale=1.0)
    (out / "incomplete").mkdir()
    (out / "incomplete" / "learner.json").write_text(json.dumps({"version": 1, "world_size": 4}))
    return out


@pytest.fixture(scope="module")
def results(workdir):
    """results[world][rank]; both sizes run at the same time."""
    run_ranks(run, *((world, store_port(), workdir / "model", workdir) for world in WORLDS))
    return {w: [pickle.loads((workdir / f"results-{w}-{r}.pkl").read_bytes()) for r in range(w)] for w in WORLDS}


@pytest.fixture(scope="module")
def model(workdir):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(workdir / "model", dtype=torch.float32)


def test_every_load_gives_every_rank_the_weights_of_the_file(results, workdir):
    from openrlhf_tir.weights.digest import digest_file

    on_disk = digest_file(workdir / "model" / "model.safetensors")
    assert [h for w in WORLDS for rank in results[w] for h in rank["loaded"]] == [on_disk] * 6


@pytest.mark.parametrize("world", WORLDS)
def test_the_gradient_is_that_of_plain_pytorch_on_the_whole_batch(results, model, world):
    loss = plain_policy_loss(model)
    assert results[world][0]["metrics"]["loss"] == pytest.approx(loss.item(), rel=1e-4, abs=1e-6)
    assert_same_gradient(results[world][0]["grads"], plain_gradient(model, loss))


@pytest.mark.parametrize("world", WORLDS)
def test_packing_without_padding_gives_the_same_gradient_and_scores(results, model, world):
    first = results[world][0]
    assert_same_gradient(first["packed_grads"], first["grads"])
    for got, expected in zip(first["packed_scores"], first["scores"], strict=True):
        assert np.allclose(got, expected, atol=1e-5)


def test_metrics_are_global_and_the_same_on_one_rank_and_two(results):
    one, two = results[1][0]["metrics"], results[2][0]["metrics"]
    assert results[2][1]["metrics"] == two
    assert one == pytest.approx(two, rel=1e-4, abs=1e-6)
    assert one["trained_tokens"] == sum(t.model_tokens for g in batch(1, seed=0)[1] for t in g.trajectories)
    assert one["lr"] == 1e-3
    assert one["clip_high"] > 0  # the batch exercises the clip


@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_times_its_passes_those_without_gradients_and_the_optimizer(results, world):
    """The first learner has scored texts before its step, as for the proof of a push, and needs no scores in it; the
    others have log-probs from before the first update, or a reference and a critic."""
    for rank in results[world]:
        assert rank["timed"] == {"passes_s", "optimizer_s"}
        assert rank["several_timed"] == rank["roles"]["timed"] == {"passes_s", "optimizer_s", "scoring_s"}


@pytest.mark.parametrize("world", WORLDS)
def test_scores_are_those_of_plain_transformers_on_every_rank(results, model, world):
    for rank in results[world]:
        for ids, got in zip(SEQUENCES, rank["scores"], strict=True):
            assert got.dtype == np.float32
            assert np.allclose(got, plain_logprobs(model, ids).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("world", WORLDS)
def test_a_resumed_run_goes_on_bit_for_bit(results, world):
    for rank in results[world]:
        assert rank["resumed"] == rank["continued"] != rank["weights"]
        assert rank["redrawn"] == rank["drawn"]
        assert (rank["resumed_version"], rank["version"]) == (1, 2)


@pytest.mark.parametrize("world", WORLDS)
def test_a_gradient_that_is_not_finite_changes_nothing_and_says_so(results, world):
    """One reward of nine is NaN. It comes before the resumed step above, whose weights are bit for bit those without
    it: the optimiser too is untouched."""
    for rank in results[world]:
        grad_norm, before, after = rank["broken"]
        assert not np.isfinite(grad_norm) and before == after


@pytest.mark.parametrize("world", WORLDS)
def test_what_a_rank_hashes_while_it_writes_is_what_is_on_disk(results, workdir, world):
    """And together the ranks tell of every file of tensors; the controller hashes the others, learner.json and scripts
    that DeepSpeed copies."""
    written = {path: facts for rank in results[world] for path, facts in rank["written"].items()}
    assert all(manifest.digest(Path(path)) == facts for path, facts in written.items())
    others = [p for p in (workdir / f"ckpt-{world}").rglob("*") if p.is_file() and str(p) not in written]
    assert {p.suffix for p in others} == {".json", ".py"} and all(p.stat().st_size < 100_000 for p in others)


def test_every_damaged_file_of_two_real_ranks_is_named_before_anything_is_loaded(results, workdir, tmp_path):
    step = tmp_path / "step_000001"
    shutil.copytree(workdir / "ckpt-2", step / "learner")
    manifest.write(step, step.name, {}, {})
    manifest.verify(step)
    files = sorted(p for p in step.rglob("*") if p.is_file())
    assert len(files) >= 7  # manifest, learner.json, and per rank RNG, model and optimiser
    for path in files:
        raw = path.read_bytes()
        # the ranks' random states may be equal
        others = [p.read_bytes() for p in files if p.suffix == path.suffix == ".pt"]
        edits = [
            raw[:-1] + bytes([raw[-1] ^ 1]),
            bytes([raw[0] ^ 1]) + raw[1:],
            raw[: len(raw) // 2],
            b"",
            *(o for o in others if o != raw),
        ]
        for edit in [*edits, None]:
            path.unlink()
            if edit is not None:
                path.write_bytes(edit)
            with pytest.raises(CheckpointDamaged, match=path.name):
                manifest.verify(step)
            path.write_bytes(raw)
    manifest.verify(step)


@pytest.mark.parametrize("world", WORLDS)
def test_a_reloaded_learner_is_a_new_one(results, world):
    """Nothing of the fine-tuning before is left, neither weights nor moments of the optimiser."""
    for rank in results[world]:
        assert rank["reloaded"] == (0, rank["loaded"][0])
        assert rank["reloaded_then_stepped"] == rank["weights"]


def test_a_checkpoint_that_does_not_fit_is_refused_with_the_remedy(results):
    absent, incomplete = results[1][0]["refused"]
    assert "absent" in absent
    assert "learner.json" in absent
    assert "zero/" in incomplete


@pytest.mark.parametrize("world", WORLDS)
def test_the_published_file_has_hf_names_once_and_the_digest_that_was_returned(results, workdir, world):
    from safetensors import safe_open

    from openrlhf_tir.weights.digest import digest_file

    path = workdir / f"published-{world}.safetensors"
    digests = [rank["published"] for rank in results[world]]
    assert digests == [digest_file(path), None][:world]
    with safe_open(path, "np") as f:
        names = set(f.keys())
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names  # tied
    assert not list(workdir.glob("*.partial"))


@pytest.mark.parametrize("world", WORLDS)
def test_a_broadcast_of_zero_3_shards_brings_the_published_weights_bucket_by_bucket(results, workdir, world):
    (sent, received, counts), *others = [rank["broadcast"] for rank in results[world]]
    assert sent.digest == received.digest == results[world][0]["published"]
    assert sent.nbytes == received.nbytes > 600_000 and counts[0] > counts[1] > 6
    assert others == [(None, None, None)][: world - 1]


@pytest.mark.parametrize("world", WORLDS)
def test_every_rank_of_zero_3_exposes_the_published_weights_to_the_engine_beside_it(results, world):
    for rank in results[world]:
        digest, buckets, fault = rank["exposed"]
        assert (digest, fault) == (results[world][0]["published"], None) and buckets > 6


@pytest.mark.parametrize("world", WORLDS)
def test_a_delta_of_zero_3_shards_makes_the_pushed_file_the_weights_after_the_step(results, workdir, tmp_path, world):
    from openrlhf_tir.weights.digest import digest_file
    from openrlhf_tir.weights.node_copy import NodeCopy

    node, push = NodeCopy(keep=True, root=tmp_path), workdir / f"push-{world}"
    pushed = [rank["pushed"] for rank in results[world]]
    (changes, weights), *others = [rank["changes"] for rank in results[world]]
    assert all(of is None for of, _ in others) and changes.digest == weights != pushed[0]
    node.full(push / "v0.safetensors", 0, pushed[0])
    assert digest_file(node.delta(push / "v1.delta", 1, *changes)) == weights
    assert (push / "v1.delta").stat().st_size < (push / "v0.safetensors").stat().st_size / 4


@pytest.mark.parametrize("world", WORLDS)
def test_plain_transformers_loads_the_export(results, workdir, world):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from openrlhf_tir.weights.digest import digest_file

    directory = workdir / f"export-{world}"
    loaded, info = AutoModelForCausalLM.from_pretrained(directory, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert loaded.config.use_cache
    assert digest_file(directory / "model.safetensors") == results[world][0]["continued"]
    assert AutoTokenizer.from_pretrained(directory).decode([5]) == AutoTokenizer.from_pretrained(
        workdir / "model"
    ).decode([5])


@pytest.mark.parametrize("world", WORLDS)
def test_fine_tuning_is_the_weighted_token_mean_over_the_global_batch(results, model, world):
    import torch

    weights = [torch.tensor(w[1:]) for _, w in SFT_ROWS]
    loss = -sum((w * plain_logprobs(model, ids)).sum() for w, (ids, _) in zip(weights, SFT_ROWS, strict=True)) / sum(
        w.sum() for w in weights
    )
    assert results[world][0]["sft_metrics"]["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert_same_gradient(results[world][0]["sft_grads"], plain_gradient(model, loss))
    for rank in results[world]:
        total, weight = rank["sft_loss"]
        assert total / weight == pytest.approx(loss.item(), rel=1e-5), (
            "the held-out loss of the same rows and weights, on every rank"
        )


@pytest.mark.parametrize("world", WORLDS)
def test_a_batch_in_eight_updates_is_what_plain_pytorch_makes_of_it(results, model, world):
    """On any number of ranks: the parts are cut before the ranks are known, and pi_old is that of the batch's start in
    all of them."""
    start = {name: p.detach().numpy() for name, p in model.named_parameters()}
    losses, weights = plain_updates(model, cut_config("", world))
    metrics, version = results[world][0]["several"]
    assert version == metrics["updates"] == 8 and metrics["updates_left_out"] == 0
    assert metrics["loss"] == pytest.approx(np.mean(losses), abs=1e-4)
    assert relative(results[world][0]["several_weights"], weights, start) < 0.01
    assert metrics["staleness_max"] == 7 and 0 < metrics["grad_norm"] < metrics["grad_norm_max"]


def test_eight_updates_on_two_ranks_end_where_those_on_one_do(results, model):
    start = {name: p.detach().numpy() for name, p in model.named_parameters()}
    assert relative(results[2][0]["several_weights"], results[1][0]["several_weights"], start) < 0.01


@pytest.mark.parametrize("world", WORLDS)
def test_a_run_of_several_updates_resumes_bit_for_bit(results, world):
    for rank in results[world]:
        version, resumed, continued = rank["several_resumed"]
        assert version == 8 and resumed == continued


@pytest.mark.parametrize("world", WORLDS)
def test_lora_trains_adapters_and_publishes_merged_weights(results, workdir, world):
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    first = results[world][0]
    lora = first["lora"]
    assert all(rank["lora"]["fresh"] == first["loaded"][0] for rank in results[world])  # an update begins at 0
    assert (
        all("_proj" in name for name in lora["trainable"])
        and len({rank["lora"]["stepped"] for rank in results[world]}) == 1
    )
    assert lora["stepped"] == lora["published"] != lora["fresh"]
    before, after = load_file(workdir / "model" / "model.safetensors"), load_file(workdir / f"lora-{world}.safetensors")
    assert before.keys() == after.keys()
    ranks = {
        name: int(torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3))
        for name in before
        if not torch.equal(before[name], after[name])
    }
    assert ranks and all("_proj" in name and rank <= 4 for name, rank in ranks.items())
    merged = AutoModelForCausalLM.from_pretrained(workdir / "model", dtype=torch.float32)
    merged.load_state_dict(after, strict=False)
    for ids, got in zip(SEQUENCES, lora["scores"], strict=True):
        assert np.allclose(got, plain_logprobs(merged, ids).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("world", WORLDS)
def test_lora_resumes_bit_for_bit_and_exports_both_forms(results, workdir, world):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from openrlhf_tir.weights.digest import digest_file

    for rank in results[world]:
        assert rank["lora"]["resumed"] == rank["lora"]["continued"] and rank["lora"]["resumed_version"] == 1
    export = workdir / f"lora-export-{world}"
    assert digest_file(export / "model.safetensors") == results[world][0]["lora"]["continued"]
    merged = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
    base = AutoModelForCausalLM.from_pretrained(workdir / "model", dtype=torch.float32)
    ids = torch.tensor([SEQUENCES[2]])
    without = base(ids).logits
    adapter = PeftModel.from_pretrained(base, export / "adapter")
    assert torch.allclose(adapter(ids).logits, merged(ids).logits, atol=1e-5) and not torch.allclose(
        without, merged(ids).logits, atol=1e-3
    )


def test_lora_targets_that_match_nothing_are_refused_with_those_that_would(results):
    some, none, embedding = results[1][0]["lora"]["refused"]
    for said in (some, none):
        assert re.search(r"'nowhere'.*\bdown_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj\b", said)
    assert "'embed_tokens'" in embedding and "Embedding" in embedding


@pytest.mark.parametrize("world", WORLDS)
def test_policy_and_critic_gradients_under_gae_are_those_of_plain_pytorch(results, model, world):
    found = results[world][0]["roles"]
    policy, value, explained = plain_actor_critic(model)
    assert found["metrics"]["loss"] == pytest.approx(policy.item(), rel=1e-4, abs=1e-5)
    assert found["metrics"]["critic_loss"] == pytest.approx(value.item(), rel=1e-4)
    assert found["metrics"]["explained_variance"] == pytest.approx(explained, abs=1e-4)
    assert abs(found["metrics"]["kl_ref"]) < 1e-5
    assert_same_gradient(found["policy_grads"], plain_gradient(model, policy))
    expected = plain_gradient_of_value(model, value)
    assert_same_gradient({name: g for name, g in found["critic_grads"].items() if name != "score.weight"}, expected)
    assert np.abs(found["critic_grads"]["score.weight"]).max() > 0


def test_critic_and_kl_are_the_same_on_one_rank_and_two(results):
    one, two = results[1][0]["roles"], results[2][0]["roles"]
    for name in ("policy_grads", "critic_grads", "critic_part_grads", "kl_grads"):
        assert_same_gradient(two[name], one[name])
    for name in ("metrics", "kl_metrics"):
        assert one[name] == pytest.approx(two[name], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("world", WORLDS)
def test_policy_critic_and_coefficient_of_a_resumed_run_go_on_bit_for_bit(results, world):
    for rank in results[world]:
        found = rank["roles"]
        assert found["resumed"] == found["continued"]
        assert found["before"][1] != found["continued"][1]  # the critic has trained
        assert found["continued"][2] != 0.1  # and the coefficient has moved


@pytest.mark.parametrize("world", WORLDS)
def test_the_reference_is_the_initial_policy_and_comes_from_no_checkpoint(results, world):
    """Right after a resume the policy is that of the checkpoint, one update away from its reference."""
    assert all(rank["roles"]["kl_after_resume"] != 0 for rank in results[world])


def test_a_checkpoint_without_a_critic_is_refused_by_a_run_that_has_one(results):
    assert results[1][0]["roles"]["refused"] == ("resume", "algo.advantage.estimator")


@pytest.mark.parametrize("world", WORLDS)
def test_freezing_steps_train_the_critic_alone(results, world):
    for rank in results[world]:
        (policy, critic), (policy_after, critic_after), lr, version = rank["roles"]["frozen"]
        assert (policy_after, lr, version) == (policy, 0.0, 1)
        assert critic_after != critic


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("name", "temperature"), [pytest.param("kl", 1.0, marks=pytest.mark.extended), ("kl_tempered", 0.7)]
)
def test_kl_in_the_loss_is_that_of_plain_pytorch(results, model, workdir, world, name, temperature):
    """k3 with the gradient of its formula. The policy is one update off the reference, which is the model on disk."""
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(workdir / "model", dtype=torch.float32)
    policy.load_state_dict(load_file(workdir / f"pulled-{world}.safetensors"), strict=False)
    kl = []
    for t in (t for group in batch(1, seed=1)[1] for t in group.trajectories):
        ids, first = np.concatenate([t.prompt_ids, t.token_ids]), len(t.prompt_ids) - 1
        log_ratio = (plain_logprobs(policy, ids, temperature) - plain_logprobs(model, ids, temperature).detach())[
            first:
        ][t.is_model].double()
        kl.append((-log_ratio).exp() - 1 + log_ratio)
    kl = torch.cat(kl).mean()
    found = results[world][0]["roles"]
    assert kl.item() > 1e-4
    assert found[f"{name}_metrics"]["kl_ref"] == pytest.approx(kl.item(), rel=1e-3)
    loss = plain_policy_loss(policy, 1, temperature) + 0.5 * kl
    assert found[f"{name}_metrics"]["loss"] == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)
    assert_same_gradient(found[f"{name}_grads"], plain_gradient(policy, loss))


def test_the_exported_critic_is_a_classifier_of_one_label(results, workdir):
    from transformers import AutoModelForSequenceClassification

    loaded, info = AutoModelForSequenceClassification.from_pretrained(
        workdir / "roles-export-1_critic", output_loading_info=True
    )
    assert loaded.config.num_labels == 1
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
