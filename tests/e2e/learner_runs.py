"""What one learner process does for test_learner.py: every check that needs real ranks, in one process per rank, results pickled.

One start of DeepSpeed per rank serves all tests, because importing it takes longer than everything else here.
"""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np

from openrlhf_tir.config import Config

from .learner_batch import make_batch, random_groups

SFT_ROWS = [(np.arange(2, 2 + n), np.linspace(0.0, 1.0, n).astype(np.float32)) for n in (5, 9, 7)]
SEQUENCES = [[5, 6, 7, 8], [9, 10], [11] * 12, [12, 13, 14]]


def config(model: Path, world: int, **ds) -> Config:
    """micro_batch_size 2 makes 9 trajectories uneven: 5 and 4 on two ranks, 3 and 2 micro batches."""
    return Config(
        actor={"model_name_or_path": str(model), "learning_rate": 1e-3, "num_gpus_per_node": world, "max_norm": 0.5, "l2": 0.01},
        ds={"param_dtype": "fp32", "attn_implementation": "sdpa", **ds},
        train={"micro_batch_size": 2, "max_tokens_per_gpu": 200},
        rollout={"batch_size": 4, "n_samples_per_prompt": 4},
    )


def batch(world: int, seed: int):
    groups = random_groups(3, 3, seed)
    return make_batch(groups, world), groups


def broken_batch(world: int):
    """One trajectory of nine has a reward that is not a number."""
    groups = random_groups(3, 3, 2)
    groups[0].trajectories[0].reward = float("nan")
    return make_batch(groups, world), groups


def run(rank: int, world: int, port: int, model: Path, out: Path) -> None:
    import torch

    from openrlhf_tir.errors import ConfigError
    from openrlhf_tir.learner.zero3 import Zero3Rank

    torch.set_num_threads(1)
    results: dict[str, object] = {}

    def start(**ds) -> Zero3Rank:
        return Zero3Rank(config(model, world, **ds), rank, world, "127.0.0.1", port)

    results["loaded"] = [_weight_hash(start()) for _ in range(3)]
    learner = start()
    results["scores"] = learner.score(SEQUENCES)
    results["published"] = learner.publish(out / f"published-{world}.safetensors")
    results["grads"] = _record_gradients(learner)
    results["metrics"] = learner.step(*batch(world, seed=0))
    results["weights"] = _weight_hash(learner)

    _draw()  # so that the states saved are not those that every start seeds
    learner.save(out / f"ckpt-{world}")
    results["drawn"] = _draw()
    learner.step(*batch(world, seed=1))  # while the checkpoint is being written: it must hold the weights from before
    results["written"] = learner.written()
    results["continued"] = _weight_hash(learner)
    results["version"] = learner.version
    learner.export(out / f"export-{world}")

    resumed = start()
    results["resumed_version"] = resumed.load(out / f"ckpt-{world}")
    results["redrawn"] = _draw()
    before = resumed.version, _weight_hash(resumed)
    results["broken"] = resumed.step(*broken_batch(world))["grad_norm"], before, (resumed.version, _weight_hash(resumed))
    resumed.step(*batch(world, seed=1))
    results["resumed"] = _weight_hash(resumed)
    results["refused"] = []
    for wrong in ("absent", "other-world"):
        try:
            resumed.load(out / wrong)
        except ConfigError as e:
            results["refused"].append(str(e))

    tuned = start()
    results["sft_grads"] = _record_gradients(tuned)
    results["sft_metrics"] = tuned.sft_step(SFT_ROWS, 1e-3)

    tuned.reload(config(model, world))
    results["reloaded"] = (tuned.version, _weight_hash(tuned))
    tuned.step(*batch(world, seed=0))
    results["reloaded_then_stepped"] = _weight_hash(tuned)

    packed = start(packing_samples=True)
    results["packed_scores"] = packed.score(SEQUENCES)
    results["packed_grads"] = _record_gradients(packed)
    results["packed_metrics"] = packed.step(*batch(world, seed=0))

    (out / f"results-{world}-{rank}.pkl").write_bytes(pickle.dumps(results))
    learner.close()


def _draw() -> tuple[float, float, float]:
    import torch

    return random.random(), float(np.random.rand()), float(torch.rand(()))


def _weight_hash(learner) -> str:
    """Of the full weights as this rank gathers them."""
    import deepspeed

    from openrlhf_tir.learner.weights_file import named_weights
    from openrlhf_tir.weights.digest import tensors_digest

    weights = named_weights(learner.engine.module)
    with deepspeed.zero.GatheredParameters([p for _, p in weights]):
        return tensors_digest((name, p.data) for name, p in weights)


def _record_gradients(learner) -> dict[str, np.ndarray]:
    """Filled in just before the learner's next optimiser step, with the full gradients that DeepSpeed reduced."""
    from deepspeed.utils import safe_get_full_grad

    grads: dict[str, np.ndarray] = {}
    take_step = learner.strategy.optimizer_step

    def recording_step(*args, **kwargs):
        grads.update({name: safe_get_full_grad(p).cpu().numpy().copy() for name, p in learner.engine.module.named_parameters()})
        learner.strategy.optimizer_step = take_step
        take_step(*args, **kwargs)

    learner.strategy.optimizer_step = recording_step
    return grads
