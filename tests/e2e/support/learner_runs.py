"""What one learner process does for test_learner.py: every check that needs real ranks, in one process per rank,
results pickled.

One start of DeepSpeed per rank serves all tests, because importing it takes longer than everything else here.
"""

from __future__ import annotations

import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from openrlhf_tir.config import Config
from openrlhf_tir.learner.minibatches import make_train_batch

from .learner_batch import make_batch, random_groups

SFT_ROWS = [(np.arange(2, 2 + n), np.linspace(0.0, 1.0, n).astype(np.float32)) for n in (5, 9, 7)]
SEQUENCES = [[5, 6, 7, 8], [9, 10], [11] * 12, [12, 13, 14]]


def config(
    model: Path,
    world: int,
    *,
    algo: dict[str, object] | None = None,
    critic: dict[str, object] | None = None,
    temperature: float = 1.0,
    ema: float | None = None,
    **ds,
) -> Config:
    """micro_batch_size 2 makes 9 trajectories uneven: 5 and 4 on two ranks, 3 and 2 micro batches."""
    average = {} if ema is None else {"ema_beta": ema}
    return Config(
        algo=algo or {},
        critic=critic or {},
        actor={
            "model_name_or_path": str(model),
            "learning_rate": 1e-3,
            "num_gpus_per_node": world,
            "max_norm": 0.5,
            "l2": 0.01,
        },
        ds={"param_dtype": "fp32", "attn_implementation": "sdpa", **ds},
        train={"micro_batch_size": 2, "max_tokens_per_gpu": 200, **average},
        rollout={"batch_size": 4, "n_samples_per_prompt": 4, "temperature": temperature},
    )


def cut_config(model: Path, world: int) -> Config:
    """Nine trajectories in four mini-batches, twice: eight updates, with pi_old recomputed and a temperature."""
    tree = config(model, world).model_dump()
    tree["train"] |= {"batch_size": 4, "max_epochs": 2}
    tree["actor"] |= {"pi_old": "learner", "l2": 0.0}
    tree["rollout"] |= {"temperature": 0.7}
    return Config.model_validate(tree)


def cut_batch(cfg: Config, seed: int, version: int):
    groups = random_groups(3, 3, seed)
    return make_train_batch(cfg, version, make_batch(groups, 1).items), groups


def batch(world: int, seed: int):
    groups = random_groups(3, 3, seed)
    return make_batch(groups, world), groups


def broken_batch(world: int):
    """One trajectory of nine has a reward that is not a number."""
    groups = random_groups(3, 3, 2)
    groups[0].trajectories[0].reward = float("nan")
    return make_batch(groups, world), groups


HOLD_BACK_S = 300.0
"""Seconds after which nobody waits for a file that is held back, which is a failure."""


@contextmanager
def checkpoints_held_back() -> Iterator[None]:
    """Write no file of a checkpoint before a step waits for it, or the block ends.

    A step that does not wait changes what the files will hold.
    """
    from openrlhf_tir.learner.saved import background

    awaited = threading.Event()
    write, writer_of = background._write, background.BackgroundWriter
    save, settle = writer_of.save, writer_of.wait_before_change

    def delayed_write(*arguments: Any) -> Any:
        assert awaited.wait(HOLD_BACK_S)
        return write(*arguments)

    def save_and_hold(writer: background.BackgroundWriter, state_dict: Any, path: Any) -> None:
        awaited.clear()
        save(writer, state_dict, path)

    def release_and_settle(writer: background.BackgroundWriter) -> None:
        awaited.set()
        settle(writer)

    with (
        mock.patch.object(background, "_write", delayed_write),
        mock.patch.object(writer_of, "save", save_and_hold),
        mock.patch.object(writer_of, "wait_before_change", release_and_settle),
    ):
        try:
            yield
        finally:
            awaited.set()


def run(rank: int, world: int, port: int, model: Path, out: Path) -> None:
    import torch

    from openrlhf_tir.errors import ConfigError
    from openrlhf_tir.learner.pushes.last_push import LastPush
    from openrlhf_tir.learner.zero3 import Zero3Rank

    torch.set_num_threads(1)
    results: dict[str, object] = {}

    def start(**ds) -> Zero3Rank:
        return Zero3Rank(config(model, world, **ds), rank, world, "127.0.0.1", port)

    tuned = start()
    results["loaded"] = [_weight_hash(tuned)]
    with checkpoints_held_back():
        learner = start()
        results["loaded"].append(_weight_hash(learner))
        results["scores"] = learner.score(SEQUENCES)
        results["published"] = learner.publish(out / f"published-{world}.safetensors")
        results["broadcast"] = _broadcast(learner, rank)
        results["exposed"] = _expose(learner)
        results["grads"] = _record_gradients(learner)
        results["metrics"] = learner.step(*batch(world, seed=0))
        results["timed"] = set(learner.runner.seconds)
        results["weights"] = _weight_hash(learner)

        _draw()  # so that the states saved are not those that every start seeds
        learner.save(out / f"ckpt-{world}")
        results["drawn"] = _draw()
        learner.step(*batch(world, seed=1))  # the checkpoint must hold the weights from before
    results["written"] = learner.written()
    results["continued"] = _weight_hash(learner)
    results["version"] = learner.version
    learner.export(out / f"export-{world}")

    resumed = start()
    results["resumed_version"] = resumed.load(out / f"ckpt-{world}")
    results["redrawn"] = _draw()
    before = resumed.version, _weight_hash(resumed)
    results["broken"] = (
        resumed.step(*broken_batch(world))["grad_norm"],
        before,
        (resumed.version, _weight_hash(resumed)),
    )
    resumed.step(*batch(world, seed=1))
    results["resumed"] = _weight_hash(resumed)
    results["refused"] = []
    for wrong in ("absent", "incomplete"):
        try:
            resumed.load(out / wrong)
        except ConfigError as e:
            results["refused"].append(str(e))

    results["sft_grads"] = _record_gradients(tuned)
    results["sft_loss"] = tuned.sft_loss(SFT_ROWS)
    results["sft_metrics"] = tuned.sft_step(SFT_ROWS, 1e-3)

    tuned.last = LastPush()  # as with vllm.sync_backend = delta
    (out / f"push-{world}").mkdir(exist_ok=True)
    results["pushed"] = tuned.publish(out / f"push-{world}" / "v0.safetensors")
    tuned.sft_step(SFT_ROWS, 1e-10)  # below the last bit of most of the fp32 weights, as 1e-6 is of bf16's
    results["changes"] = tuned.publish_changes(out / f"push-{world}" / "v1.delta", 0), _weight_hash(tuned)

    tuned.reload(config(model, world))
    results["reloaded"] = (tuned.version, _weight_hash(tuned))
    tuned.step(*batch(world, seed=0))
    results["reloaded_then_stepped"] = _weight_hash(tuned)

    results["roles"] = roles(start, world, out)

    packed = start(packing_samples=True)
    results["packed_scores"] = packed.score(SEQUENCES)
    results["packed_grads"] = _record_gradients(packed)
    results["packed_metrics"] = packed.step(*batch(world, seed=0))

    cut = cut_config(model, world)
    several = Zero3Rank(cut, rank, world, "127.0.0.1", port)
    results["several"] = several.step(*cut_batch(cut, 0, 0)), several.version
    results["several_timed"] = set(several.runner.seconds)
    results["several_weights"] = _weights(several)
    several.save(out / f"several-{world}")
    several.step(*cut_batch(cut, 1, 8))
    several.written()
    resumed = Zero3Rank(cut, rank, world, "127.0.0.1", port)
    at = resumed.load(out / f"several-{world}")
    resumed.step(*cut_batch(cut, 1, at))
    results["several_resumed"] = at, _weight_hash(resumed), _weight_hash(several)

    results["lora"] = _lora(rank, world, start, out)

    (out / f"results-{world}-{rank}.pkl").write_bytes(pickle.dumps(results))
    learner.close()


def _broadcast(learner, rank: int):
    """(what rank 0 said, what a receiver beside it said, how many tensors it got in how many buckets); None, None, None
    on other ranks."""
    from concurrent.futures import ThreadPoolExecutor

    from openrlhf_tir.learner.pushes.broadcast import broadcast_weights
    from openrlhf_tir.weights.broadcast.receiver import Receiver

    received, got, end = None, [], Receiver()
    with ThreadPoolExecutor(1) as beside:
        if rank == 0:
            meeting = learner.sender.open("gloo", "127.0.0.1", 1, 60.0)
            received = beside.submit(end.receive, meeting, 1, "push", got.append, got.clear)
        sent = broadcast_weights(learner.engine.module, "push", learner.sender, rank=rank, bucket_bytes=100_000)
        return sent, received and received.result(), (sum(map(len, got)), len(got)) if got else None


def _expose(learner):
    """Return the digest of what this rank exposes in small buckets, as an engine beside it reads it; their number; and
    the fault."""
    import torch

    from openrlhf_tir.learner.pushes.expose import expose_weights
    from openrlhf_tir.weights.digest import tensors_digest
    from openrlhf_tir.weights.ipc.importer import Importer

    importer, weights, buckets = Importer(torch.device("cpu")), {}, 0
    while True:
        exposed = expose_weights(learner.engine.module, "push", buckets, learner.exposer, bucket_bytes=100_000)
        if not buckets:
            importer.begin(exposed.buckets)
        for bucket in exposed.buckets:
            weights |= {name: tensor.clone() for name, tensor in importer.tensors(bucket)}
        importer.check(exposed.buckets)
        buckets += len(exposed.buckets)
        if not exposed.remaining:
            return tensors_digest(weights.items()), buckets, exposed.fault


def _lora(rank: int, world: int, start, out: Path) -> dict[str, object]:
    """Adapters through a push, a checkpoint and an export."""
    from openrlhf_tir.errors import ConfigError

    lora = {"rank": 4, "alpha": 8}
    found: dict[str, object] = {"refused": []}
    for targets in (["q_proj", "nowhere"], ["nowhere"], ["embed_tokens"]) if world == 1 else ():
        try:
            start(lora={**lora, "target_modules": targets})
        except ConfigError as e:
            found["refused"].append(str(e))
    adapted = start(lora=lora)
    found["fresh"] = _weight_hash(adapted)
    found["trainable"] = sorted(
        {
            name.rpartition(".lora_")[0] or name
            for name, p in adapted.engine.module.named_parameters()
            if p.requires_grad
        }
    )
    adapted.step(*batch(world, seed=0))
    found["stepped"] = _weight_hash(adapted)
    found["published"] = adapted.publish(out / f"lora-{world}.safetensors")
    found["scores"] = adapted.score(SEQUENCES)
    adapted.save(out / f"lora-ckpt-{world}")
    adapted.step(*batch(world, seed=1))
    adapted.written()
    found["continued"] = _weight_hash(adapted)
    adapted.export(out / f"lora-export-{world}")
    resumed = start(lora=lora)
    found["resumed_version"] = resumed.load(out / f"lora-ckpt-{world}")
    resumed.step(*batch(world, seed=1))
    found["resumed"] = _weight_hash(resumed)
    return found


def _weights(learner) -> dict[str, np.ndarray]:
    import deepspeed

    from openrlhf_tir.learner.lora import hf_weights

    weights = hf_weights(learner.engine.module)
    with deepspeed.zero.GatheredParameters([p for w in weights for p in w.gathered]):
        return {w.name: w.value().float().numpy().copy() for w in weights}


GAE = {
    "advantage": {"estimator": "gae", "gamma": 0.9, "lambd": 0.8},
    "kl": {"init_coef": 0.1, "target": 1e-9, "horizon": 100},
}
KL_IN_LOSS = {"kl": {"init_coef": 0.5, "use_loss": True, "estimator": "k3", "unbiased_gradient": False}}


def roles(start, world: int, out: Path) -> dict[str, object]:
    """A learner with critic and KL in the reward, resumed; one with KL in the loss, its policy off the reference."""
    from openrlhf_tir.errors import ConfigError

    found: dict[str, object] = {}
    learner = start(algo=GAE, critic={"learning_rate": 1e-3, "save_value_network": True})
    try:
        learner.load(out / f"ckpt-{world}")
    except ConfigError as e:
        found["refused"] = e.code, e.setting
    learner.reload(learner.cfg)
    critic = learner.auxiliary.critic
    found["policy_grads"], found["critic_grads"] = _record(learner, learner.engine, critic.engine)
    found["metrics"] = learner.step(*batch(world, seed=0))
    found["timed"] = set(learner.runner.seconds)
    learner.save(out / f"roles-{world}")
    found["before"] = _weight_hash(learner), _weight_hash(critic)
    learner.step(*batch(world, seed=1))
    learner.written()
    found["continued"] = _weight_hash(learner), _weight_hash(critic), learner.auxiliary.coef.value
    learner.export(out / f"roles-export-{world}")

    learner.reload(learner.cfg)
    found["reloaded"] = _weight_hash(learner.auxiliary.critic)
    learner.load(out / f"roles-{world}")
    found["kl_after_resume"] = learner.step(*batch(world, seed=1))["kl_ref"]
    found["resumed"] = _weight_hash(learner), _weight_hash(learner.auxiliary.critic), learner.auxiliary.coef.value

    frozen = start(algo=GAE, critic={"freezing_steps": 1, "updates": 3})
    before = _weight_hash(frozen), _weight_hash(frozen.auxiliary.critic)
    found["critic_part_grads"] = _record(frozen, frozen.auxiliary.critic.engine)[0]
    metrics = frozen.step(*batch(world, seed=0))
    found["frozen"] = (
        before,
        (_weight_hash(frozen), _weight_hash(frozen.auxiliary.critic)),
        metrics["lr"],
        frozen.version,
    )

    for name, settings in {
        "kl": {},
        "kl_tempered": {"packing_samples": True, "temperature": 0.7},
    }.items():
        pulled = start(algo=KL_IN_LOSS, **settings)
        pulled.load(out / f"ckpt-{world}")
        pulled.publish(out / f"pulled-{world}.safetensors")
        found[f"{name}_grads"] = _record_gradients(pulled)
        found[f"{name}_metrics"] = pulled.step(*batch(world, seed=1))
    return found


def _draw() -> tuple[float, float, float]:
    import torch

    return random.random(), float(np.random.rand()), float(torch.rand(()))


def _weight_hash(learner) -> str:
    """Of the full weights as this rank gathers them."""
    import deepspeed

    from openrlhf_tir.learner.lora import hf_weights
    from openrlhf_tir.weights.digest import tensors_digest

    weights = hf_weights(learner.engine.module)
    with deepspeed.zero.GatheredParameters([p for w in weights for p in w.gathered]):
        return tensors_digest((w.name, w.value()) for w in weights)


def _record_gradients(learner) -> dict[str, np.ndarray]:
    """Filled in just before the learner's next optimiser step, with the full gradients that DeepSpeed reduced."""
    return _record(learner, learner.engine)[0]


def _record(learner, *engines) -> list[dict[str, np.ndarray]]:
    """Of the next step of each of `engines`."""
    from deepspeed.utils import safe_get_full_grad

    grads: list[dict[str, np.ndarray]] = [{} for _ in engines]
    take_step = learner.strategy.optimizer_step

    def recording_step(optimizer, model, scheduler):
        for engine, found in zip(engines, grads, strict=True):
            if not found and optimizer is engine.optimizer:
                found.update(
                    {name: safe_get_full_grad(p).cpu().numpy().copy() for name, p in engine.module.named_parameters()}
                )
        if all(grads):
            learner.strategy.optimizer_step = take_step
        take_step(optimizer, model, scheduler)

    learner.strategy.optimizer_step = recording_step
    return grads
