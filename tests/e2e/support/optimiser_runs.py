"""What one learner process does for test_optimisers.py: a step by each optimiser on real DeepSpeed ranks, and the
weights before and after, pickled."""

from __future__ import annotations

import pickle
from pathlib import Path

from .learner_batch import make_batch, random_groups
from .learner_runs import GAE, _weight_hash, _weights, config

MUON = {"optim": "muon", "muon": {"lr": 0.02}, "l2": 0.0}
VARIANTS = {
    "adam": {"l2": 0.0, "max_norm": 1e6},
    "muon": MUON,
    "lr": {**MUON, "muon": {"lr": 0.04}},
    "adam_lr": {**MUON, "learning_rate": 2e-3},
    "momentum": {**MUON, "muon": {"lr": 0.02, "momentum": 0.5}},
    "ns_steps": {**MUON, "muon": {"lr": 0.02, "ns_steps": 1}},
    "no_nesterov": {**MUON, "muon": {"lr": 0.02, "nesterov": False}},
}
"""Fields of [actor] that differ from learner_runs.config."""


def run(rank: int, world: int, port: int, model: Path, out: Path) -> None:
    import torch

    from openrlhf_tir.config import Config
    from openrlhf_tir.learner.zero3 import Zero3Rank

    torch.set_num_threads(1)
    results: dict[str, object] = {"weights": {}}

    def start(actor: dict, critic: dict | None = None, train: dict | None = None) -> Zero3Rank:
        tree = config(model, world, algo=GAE if critic else None).model_dump()
        for section, fields in (("actor", actor), ("critic", critic or {}), ("train", train or {})):
            tree[section] |= {
                name: {**tree[section][name], **value} if isinstance(value, dict) else value
                for name, value in fields.items()
            }
        return Zero3Rank(Config.model_validate(tree), rank, world, "127.0.0.1", port)

    def batch(seed: int):
        groups = random_groups(3, 3, seed)
        return make_batch(groups, world), groups

    for name, actor in VARIANTS.items():
        learner = start(actor)
        before = _weights(learner)
        learner.step(*batch(0))
        first = _weights(learner)
        learner.step(*batch(1))
        results["weights"][name] = before, first, _weights(learner)

    learner = start(MUON)
    learner.step(*batch(0))
    learner.save(out / f"muon-{world}")
    learner.written()
    learner.step(*batch(1))
    resumed = start(MUON)
    resumed.load(out / f"muon-{world}")
    resumed.step(*batch(1))
    results["resumed"] = _weight_hash(learner), _weight_hash(resumed)

    beside = start({}, critic={"optim": "muon", "learning_rate": 1e-3})
    before = _weights(beside), _weights(beside.auxiliary.critic)
    beside.step(*batch(0))
    results["critic"] = before, (_weights(beside), _weights(beside.auxiliary.critic))

    results["deterministic"] = [torch.are_deterministic_algorithms_enabled()]
    for _ in range(2):
        exact = start({}, train={"full_determinism_enable": True})
        exact.step(*batch(0))
        results["deterministic"] += [torch.are_deterministic_algorithms_enabled(), _weight_hash(exact)]

    (out / f"results-{world}-{rank}.pkl").write_bytes(pickle.dumps(results))
    learner.close()
