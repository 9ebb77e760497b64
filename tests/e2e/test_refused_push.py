"""A push that one of two engines did not load properly, in a real run: Ray, HTTP, ZeRO-3, deterministic engines."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from miniatures.toy.model import save_model
from miniatures.toy.task import write_data
from openrlhf_tir.cluster.engine_pool import EnginePool
from openrlhf_tir.cluster.env_process import env_urls
from openrlhf_tir.cluster.jobs.inputs import load_inputs
from openrlhf_tir.cluster.jobs.train import run_training
from openrlhf_tir.cluster.learner_group import LearnerGroup
from openrlhf_tir.cluster.ray_session import ray_session
from openrlhf_tir.cluster.rollout_actor import RolloutActor
from openrlhf_tir.cluster.services import Services
from openrlhf_tir.config import Config
from openrlhf_tir.machine.process_memory import PssSampler
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.pipeline.stop import StopRequest
from openrlhf_tir.telemetry import metrics

ROOT = Path(__file__).parents[2]
STEPS, BATCH, BAD_VERSION = 4, 4, 2


class DamagesOnePush(RolloutActor):
    """The first actor of the run, once: what it holds after the push of BAD_VERSION is not what was in the file."""

    async def start(self, cfg, urls, token):
        url = await super().start(cfg, urls, token)
        load, mark = self.engine.model.load_state_dict, cfg.run_dir / "damaged"

        def damaging(*args, **kwargs):
            import torch

            found = load(*args, **kwargs)
            loads.append(1)
            if self.index == 0 and len(loads) > BAD_VERSION and not mark.exists():
                mark.write_text(self.name)
                with torch.no_grad():
                    self.engine.model.get_input_embeddings().weight.mul_(0.5)
            return found

        loads: list[int] = []
        self.engine.model.load_state_dict = damaging
        return url


def config(work: Path) -> Config:
    return Config(
        run_dir=work / "run",
        actor={"model_name_or_path": str(work / "init"), "learning_rate": 1e-4, "num_gpus_per_node": 1},
        ds={"param_dtype": "fp32", "attn_implementation": "eager"},
        data={"prompt_dataset": str(work / "train.jsonl"), "max_len": 192},
        rollout={
            "engine": "torch",
            "batch_size": BATCH,
            "n_samples_per_prompt": 4,
            "max_new_tokens": 16,
        },
        vllm={"num_engines": 2},
        reward={"name": "tests.e2e.support.parity_reward:parity"},
        train={"max_steps": STEPS, "micro_batch_size": 4, "full_determinism_enable": True},
        logger={"tensorboard_dir": None},
    )


@pytest.mark.long
async def test_an_engine_that_fails_its_canary_is_replaced_and_nothing_that_it_sampled_is_trained(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # Ray's workers unpickle DamagesOnePush by its name
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    save_model(tmp_path / "init", seed=0)
    write_data(tmp_path, seed=0, n_train=100)
    cfg = config(tmp_path)
    cfg.run_dir.mkdir()
    inputs = load_inputs(cfg)
    with ray_session(cfg), PssSampler() as pss:
        async with env_urls(cfg) as urls:
            pool = await EnginePool(cfg, urls, DamagesOnePush).start()
            services = Services(
                cfg, Console(), pool, await LearnerGroup.start(cfg), pss, StopRequest(cfg.train.stop_grace_s)
            )
            first = pool.members[0]
            try:
                assert (await run_training(services, cfg, inputs)).steps == STEPS
            finally:
                await pool.stop()
                await services.learner.stop()

    assert (cfg.run_dir / "damaged").read_text() == "rollout-0"
    assert first.name == "rollout-0" and first not in pool.members, (
        "the engine with the damaged weights is still in use"
    )
    report = audit(cfg.run_dir / "ledger.jsonl")
    assert report.errors == [] and not report.open and len(report.trained) == STEPS * BATCH
    columns = metrics.read(cfg.run_dir)
    assert max(columns["canary_max_diff"]) <= 1e-4 and max(columns["mismatch_max"]) <= 1e-4
