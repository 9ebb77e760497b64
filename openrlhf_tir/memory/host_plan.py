"""Compute how much of a node's host memory each process of a run holds, from a Config and a model's config.json.

Nothing is loaded. Without GPUs, all of a learner rank and of an engine is in host memory: the parts of memory_plan.py
except those that exist on GPUs only. With GPUs it is the processes themselves and what memory_plan.py counts for the
host. The constants are measured; docs/scaling.md has the commands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import Config
from ..machine.sizes import size
from .bounds import (
    CPU_KV_CACHE_MIB,
    CPU_PREFILL_TOKENS,
    GRADIENT_BUCKET_ELEMENTS,
    REWARD_BATCH_TOKENS,
)
from .memory_plan import Shape, learner_parts, micro_batch_tokens, recomputed_layers
from .model_size import WEIGHT_BYTES, checkpoint_bytes, config_json, parameters

KEPT_FREE = 0.05
"""Share of a node's memory that must stay free: above it Ray's memory monitor ends processes."""
LEARNER_PROCESS = 500 << 20
"""Bytes of a learner's process on CPU besides the parts that are counted: Python, torch, DeepSpeed, Ray."""
PASS_SLACK = 0.4
"""Memory of a pass on CPU besides the tensors that are counted, as a share of these: gradients in flight, oneDNN's
buffers, and holes in glibc's heap."""
PARTS_OF_A_PASS = (
    "activations",
    "keys of shared prompts",
    "logits",
    "head's gradient",
    "experts' gradient",
    "kept logits",
)
"""The parts of a rank that exist during a pass only."""
ENGINE_PROCESSES = 1100 << 20
"""Bytes of an engine's processes on CPU besides the parts that are counted: Python, torch, vLLM and Ray in the rollout
actor, of which vLLM's engine process is a fork."""
BF16_REST = 650 << 20
"""Bytes that an engine in bf16 or fp16 and its actor have besides: what is left over at the peak of a whole run of
SmolLM2, an evaluation. Half of them are there after a trim as well; oneDNN keeps kernels for each number of tokens that
a step had, but how much of it they are was not measured."""
PREFILL_COPIES = 5
"""Factor by which the memory of a prefill on CPU exceeds one layer's outputs: these, what oneDNN and the attention work
with, and the holes that they leave in glibc's heap. Measured with SmolLM2: 76 KB a token, where outputs are 16 KB."""
STEP_LOGITS = 4
"""Arrays [sequences, vocabulary] in fp32 that a step of a CPU engine has at its peak: logits, their log-probs, scaled
logits, probabilities."""
ENGINE_WORKER = 450 << 20
"""Bytes of each worker process of a CPU engine that has several (vllm.tensor_parallel_size), besides the parts that are
counted: Python, torch, vLLM. They are spawned, beside the actor and vLLM's engine process. Measured with a tiny model,
whose two workers took 911 MiB."""
ENGINE_HOST = 3400 << 20
"""Host bytes of an engine with a GPU: 1.3 GiB of the actor and 2.1 GiB of vLLM's engine, with an H100."""
WORKER_HOST = 2150 << 20
"""Host bytes of each worker process of an engine of several GPUs: what vLLM's engine, which is the worker of a single
GPU, has. With several, vLLM's engine process is one more, without a GPU. Not measured with several GPUs."""
LEARNER_HOST = 2100 << 20
"""Host bytes of a learner's process with a GPU, with an H100. A reward model's is taken to be as large."""
CONTROLLER = 900 << 20
"""Bytes of the controller's process and of Ray's daemons on its node."""
ENV_WORKER = 40 << 20
"""Bytes of an environment server and of each of its workers."""


@dataclass(frozen=True)
class HostPlan:
    """Host memory of one node in bytes, by process.

    Attributes:
        learner: Parts of one learner rank.
        engine: Parts of one engine with its rollout actor and all its worker processes.
        ranks: Learner ranks on a node.
        engines: Engines on a node, rounded up.
        reward: Parts of one reward model.
        rewards: Reward models on a node.
        checkpoint: What one rank copies of its states, which exists while a checkpoint is written beside training.
        last_push: What was pushed last, which learner rank 0 alone keeps (vllm.sync_backend = delta).
        pushes: Files of weights in /dev/shm, which is the node's memory: the one that is served, the one that arrives.
        others: Controller, Ray's daemons, environment servers.
    """

    learner: dict[str, int]
    engine: dict[str, int]
    ranks: int
    engines: int
    reward: dict[str, int]
    rewards: int
    checkpoint: int
    last_push: int
    pushes: int
    others: int

    @property
    def rank_bytes(self) -> int:
        """Bytes of one learner rank."""
        return sum(self.learner.values())

    @property
    def engine_bytes(self) -> int:
        """Bytes of one engine."""
        return sum(self.engine.values())

    @property
    def reward_bytes(self) -> int:
        """Bytes of one reward model."""
        return sum(self.reward.values())

    @property
    def total(self) -> int:
        """Bytes of a node at its peak."""
        ranks = self.ranks * (self.rank_bytes + self.checkpoint)
        models = self.engines * self.engine_bytes + self.rewards * self.reward_bytes
        return ranks + self.last_push + models + self.pushes + self.others

    @property
    def needs(self) -> str:
        """The sum and its parts as a phrase."""
        last_push = f" {size(self.last_push)} of the last push," if self.last_push else ""
        pushes = f" {size(self.pushes)} of pushed weights in /dev/shm," if self.pushes else ""
        rewards = (
            f" {self.rewards} reward model{'s' * (self.rewards > 1)} of {size(self.reward_bytes)},"
            if self.rewards
            else ""
        )
        copies = f", {size(self.checkpoint)} more of each while a checkpoint is written" if self.checkpoint else ""
        return (
            f"{size(self.total)} of host memory: {self.ranks} learner rank{'s' * (self.ranks > 1)} of"
            f" {size(self.rank_bytes)}{copies},{last_push} {self.engines} engine{'s' * (self.engines > 1)} of"
            f" {size(self.engine_bytes)},{rewards}{pushes} {size(self.others)} of controller, Ray and environment"
            " servers"
        )

    def faults(self, node_bytes: int) -> list[str]:
        """Return a sentence with the settings that help if a node of this memory is too small; else nothing."""
        limit = usable(node_bytes)
        if self.total <= limit:
            return []
        return [
            f"a node needs {self.needs}; of its {size(node_bytes)} a run may use {1 - KEPT_FREE:.0%}, {size(limit)}."
            f" {REMEDY}"
        ]


def usable(node_bytes: int) -> int:
    """Return how much of a node's memory may be in use before Ray's memory monitor ends processes."""
    return int(node_bytes * (1 - KEPT_FREE))


REMEDY = (
    "Lower train.max_tokens_per_gpu (without ds.packing_samples also train.micro_batch_size),"
    " actor.num_gpus_per_node, vllm.num_engines, vllm.tensor_parallel_size, vllm.kv_cache_mib or"
    " reward.model_replicas, set actor.gradient_checkpointing_enable, or take a smaller model."
)


def host_plan(cfg: Config, *, gpus: bool, kv_tokens: int | None = None, shm_free: int | None = None) -> HostPlan | None:
    """Return the plan; None if the model's size cannot be read here.

    Args:
        cfg: The run's configuration.
        gpus: True if learner and engines have GPUs.
        kv_tokens: Tokens that an engine's KV cache holds, if that is known. For each of them vLLM keeps the experts in
            host memory (rollout.routing_replay).
        shm_free: Free bytes in /dev/shm. If the files of pushes do not fit there, they are on disk. None: they fit.
    """
    model = cfg.actor.model_name_or_path
    n, shape = parameters(model), Shape.of(config_json(model))
    if not n or shape is None:
        return None
    w, ranks = WEIGHT_BYTES[cfg.ds.param_dtype], cfg.actor.world_size
    parts, host = learner_parts(cfg, n, shape, w, ranks, on_gpu=False)
    copied = math.ceil(checkpoint_bytes(cfg) / ranks) if cfg.ckpt.max_num else 0
    last_push = n * w if cfg.vllm.pushes_changes else 0
    kept = {"kept on the host": host - copied - last_push}
    checkpoint = copied if gpus or not copied else _copied_on_cpu(cfg, n, w, ranks)
    if gpus:
        learner = {"process": LEARNER_HOST} | kept
        engine = {"processes": ENGINE_HOST}
        if cfg.vllm.world_size > 1:
            engine["workers"] = ENGINE_WORKER + (cfg.vllm.world_size - 1) * WORKER_HOST
    else:
        parts["keys of shared prompts"] = _keys_of_shared_prompts(cfg, shape)
        learner = {"process": LEARNER_PROCESS} | _rank_on_cpu(parts, ranks) | kept
        engine = _engine_on_cpu(cfg, n, shape, w)
        kv_tokens = engine["KV cache"] // max(1, shape.kv_values * w)  # 0: config.json does not say
    if cfg.rollout.routing_replay and kv_tokens and shape.routing_bytes:
        engine["experts of cached tokens"] = kv_tokens * shape.routing_bytes
    pushed = 2 * n * w
    one_node = cfg.actor.num_nodes == 1  # with several, files are in the run's directory, which all of them see
    in_memory = cfg.push_backend == "file" and one_node and (shm_free is None or pushed <= shm_free)
    rewards = cfg.reward.replicas if cfg.actor.num_nodes == 1 else min(cfg.reward.replicas, cfg.reward.model_replicas)
    servers = sum(1 + e.env.workers for e in cfg.environments.values() if not e.urls)
    return HostPlan(
        learner={name: part for name, part in learner.items() if part},
        engine=engine,
        ranks=max(1, cfg.actor.num_gpus_per_node),
        engines=math.ceil(cfg.vllm.num_engines / cfg.actor.num_nodes),
        reward=_reward_model(cfg, w, gpus=gpus),
        rewards=rewards,
        checkpoint=checkpoint,
        last_push=last_push,
        pushes=pushed if in_memory else 0,
        others=CONTROLLER + ENV_WORKER * servers,
    )


def _reward_model(cfg: Config, w: int, *, gpus: bool) -> dict[str, int]:
    """Return what a process with a reward model holds, by parts; {} if the run has none.

    Where the model's size is not known, only the process counts. A pass keeps the outputs of one layer; what the
    attention works with is left out.
    """
    name = cfg.reward.model_name_or_path
    if not name:
        return {}
    process = LEARNER_HOST if gpus else LEARNER_PROCESS
    weights = w * (parameters(name) or 0)
    if gpus:
        return {"process": process}
    shape = Shape.of(config_json(name))
    at_once = cfg.vllm.num_engines * cfg.vllm.max_num_seqs * cfg.data.max_len
    tokens = min(max(REWARD_BATCH_TOKENS, cfg.data.max_len), at_once)
    return {"process": process, "weights": weights, "pass": tokens * _layer_outputs(shape, w) if shape else 0}


def _layer_outputs(shape: Shape, w: int) -> int:
    """Return the bytes of one layer's outputs per token where nothing is kept for a backward pass."""
    return w * (3 * shape.inner + (shape.heads + 2 * shape.keys) * shape.head_dim + 4 * shape.hidden)


def _copied_on_cpu(cfg: Config, n: int, w: int, ranks: int) -> int:
    """Return the bytes of its states that a rank on a CPU copies for a checkpoint (learner/saved/background.py).

    It is written from the states themselves, but for tensors that are a part of a larger one: the weights of ZeRO-2,
    and master weights in fp32, which are the weights themselves.
    """
    masters = 4 * math.ceil(n / ranks) if w == 4 else 0
    return masters + (n * w if cfg.ds.zero_stage < 3 else 0)


def _keys_of_shared_prompts(cfg: Config, shape: Shape) -> int:
    """Return the bytes of the keys and values that packed responses to a shared prompt keep for the backward pass.

    Each response has those of its prompt and its own, in fp32 (learner/attention/packed.py). Prompts and responses are
    taken to be as long as they may be.
    """
    if not cfg.shares_prompts:
        return 0
    tokens = micro_batch_tokens(cfg)
    response = max(1, min(cfg.rollout.max_new_tokens, cfg.data.max_len - 1))
    prompt = max(0, min(cfg.data.max_len - response, tokens - response))
    responses = (tokens - prompt) / response
    layers = shape.layers - recomputed_layers(cfg, shape) + (recomputed_layers(cfg, shape) > 0)
    return int(layers * responses * (prompt + response) * 2 * 4 * shape.keys * shape.head_dim)


def _rank_on_cpu(parts: dict[str, int], ranks: int) -> dict[str, int]:
    """Return what a rank without a GPU holds at its peak, which is in a pass: the optimiser's step needs a flat copy of
    some gradients, less than a chunk of logits and the head's gradient.

    Args:
        parts: What learner_parts counts.
        ranks: Learner ranks.
    """
    on_cpu = {name: part for name, part in parts.items() if name != "reserve"}
    if ranks == 1:
        on_cpu.pop("gathered weights", None)  # they are the rank's own
    of_pass = {name: on_cpu.pop(name) for name in PARTS_OF_A_PASS if name in on_cpu}
    slack = int(PASS_SLACK * sum(of_pass.values()))
    bucket = 2 * GRADIENT_BUCKET_ELEMENTS["cpu"]  # of bf16
    return on_cpu | of_pass | {"gradients' bucket": bucket, "slack of a pass": slack}


def _engine_on_cpu(cfg: Config, n: int, shape: Shape, w: int) -> dict[str, int]:
    """Return what an engine without a GPU and its actor hold.

    vLLM packs every linear layer into oneDNN's format and drops what it packed, but for the embedding and the head: of
    them it keeps both (vocab_parallel_embedding.py). Several workers share the weights. Each has a KV cache and a step
    of its own; its outputs are counted as a whole layer's.

    Args:
        cfg: The configuration.
        n: Parameters of the model.
        shape: Its shape.
        w: Bytes of a weight.
    """
    longest = cfg.data.max_len
    sequences = cfg.vllm.max_num_seqs
    tokens = min(max(CPU_PREFILL_TOKENS, longest), sequences * longest)
    workers = cfg.vllm.world_size
    return {
        "processes": ENGINE_PROCESSES,
        **({"workers": workers * ENGINE_WORKER} if workers > 1 else {}),
        "weights": n * w,
        "packed embedding and head": 2 * w * shape.vocabulary * shape.hidden,
        "KV cache": workers * (cfg.vllm.kv_cache_mib or CPU_KV_CACHE_MIB) << 20,
        "rest in bf16": workers * BF16_REST if w == 2 else 0,
        "largest step": workers
        * max(PREFILL_COPIES * tokens * _layer_outputs(shape, w), STEP_LOGITS * 4 * sequences * shape.vocabulary),
    }
