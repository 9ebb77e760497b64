"""What one learner process does for test_early_accumulation.py: a batch in one step and in parts, for several methods,
on one start of DeepSpeed a rank."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.learner.minibatches import make_train_batch
from openrlhf_tir.types import Group, TrainBatch

from .learner_batch import make_batch, random_groups
from .learner_runs import SEQUENCES, _weight_hash, _weights, config

GROUPS = 4
HALVES, EACH = (2,), (1, 2, 3)
"""Where the batch is cut into parts."""
KL = {"init_coef": 0.5, "use_loss": True, "estimator": "k3", "target": 0.01, "horizon": 100}
METHODS: dict[str, dict[str, Any]] = {
    "group_norm, packed, entropy": {
        "algo": {"advantage": {"estimator": "group_norm"}},
        "actor": {"entropy_coef": 0.01, "max_norm": 0.05},
        "ds": {"packing_samples": True},
    },
    "dr_grpo, summed over a constant, KL": {
        "algo": {"advantage": {"estimator": "dr_grpo"}, "kl": KL},
        "actor": {"loss_agg_mode": "seq-mean-token-sum-norm", "max_norm": 100.0},
    },
    "rloo, means of sequences": {
        "algo": {"advantage": {"estimator": "rloo"}},
        "actor": {"loss_agg_mode": "seq-mean-token-mean", "max_norm": 100.0},
    },
    "opo, LoRA": {"algo": {"advantage": {"estimator": "opo"}}, "ds": {"lora": {"rank": 4, "alpha": 8}}},
    "rloo, bf16": {"algo": {"advantage": {"estimator": "rloo"}}, "ds": {"param_dtype": "bf16"}},
}
GROUPED = {"algo": {"advantage": {"estimator": "group_norm"}}}


def of_method(model: Path, world: int, settings: dict[str, Any]) -> Config:
    tree = config(model, world).model_dump()
    for section, values in settings.items():
        tree[section] |= values
    return Config.model_validate(tree)


def groups(seed: int) -> list[Group]:
    """One of three responses is right in each: where all are alike, a group has no gradient."""
    made = random_groups(GROUPS, 3, seed)
    for b, group in enumerate(made):
        for i, t in enumerate(group.trajectories):
            t.reward = float(i == (b + seed) % 3)
    return made


def parts_of(cfg: Config, of: list[Group], version: int, cuts: tuple[int, ...]) -> list[tuple[TrainBatch, list[Group]]]:
    items, ends = make_batch(of, 1).items, (0, *cuts, len(of))
    return [(make_train_batch(cfg, version, items[a:b]), of[a:b]) for a, b in pairwise(ends)]


def in_parts(learner: Any, of: list[Group], cuts: tuple[int, ...]) -> dict[str, float]:
    *first, last = parts_of(learner.cfg, of, learner.version, cuts)
    for part in first:
        learner.accumulate(*part)
    return learner.step(*last)


def run(rank: int, world: int, port: int, model: Path, out: Path) -> None:
    import torch

    from openrlhf_tir.learner.zero3 import Zero3Rank

    torch.set_num_threads(1)
    results: dict[str, Any] = {"methods": {}}
    learner = Zero3Rank(of_method(model, world, GROUPED), rank, world, "127.0.0.1", port)
    for name, settings in METHODS.items():
        made = results["methods"][name] = {}
        # what one rank makes of the whole batch is what any number of ranks makes of its parts
        for way, cuts in {"whole": (), "each": EACH}.items() if world == 1 else [("each", EACH)]:
            torch.manual_seed(0)  # LoRA's first matrices are drawn
            learner.reload(of_method(model, world, settings))
            metrics = [in_parts(learner, groups(seed), cuts) for seed in (0, 1)]  # the second has a moving Adam
            made[way] = metrics, _weights(learner), learner.version

    learner.reload(of_method(model, world, GROUPED))
    learner.save(out / f"early-{world}")
    learner.written()
    results["plain_start"] = _weight_hash(learner)
    in_parts(learner, groups(0), ())
    whole = results["whole"] = _weights(learner)

    def begun() -> list[tuple[TrainBatch, list[Group]]]:
        learner.load(out / f"early-{world}")
        first, *rest = parts_of(learner.cfg, groups(0), 0, HALVES)
        learner.accumulate(*first)
        return rest

    rest = begun()
    results["between"] = _weight_hash(learner), learner.version, learner.score(SEQUENCES)
    results["published"] = learner.publish(out / f"between-{world}.safetensors")
    learner.save(out / f"between-{world}")
    learner.written()
    learner.step(*rest[0])
    results["went_on"] = _weights(learner)
    learner.load(out / f"between-{world}")  # a checkpoint of a begun batch has nothing of it
    in_parts(learner, groups(0), ())
    results["from_between"] = _same(_weights(learner), whole)

    begun()
    learner.load(out / f"early-{world}")
    in_parts(learner, groups(0), ())
    results["void_after_load"] = _same(_weights(learner), whole)

    begun()
    try:
        wrong = parts_of(learner.cfg, groups(0), 0, HALVES)[1][0]
        learner.accumulate(wrong, [])
    except Exception as e:
        results["failed"] = type(e).__name__
    in_parts(learner, groups(0), ())
    results["void_after_a_failure"] = _same(_weights(learner), whole)

    rest = begun()
    broken = groups(0)
    broken[3].trajectories[1].reward = float("nan")
    part = parts_of(learner.cfg, broken, 0, HALVES)[1]
    metrics = learner.step(*part)
    results["not_finite"] = metrics["updates"], _weight_hash(learner), learner.why_skipped(), learner.version
    in_parts(learner, groups(0), ())
    results["after_not_finite"] = _same(_weights(learner), whole)

    silent = groups(0)
    for t in silent[-1].trajectories:
        t.masked = "over_length"
    results["nothing_last"] = []
    for cuts in ((), (GROUPS - 1,)):  # the second leaves a part without a row to the step
        learner.load(out / f"early-{world}")
        in_parts(learner, silent, cuts)
        results["nothing_last"].append(_weights(learner))

    learner.reload(config(model, world))  # reinforce_baseline whitens over the batch
    try:
        learner.accumulate(*parts_of(learner.cfg, groups(0), 0, HALVES)[0])
    except ConfigError as e:
        results["refused"] = str(e)
    (out / f"early-{world}-{rank}.pkl").write_bytes(pickle.dumps(results))
    learner.close()


def _same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
