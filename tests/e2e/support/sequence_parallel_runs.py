"""What one learner process does for test_sequence_parallel.py: batches with and without it, gradients pickled."""

from __future__ import annotations

import pickle
from pathlib import Path

from openrlhf_tir.config import Config

from .learner_batch import make_batch, random_groups
from .learner_runs import SEQUENCES, SFT_ROWS, _record_gradients, _weight_hash

VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "checkpointing, means of sequences, entropy": {
        "actor": {"gradient_checkpointing_enable": True, "loss_agg_mode": "seq-mean-token-mean", "entropy_coef": 0.01}
    },
    "kl": {
        "algo": {"kl": {"init_coef": 0.1, "use_loss": True, "estimator": "k3", "unbiased_gradient": False}},
        "rollout": {"temperature": 0.7},
    },
}


def config(model: Path, world: int, parallel: int, tokens: int = 64, **sections) -> Config:
    """`tokens` of a forward pass on all ranks of a group together, so that micro batches are the same for any cut."""
    tree = {
        "actor": {"model_name_or_path": str(model), "learning_rate": 1e-3, "num_gpus_per_node": world},
        "ds": {
            "param_dtype": "fp32",
            "attn_implementation": "sdpa",
            "packing_samples": True,
            "ring_attn_size": parallel,
        },
        "train": {"max_tokens_per_gpu": tokens // parallel},
        "rollout": {"batch_size": 4, "n_samples_per_prompt": 4},
    }
    for name, settings in sections.items():
        tree[name] = {**tree.get(name, {}), **settings}
    return Config.model_validate(tree)


def run(rank: int, world: int, parallel: int, port: int, model: Path, out: Path) -> None:
    import torch

    from openrlhf_tir.learner.zero3 import Zero3Rank

    torch.set_num_threads(1)
    groups = random_groups(3, 3, 0)
    found: dict[str, object] = {}
    for name, sections in VARIANTS.items():
        cfg = config(model, world, parallel, **sections)
        learner = Zero3Rank(cfg, rank, world, "127.0.0.1", port)
        if name == "plain":
            found["scores"] = learner.score(SEQUENCES)
        grads = _record_gradients(learner)
        metrics = learner.step(make_batch(groups, cfg.shards), groups)
        found[name] = grads, metrics
        if name == "plain":
            found["weights"] = _weight_hash(learner)
            found["sft"] = _record_gradients(learner)
            found["sft_metrics"] = learner.sft_step(SFT_ROWS, 1e-3), learner.sft_loss(SFT_ROWS)
    (out / f"{world}-{parallel}-{rank}.pkl").write_bytes(pickle.dumps(found))
    learner.close()
