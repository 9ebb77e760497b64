"""The reward model on a tiny classifier: transformers' own scores, and models that are none refused."""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np
import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError

pytestmark = pytest.mark.slow  # imports transformers' models


def save(directory, kind: str, *, vocabulary: str = "", **config):
    """kind: a class of transformers."""
    import transformers

    from tests.e2e.support.tiny_model import make_model, make_tokenizer

    base = make_model(1, scale=8.0)
    for name, value in {"num_labels": 1, **config}.items():
        setattr(base.config, name, value)
    made = getattr(transformers, kind)(base.config)
    made.model.load_state_dict(base.model.state_dict())
    made.save_pretrained(directory)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(vocabulary.split())
    tokenizer.save_pretrained(directory)
    return made.eval()


def loaded(tmp_path, **reward):
    from openrlhf_tir.engines.reward_model import RewardModel

    save(tmp_path / "policy", "Qwen2ForCausalLM")
    settings = {"name": "model", "model_name_or_path": str(tmp_path / "rm"), **reward}
    return RewardModel(
        Config(actor={"model_name_or_path": str(tmp_path / "policy")}, ds={"param_dtype": "fp32"}, reward=settings)
    )


def test_scores_are_the_classifiers_at_the_last_token_however_they_are_batched(tmp_path):
    import torch

    plain = save(tmp_path / "rm", "Qwen2ForSequenceClassification")
    model, sequences = loaded(tmp_path), [np.arange(2, 2 + n) for n in (3, 40, 7, 1)]

    async def all_at_once():
        return await asyncio.gather(*(model.score(ids) for ids in sequences))

    with torch.no_grad():
        expected = [plain(torch.tensor(ids)[None]).logits.item() for ids in sequences]
    assert asyncio.run(all_at_once()) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) == 4


def test_scores_are_normalised_as_the_models_config_says(tmp_path):
    save(tmp_path / "rm", "Qwen2ForSequenceClassification", mean=2.0, std=0.5)
    plain, ids = loaded(tmp_path), np.arange(2, 9)
    normalised = loaded(tmp_path, normalize_enable=True)
    assert normalised.forward([ids])[0] == pytest.approx((plain.forward([ids])[0] - 2.0) / 0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("kind", "config", "fact"),
    [
        ("Qwen2ForCausalLM", {}, r"reward\.model_name_or_path .*score\.weight"),
        ("Qwen2ForSequenceClassification", {"num_labels": 3}, r"reward\.model_name_or_path .*score\.weight"),
        (
            "Qwen2ForSequenceClassification",
            {"vocabulary": "<tool>"},
            r"\(101 \w+\).*\(100\)",
        ),
    ],
)
def test_a_model_that_is_no_reward_model_of_the_policy_is_refused(tmp_path, kind, config, fact):
    save(tmp_path / "rm", kind, **config)
    with pytest.raises(ConfigError, match=fact):
        loaded(tmp_path)


def test_normalisation_without_figures_is_refused(tmp_path):
    save(tmp_path / "rm", "Qwen2ForSequenceClassification")
    assert "mean" not in json.loads((tmp_path / "rm" / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"reward\.normalize_enable .*config\.json.* None .* None"):
        loaded(tmp_path, normalize_enable=True)


def test_an_offloaded_model_is_on_its_device_while_it_scores_and_only_then(tmp_path):
    save(tmp_path / "rm", "Qwen2ForSequenceClassification")
    model, stays = loaded(tmp_path, offload=True), loaded(tmp_path)
    moves, forward, ids = [], model.forward, np.arange(2, 9)
    model._move = moves.append
    model.forward = lambda sequences: (moves.append(len(sequences)), forward(sequences))[1]

    async def twice():
        scores = [*await asyncio.gather(model.score(ids), model.score(ids))]
        await model._working
        scores.append(await model.score(ids))
        await model._working
        return scores

    scores = asyncio.run(twice())
    assert moves == [model.device, 2, "cpu", model.device, 1, "cpu"]
    assert scores == pytest.approx([stays.forward([ids])[0]] * 3, abs=1e-5)


def test_whoever_asks_an_offloaded_model_while_it_goes_back_is_answered(tmp_path):
    save(tmp_path / "rm", "Qwen2ForSequenceClassification")
    model, ids, late, moves = loaded(tmp_path, offload=True), np.arange(2, 9), [], []

    async def scenario():
        loop, move = asyncio.get_running_loop(), model._move

        def ask_and_move(device):
            moves.append(device)
            if len(moves) == 2:  # back; the device itself may be the CPU
                late.append(asyncio.run_coroutine_threadsafe(model.score(ids), loop))
                while not model._waiting:  # it has asked before the weights have gone
                    time.sleep(0.001)
            move(device)

        model._move = ask_and_move
        first = await model.score(ids)
        await model._working
        return first, await asyncio.wait_for(asyncio.wrap_future(late[0]), 60)

    first, second = asyncio.run(scenario())
    assert first == second


def test_an_offloaded_model_goes_back_when_a_batch_fails(tmp_path):
    save(tmp_path / "rm", "Qwen2ForSequenceClassification")
    model = loaded(tmp_path, offload=True)
    moves = []
    model._move = moves.append

    async def failing():
        try:
            await model.score(np.array([10_000]))
        finally:
            await model._working

    with pytest.raises(IndexError):
        asyncio.run(failing())
    assert moves == [model.device, "cpu"]


def test_weights_that_cannot_be_moved_to_the_device_fail_whoever_waits_and_nobody_later(tmp_path):
    """Without memory left beside it, say. Those who asked would wait for their deadline, which tells nothing."""
    save(tmp_path / "rm", "Qwen2ForSequenceClassification")
    model, ids, faults = loaded(tmp_path, offload=True), np.arange(2, 9), [MemoryError("no room on the device")]

    def move(device):
        if faults and device == model.device:
            raise faults.pop()

    model._move = move

    async def scenario():
        first = await asyncio.wait_for(asyncio.gather(model.score(ids), model.score(ids), return_exceptions=True), 60)
        return first, await asyncio.wait_for(model.score(ids), 60)

    first, then = asyncio.run(scenario())
    assert [str(e) for e in first] == ["no room on the device"] * 2 and isinstance(then, float)
