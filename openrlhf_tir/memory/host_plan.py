"""Host plan: a Config and a model's config.json -> what each process of a run holds of a node's host memory.

Arithmetic only; nothing is loaded. Without GPUs all of a learner rank and of an engine is in host memory: the parts of
memory_plan.py, without what exists on a GPU alone. With GPUs it is the processes themselves, and what memory_plan.py
counts for the host. The constants are measured: docs/scaling.md has the commands.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..config import Config
from ..machine.sizes import size
from .memory_plan import Shape, learner_parts
from .model_size import WEIGHT_BYTES, checkpoint_bytes, config_json, parameters

LEARNER_PROCESS = 550 << 20
"""Bytes of a learner's process on CPU beside what is counted: Python, torch, DeepSpeed, Ray."""
PASS_SLACK = 0.9
"""What a forward and backward pass on CPU takes beside the tensors that are counted, as a share of these: gradients on
their way, oneDNN's buffers, and what glibc's heap loses between tensors of many sizes. Measured with SmolLM2 and rows
of 1,280 tokens: 5.23 GB at the peak, 2.91 GB between updates (`python -m benchmarks.learner --only memory`)."""
OF_A_PASS = ("activations", "logits", "head's gradient", "kept logits")
"""The parts of a rank that exist within a pass."""
CPU_CHUNK_TOKENS = 256
"""Tokens of a chunk of logits on CPU (learner/linear_head.py)."""
BUCKET_BYTES = 2 << 23
"""Bytes of bf16 gradients that are added up over the ranks at a time on CPU (learner/host_memory.py)."""
ENGINE_PROCESSES = 1400 << 20
"""Bytes of an engine's processes on CPU beside weights and KV cache: the rollout actor and vLLM's engine."""
ENGINE_HOST = 3400 << 20
"""The same of an engine with a GPU: 1.3 GiB of the actor and 2.1 of vLLM's engine, on an H100."""
LEARNER_HOST = 2100 << 20
"""Bytes of a learner's process beside a GPU, on an H100."""
CONTROLLER = 900 << 20
"""Bytes of the controller's process and of Ray's daemons on its node."""
ENV_WORKER = 40 << 20
"""Bytes of an environment server and of each of its workers."""
CPU_KV_CACHE = 256 << 20
"""The KV cache of a CPU engine where vllm.kv_cache_mib is unset (engines/start.py)."""


@dataclass(frozen=True)
class HostPlan:
    """Bytes of host memory of a node, by process. `checkpoint` is held while one is written, beside training."""

    learner: dict[str, int]
    """One learner rank, by parts."""
    engine: dict[str, int]
    """One engine with its rollout actor, by parts."""
    ranks: int
    """Learner ranks on a node."""
    engines: int
    """Engines on a node, rounded up."""
    checkpoint: int
    """One rank's copy of its states, which a checkpoint is written from."""
    others: int
    """Controller, Ray's daemons, environment servers."""

    @property
    def rank_bytes(self) -> int:
        return sum(self.learner.values())

    @property
    def engine_bytes(self) -> int:
        return sum(self.engine.values())

    @property
    def total(self) -> int:
        """All of a node at its peak."""
        return self.ranks * (self.rank_bytes + self.checkpoint) + self.engines * self.engine_bytes + self.others

    @property
    def needs(self) -> str:
        """The sum in words."""
        copies = f", {size(self.checkpoint)} more of each while a checkpoint is written" if self.checkpoint else ""
        return (
            f"{size(self.total)} of host memory: {self.ranks} learner rank{'s' * (self.ranks > 1)} of"
            f" {size(self.rank_bytes)}{copies}, {self.engines} engine{'s' * (self.engines > 1)} of"
            f" {size(self.engine_bytes)}, {size(self.others)} of controller, Ray and environment servers"
        )

    def faults(self, total: int) -> list[str]:
        """Return what does not fit into a node of `total` bytes, a sentence with the settings that change it."""
        if self.total <= total:
            return []
        return [f"a node needs {self.needs}; it has {size(total)}. {REMEDY}"]


REMEDY = (
    "Lower train.max_tokens_per_gpu (without ds.packing_samples also train.micro_batch_size),"
    " actor.num_gpus_per_node, vllm.num_engines or vllm.kv_cache_mib, set actor.gradient_checkpointing_enable, or take"
    " a smaller model."
)


def host_plan(cfg: Config, *, gpus: bool) -> HostPlan | None:
    """Return what each process holds of a node's host memory; None when the model's size cannot be read here.

    Args:
        gpus: Whether learner and engines have GPUs.
    """
    model = cfg.actor.model_name_or_path
    n, shape = parameters(model), Shape.of(config_json(model))
    if not n or shape is None:
        return None
    w, ranks = WEIGHT_BYTES[cfg.ds.param_dtype], cfg.actor.world_size
    parts, host = learner_parts(cfg, n, shape, w, ranks, chunk=CPU_CHUNK_TOKENS, on_gpu=False)
    checkpoint = 0 if cfg.ckpt.disable_ds else math.ceil(checkpoint_bytes(cfg) / ranks)
    kept = {"kept on the host": host - checkpoint}
    if gpus:
        learner = {"process": LEARNER_HOST} | kept
        engine = {"processes": ENGINE_HOST}
    else:
        on_cpu = {name: part for name, part in parts.items() if name != "reserve"}
        if ranks == 1:
            on_cpu.pop("gathered weights", None)  # they are the rank's own
        slack = int(PASS_SLACK * sum(on_cpu.get(part, 0) for part in OF_A_PASS))
        buffers = {"gradients' bucket": BUCKET_BYTES, "slack of a pass": slack}
        learner = {"process": LEARNER_PROCESS} | on_cpu | buffers | kept
        engine = {
            "processes": ENGINE_PROCESSES,
            "weights": n * w,
            "KV cache": (cfg.vllm.kv_cache_mib << 20) if cfg.vllm.kv_cache_mib else CPU_KV_CACHE,
        }
    servers = sum(1 + e.env.workers for e in cfg.environments.values() if not e.urls)
    return HostPlan(
        learner={name: part for name, part in learner.items() if part},
        engine=engine,
        ranks=max(1, cfg.actor.num_gpus_per_node),
        engines=math.ceil(cfg.vllm.num_engines / cfg.actor.num_nodes),
        checkpoint=checkpoint,
        others=CONTROLLER + ENV_WORKER * servers,
    )
