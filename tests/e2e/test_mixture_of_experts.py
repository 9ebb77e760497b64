"""A tiny mixture of experts (Qwen3-MoE, random weights) on the real engine, and (long) a whole run of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from miniatures.toy.model import build_mixture, save_model
from miniatures.toy.task import write_data
from openrlhf_tir.config import Config
from openrlhf_tir.engines.local_engine import LocalEngine
from openrlhf_tir.engines.vllm_engine import VllmEngine
from openrlhf_tir.learner.routing_replay import RoutingReplay, find_routers
from openrlhf_tir.observability.report import summary
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.telemetry import metrics
from openrlhf_tir.types import Completion, Sampling
from openrlhf_tir.weights.publisher import WeightPublisher

from .support.engine_pace import paced

ROOT = Path(__file__).parents[2]
PROMPT = "User: What is 3+4?\nAssistant:"


class MixtureLearner:
    """A Learner as far as pushes go: transformers' weights, whose experts are two tensors a layer."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.version = 0
        self.dtype = dtype
        self.reset(seed)

    def reset(self, seed: int) -> None:
        self.model = build_mixture(seed).to(self.dtype).eval()

    async def publish(self, path: Path) -> str:
        from safetensors.torch import save_file

        from openrlhf_tir.weights.digest import tensors_digest

        state = self.model.state_dict()
        tensors = {name: tensor.contiguous() for name, tensor in state.items() if name != "lm_head.weight"}
        save_file(tensors, path)
        return tensors_digest(tensors.items())

    async def score(self, sequences: list[list[int]]) -> list[np.ndarray]:
        return [self.logprobs(list(ids)) for ids in sequences]

    def logprobs(self, ids: list[int], experts: np.ndarray | None = None) -> np.ndarray:
        """[L - 1] log-probs of all tokens but the first, with the given experts or the routers' own."""
        if experts is not None:
            given = np.full((len(ids), *experts.shape[1:]), -1, np.int16)
            given[: len(experts)] = experts
            RoutingReplay(self.model).use(torch.from_numpy(given))
        with torch.no_grad():
            scores = self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        return scores[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()

    def experts(self, ids: list[int]) -> np.ndarray:
        """[L, layers, k] of the experts that the routers choose, in ascending order."""
        chosen: dict[int, torch.Tensor] = {}
        hooks = [
            router.register_forward_hook(lambda module, args, output, layer=layer: chosen.update({layer: output[2]}))
            for layer, router in find_routers(self.model).items()
        ]
        self.logprobs(ids)
        for hook in hooks:
            hook.remove()
        return np.sort(np.stack([chosen[layer].numpy() for layer in sorted(chosen)], axis=1), axis=-1)


async def engine_of(directory: Path, precision: str) -> VllmEngine:
    save_model(directory, 0, mixture=True)
    cfg = Config(
        vllm={"sync_backend": "file", "kv_cache_mib": 64, "max_num_seqs": 64},
        ds={"param_dtype": precision},
        data={"max_len": 384},
        rollout={"max_new_tokens": 256, "routing_replay": True},
    )
    return await VllmEngine.start(str(directory), cfg)


def prompt_ids() -> list[int]:
    from miniatures.toy.tokenizer import build_tokenizer

    return build_tokenizer().encode(PROMPT)


@pytest.mark.extended
@pytest.mark.asyncio
async def test_experts_are_returned_pushes_are_proved_and_a_push_in_flight_leaves_each_token_its_experts(tmp_path):
    engine = await engine_of(tmp_path / "model", "fp32")
    try:
        prompt = prompt_ids()
        learner = MixtureLearner(0, torch.float32)
        first = await engine.generate(prompt, Sampling(40, seed=1), request_id="first")
        ids = prompt + first.token_ids.tolist()
        assert first.experts is not None and first.experts.dtype == np.uint8
        assert first.experts.shape == (len(ids) - 1, 3, 2)
        assert np.array_equal(np.sort(first.experts, -1), learner.experts(ids)[:-1])

        # The next turn asks only for what it does not have: the last sampled token, two of the environment, its own.
        later = await engine.generate(
            [*ids, 5, 6], Sampling(8, seed=2, experts_known=len(first.experts)), request_id="later"
        )
        assert later.experts is not None
        whole = [*ids, 5, 6, *later.token_ids.tolist()]
        joined = np.concatenate([first.experts, later.experts])
        assert len(joined) == len(whole) - 1
        assert np.array_equal(np.sort(joined, -1), learner.experts(whole)[:-1])

        publisher = WeightPublisher(
            learner, [LocalEngine(engine)], tmp_path / "push", [prompt, prompt[:-4]], tolerance=1e-4
        )
        async with paced(engine):
            running = asyncio.create_task(engine.generate(prompt, Sampling(200, seed=3), request_id="running"))
            while engine.progress().get("running", 0) < 20:
                await asyncio.sleep(0.01)
            old = learner.model
            learner.reset(1)
            learner.version = 1
            await publisher.publish(1)
        assert (engine.read_back.differing, engine.read_back.missing) == ((), ())
        # vLLM's fp32 product of a router is not exact on the identity, so that the routers are left to the log-probs.
        assert all(name.endswith("mlp.gate.weight") for name in engine.read_back.unread)
        completion: Completion = await running
        switch = int((completion.versions == 0).sum())
        assert 20 <= switch < len(completion.token_ids)
        ids = prompt + completion.token_ids.tolist()
        assert completion.experts is not None and len(completion.experts) == len(ids) - 1
        got = np.sort(completion.experts, -1)
        new_experts = learner.experts(ids)
        learner.model = old
        old_experts = learner.experts(ids)
        # The token at the switch was sampled by the new weights, so the token before it was computed by them too.
        computed_by_old = len(prompt) + switch - 1
        assert np.array_equal(got[:computed_by_old], old_experts[:computed_by_old])
        assert np.array_equal(got[computed_by_old:], new_experts[computed_by_old:-1])
        assert not np.array_equal(got[:computed_by_old], new_experts[:computed_by_old])
    finally:
        await engine.stop()


def run_dir_of(tmp_path: Path) -> Path:
    save_model(tmp_path / "init", 0, mixture=True)
    write_data(tmp_path / "data", seed=0, n_train=100)
    return tmp_path


def train(run_dir: Path, *more: str) -> None:
    flags = {
        "--recipe": "quickstart_cpu",
        "--run-dir": str(run_dir / "run"),
        "--actor.model_name_or_path": str(run_dir / "init"),
        "--data.prompt_dataset": str(run_dir / "data/train.jsonl"),
        "--reward.name": "tests.e2e.support.parity_reward:parity",
        "--rollout.routing_replay": "true",
        "--rollout.batch_size": "4",
        "--rollout.n_samples_per_prompt": "4",
        "--rollout.max_new_tokens": "24",
        "--ckpt.save_steps": "1",
        "--logger.tensorboard_dir": "unset",
    }
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "DS_ACCELERATOR": "cpu"}
    command = [sys.executable, "-m", "openrlhf_tir.cli", "train", *(part for pair in flags.items() for part in pair)]
    result = subprocess.run([*command, *more], cwd=ROOT, env=env, capture_output=True, text=True)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]


@pytest.mark.long
def test_a_mixture_trains_resumes_and_exports_a_model_with_its_experts_replayed(tmp_path):
    """Real vLLM, ZeRO-3 on two ranks, proved pushes. In fp32 engine and learner agree with the same experts.

    A push in flight lets the engine compute the prefix again by the new weights, and so by other experts, while tokens
    keep those with which they were first computed: the tokens behind the push may then differ by a little.
    """
    run_dir = run_dir_of(tmp_path)
    train(run_dir, "--train.max_steps", "2")
    train(run_dir, "--train.max_steps", "3", "--train.resume", "true")
    columns = metrics.read(run_dir / "run")
    assert columns["step"] == [1, 2, 3]
    assert audit(run_dir / "run" / "ledger.jsonl").errors == []
    assert min(columns["mismatch_max"]) <= 1e-4
    assert max(columns["mismatch_max"]) <= 0.05
    assert max(columns["canary_max_diff"]) <= 1e-4
    assert all(norm > 0 for norm in columns["grad_norm"])
    exported = Path(summary.read(run_dir / "run").model)
    from transformers import AutoModelForCausalLM

    loaded, report = AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert loaded.config.num_experts == 8
    start = build_mixture(0).state_dict()
    moved = loaded.state_dict()["model.layers.0.mlp.experts.gate_up_proj"]
    assert not torch.equal(moved.float(), start["model.layers.0.mlp.experts.gate_up_proj"])
