"""What must be right on a card: an engine maps the learner's memory, loads it, and refuses what was not announced.

The learner's side is a process of its own, as in a run: CUDA does not let a process map its own memory.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import pytest

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.timeout(300),
]
SEED = 1
CANARY = ([[5, 6, 7, 8]], 4, 0)
SMALL_BUCKET = 1 << 20
SHAPE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 1024,
         "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}  # fmt: skip


def weights(seed: int):
    """Return random bf16 weights of the small model by name, tied head left out."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    state = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).to(torch.bfloat16).state_dict()
    return {name: tensor for name, tensor in state.items() if name != "lm_head.weight"}


def learner_process(pipe: Connection) -> None:
    """Expose weights on request: (seed, bucket bytes, first bucket, whether a byte is changed afterwards)."""
    from openrlhf_tir.pushes import EXPOSED_BUCKETS, Exposed, Item
    from openrlhf_tir.weights.ipc.exposer import Exposer

    exposer = Exposer(torch.device("cuda", 0))
    while (asked := pipe.recv()) is not None:
        if asked == "trial":
            pipe.send(exposer.trial())
            continue
        seed, limit, first, mutated = asked
        parts = [[]]
        for name, tensor in weights(seed).items():
            if parts[-1] and sum(t.nbytes for _, t in parts[-1]) + tensor.nbytes > limit:
                parts.append([])
            parts[-1].append((name, tensor.cuda()))
        items = [[Item(name, "BF16", tuple(t.shape)) for name, t in part] for part in parts]
        exposer.reserve(items)
        end = min(first + (1 if first else EXPOSED_BUCKETS), len(parts))
        buckets = [exposer.fill(n, items[n], parts[n]) for n in range(first, end)]
        if mutated:
            exposer._slots[0][12] += 1
            torch.cuda.synchronize()
        pipe.send(Exposed(f"push {seed} {limit} {mutated}", buckets, len(parts) - end))


@pytest.fixture(scope="module")
def learner():
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=learner_process, args=(there,), daemon=True)
    process.start()
    yield lambda *asked: (here.send(asked if len(asked) > 1 else asked[0]), here.recv())[1]
    here.send(None)
    process.join(20)


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    directory = tmp_path_factory.mktemp("model")
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).to(torch.bfloat16)
    model.load_state_dict(weights(SEED), strict=False)
    model.tie_weights()
    model.save_pretrained(directory)
    return directory


async def run(model_directory, work):
    """Start an engine beside the learner, run `work` with it, and stop it."""
    from miniatures.toy.tokenizer import save_tokenizer
    from openrlhf_tir.config import Config
    from openrlhf_tir.engines.vllm_engine import VllmEngine

    save_tokenizer(model_directory)
    cfg = Config.model_validate(
        {
            "vllm": {"kv_cache_mib": 256, "max_num_seqs": 32, "dtype": "bfloat16", "enforce_eager": True},
            "train": {"share_gpus": True},
            "data": {"max_len": 384},
            "rollout": {"max_new_tokens": 256},
        }
    )
    engine = await VllmEngine.start(str(model_directory), cfg)
    try:
        return await work(engine)
    finally:
        await engine.stop()


def test_an_engine_holds_what_it_maps_and_refuses_what_was_not_announced(learner, model_directory, monkeypatch):
    from openrlhf_tir.errors import WeightsUnverified
    from openrlhf_tir.types import Sampling

    # This process has asked for the card, and cannot fork another one that uses it.
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")

    async def work(engine):
        async def greedy(name: str):
            completion = await engine.generate([5, 6, 7, 8], Sampling(24, temperature=0.0), request_id=name)
            return completion.token_ids.tolist(), completion.logprobs

        assert await engine.map_exposed(learner("trial")) is None
        before, before_logprobs = await greedy("before")
        # 2: other weights, in one piece. 1: the first ones again, in several buckets.
        for version, (seed, limit) in enumerate([(2, 1 << 30), (SEED, SMALL_BUCKET), (2, SMALL_BUCKET)], 1):
            exposed = learner(seed, limit, 0, False)
            assert (exposed.remaining == 0) is (limit > SMALL_BUCKET)
            assert await engine.map_exposed(exposed) is None
            answer = await engine.load_exposed(exposed, version, CANARY)
            position = len(exposed.buckets)
            while exposed.remaining:
                assert answer == [] and engine.stats()["paused"] == 1.0
                exposed = learner(seed, limit, position, False)
                position += len(exposed.buckets)
                answer = await engine.load_exposed(exposed, version, CANARY)
            assert answer and engine.read_back.fault is None and not engine.read_back.unread
            await engine.confirm_weights(version)
            tokens, logprobs = await greedy(f"version {version}")
            assert (tokens == before) is (seed == SEED)
            if seed == SEED:
                assert np.allclose(logprobs, before_logprobs, atol=1e-2)
        mutated = learner(SEED, 1 << 30, 0, True)
        assert "digest" in await engine.map_exposed(mutated)
        assert not engine.broken and engine.version == 3, "the engine goes on with what it had"
        exposed = learner(SEED, 1 << 30, 0, False)
        assert await engine.map_exposed(exposed) is None
        await asyncio.to_thread(learner, SEED, 1 << 30, 0, True)
        with pytest.raises(WeightsUnverified):
            await engine.load_exposed(exposed, 4, CANARY)
        assert engine.broken

    asyncio.run(run(model_directory, work))


def test_pages_of_another_device_are_refused_by_name(learner):
    from openrlhf_tir.weights.ipc.importer import CannotMap, Importer

    exposed = learner("trial")
    elsewhere = [bucket._replace(handles={"GPU elsewhere": b""}) for bucket in exposed.buckets]
    with pytest.raises(CannotMap, match="GPU elsewhere"):
        Importer(torch.device("cuda", 0)).begin(elsewhere)


def test_the_digest_of_a_buffer_is_the_same_on_the_card_and_on_the_host():
    from openrlhf_tir.weights.ipc.device_digest import word_sums

    generator = torch.Generator().manual_seed(0)
    buffer = torch.randint(256, (24 * 2**20 + 64,), dtype=torch.uint8, generator=generator)
    assert word_sums(buffer.cuda()).tolist() == word_sums(buffer).tolist()
