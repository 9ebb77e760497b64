"""A checkpoint of two real ZeRO-3 ranks goes on on one, and one of one on two; so does the average of the weights.

Everything runs in tests/e2e/support/resharding_runs.py.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from ..support.ports import store_port
from ..support.ranks import run_ranks
from ..support.resharding_runs import BETA, KINDS, resuming, saving, zero_2
from ..support.tiny_model import save_tiny

pytestmark = pytest.mark.long
DIRECTIONS = ((2, 1), (1, 2))
"""(ranks that saved, ranks that resume)"""
FRESH, SAVED, STEPPED, EXPORTED = range(4)
"""What a run found: before its first step, at the checkpoint after it, one step later, after a step whose gradient is
not finite and an export."""


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    return tmp_path_factory.mktemp("resharding")


@pytest.fixture(scope="module")
def results(workdir):
    """{"saved-2": {kind: by FRESH, ...}, "resumed-2-on-1": {kind: by SAVED and STEPPED}}"""
    save_tiny(workdir / "model", scale=1.0)
    for world in (1, 2):
        run_ranks(saving, (world, store_port(), workdir / "model", workdir))
    for saved, world in (*DIRECTIONS, (2, 2)):
        run_ranks(resuming, (world, store_port(), workdir / "model", workdir, saved))
    run_ranks(zero_2, (2, store_port(), workdir / "model", workdir))
    return {path.stem: pickle.loads(path.read_bytes()) for path in workdir.glob("*.pkl")}


def apart(a: dict, b: dict, what: str) -> float:
    """Relative L2 distance of all tensors of a kind together."""
    assert a.keys() == b.keys()
    ours, theirs = (
        np.concatenate([t[key].astype(np.float64).ravel() for key in sorted(a) if key[1] == what]) for t in (a, b)
    )
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(("saved", "world"), [*DIRECTIONS, (2, 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_ranks_resumes_with_the_saved_numbers_bit_for_bit(results, kind, saved, world):
    before, after = results[f"saved-{saved}"][kind][SAVED], results[f"resumed-{saved}-on-{world}"][kind][SAVED]
    assert len(before["tensors"]) > 100 and same(before["tensors"], after["tensors"])
    assert (after["version"], after["settings"], after["coef"]) == (1, before["settings"], before["coef"])


@pytest.mark.parametrize(("saved", "world"), DIRECTIONS)
@pytest.mark.parametrize("kind", [k for k in KINDS if k != "bf16"])  # in which a last bit of a sum is a step of 1/256
def test_its_next_step_is_that_of_the_undisturbed_run(results, kind, saved, world):
    undisturbed = results[f"saved-{saved}"][kind][STEPPED]["tensors"]
    resumed = results[f"resumed-{saved}-on-{world}"][kind][STEPPED]["tensors"]
    for what in ("weights", "fp32", "exp_avg", "exp_avg_sq", "ema"):
        assert apart(resumed, undisturbed, what) <= 1e-6, what


@pytest.mark.parametrize("kind", KINDS)
def test_on_as_many_ranks_the_next_step_is_that_of_the_undisturbed_run_bit_for_bit(results, kind):
    assert same(results["saved-2"][kind][STEPPED]["tensors"], results["resumed-2-on-2"][kind][STEPPED]["tensors"])


def test_the_sub_groups_of_one_rank_are_not_those_of_two(results):
    """Else the parameters' order in a rank's file would do, and finding them by name would not be tested."""
    groups = {world: results[f"saved-{world}"]["small sub groups"][SAVED]["groups"] for world in (1, 2)}
    assert groups[1] > groups[2] > 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", [1, 2])
def test_the_average_is_that_of_plain_float64_and_a_broken_step_is_not_in_it(results, kind, world):
    run = [found["tensors"] for found in results[f"saved-{world}"][kind]]
    names = [name for role, what, name in run[FRESH] if (role, what) == ("policy", "ema")]
    assert len(names) > 20
    for name in names:
        w0, w1, w2 = (run[at]["policy", "fp32", name].astype(np.float64) for at in (FRESH, SAVED, STEPPED))
        assert np.array_equal(run[FRESH]["policy", "ema", name], w0)
        once = BETA * w0 + (1 - BETA) * w1
        np.testing.assert_allclose(run[SAVED]["policy", "ema", name], once, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(
            run[STEPPED]["policy", "ema", name], BETA * once + (1 - BETA) * w2, rtol=1e-6, atol=1e-9
        )
    assert same(run[STEPPED], run[EXPORTED]), (
        "neither the broken step nor the export of the average has changed anything"
    )


def test_the_average_of_one_rank_is_that_of_two(results):
    one, two = (results[f"saved-{world}"]["plain"][STEPPED]["tensors"] for world in (1, 2))
    assert apart(one, two, "ema") <= 1e-6


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(("kind", "dtype"), [("plain", "float32"), ("bf16", "bfloat16")])
def test_the_average_is_exported_beside_the_weights_and_plain_transformers_loads_it(
    results, workdir, kind, dtype, world
):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, of_run = results[f"saved-{world}"][kind][EXPORTED]["tensors"], workdir / f"export {kind}-{world}"
    for directory, what in ((of_run, "fp32"), (of_run.with_name(of_run.name + "_ema"), "ema")):
        assert AutoTokenizer.from_pretrained(directory).eos_token
        weights = AutoModelForCausalLM.from_pretrained(directory, dtype="auto").state_dict()
        for name, value in weights.items():
            expected = torch.from_numpy(
                run["policy", what, "model.embed_tokens.weight" if name == "lm_head.weight" else name]
            )
            assert torch.equal(value, expected.reshape(value.shape).to(getattr(torch, dtype))), name


def test_the_exported_average_of_adapters_is_merged(results, workdir):
    from safetensors.torch import load_file

    run = results["saved-2"]["lora"][EXPORTED]["tensors"]
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    merged = load_file(workdir / "export lora-2_ema" / "model.safetensors")[
        "model.layers.0.self_attn.q_proj.weight"
    ].numpy()
    base = load_file(workdir / "model" / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"].numpy()
    a, b = (run["policy", "ema", f"{prefix}.lora_{side}.default.weight"] for side in "AB")
    update = 2.0 * b.reshape(-1, 4) @ a.reshape(4, -1)
    assert np.abs(update).max() > 1e-5
    np.testing.assert_allclose(merged, base + update, rtol=0, atol=1e-6)


def test_with_zero_2_the_average_is_kept_exported_and_restored_too(results, workdir):
    from safetensors.torch import load_file

    found = results["zero-2-2"]
    assert found["restored"] and all(
        np.array_equal(found["exported"][name], found["after"][name]) for name in found["after"]
    )
    average = load_file(workdir / "export zero-2-2_ema" / "model.safetensors")
    assert average.keys() == found["after"].keys()
    for name, after in found["after"].items():
        expected = BETA * found["before"][name].astype(np.float64) + (1 - BETA) * after
        np.testing.assert_allclose(average[name].numpy(), expected, rtol=1e-6, atol=1e-9)
        assert not np.array_equal(average[name].numpy(), after), name
