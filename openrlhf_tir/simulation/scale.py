"""From a model and a number of cards to a layout that fits, its times, and what limits it first.

    memory plan       which layouts fit (memory/memory_plan.py)
    constants         what was measured on H100 and H200 (docs/gpu.md); what was not is marked as assumed
    times of a step   learner, gathering of weights, rollout, push -> the layout whose step is shortest
    simulator         the same layout in the real loop on a virtual clock

A step trains B prompts with n samples each, as the workload file says; B grows with the cards beyond 64.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..config import Config
from ..config.sections.rollout import tensor_parallel_fault
from ..memory.memory_plan import MemoryPlan, Shape, memory_plan
from ..memory.model_size import Experts, active_parameters, of_config
from .run import WARM_UP, configure, simulate
from .workload import PROMPT_TOKENS, SEED_WORKLOAD, EngineSpec, Workload

# --- Measured (docs/gpu.md) ---
MFU = 0.475
"""Share of the card's peak in a learner step without recomputation: 1.5 billion parameters, rows of 32,768 tokens, one
H200. Recomputation of every layer adds a forward pass. The 3/4 that are then left are derived: a step with
recomputation was measured on an H100 only, at .244 (docs/gpu.md)."""
HOST_S_PER_TOKEN = 1 / 20_000
"""Seconds of an engine's process for a sampled token with its log-prob: 512 sequences of 0.5 billion parameters, H200.
No engine of one process is faster, however small the model."""
WRITE_BYTES_PER_S = 2.9 * 2**30 / 2.8
"""A push to a file in /dev/shm: 2.9 GiB in 2.8 s, one H100."""

# --- Data sheets and assumptions, not measured ---
PEAK_FLOPS = 989e12
"""Dense bf16 operations of an H100 or H200 in a second, by its data sheet."""
BANDWIDTH = {80: 3.35e12, 141: 4.8e12}
"""GiB of a card (H100, H200) -> bytes a second of its memory, by its data sheet."""
BANDWIDTH_SHARE = 0.6
"""Assumed share of the memory's bandwidth that decoding reaches."""
PREFILL_SHARE = 0.4
"""Assumed share of the peak in a prefill."""
NODE_BYTES_PER_S = 450e9
"""Between cards of a node, one way, by the data sheet of NVLink 4."""
NETWORK_BYTES_PER_S = 50e9
"""Between nodes for each card: 400 Gbit/s."""
CARDS_OF_A_NODE = 8

LONGEST = 8192 + 1024
TOKENS_PER_CARD = 16_384
LEAST_SEQUENCES = 32
"""An engine whose cache holds fewer sequences of full length is not considered."""
LONG_TAIL = 1.5
"""A simulated step this many times as long as the one without gaps waits for the longest responses."""
TOKEN_BYTES = 12
"""Token id, log-prob and version of a token in the object store."""


@dataclass(frozen=True)
class Layout:
    """A split of the cards that fits.

    Attributes:
        engines: Number of engines.
        tensor_parallel: Cards of each.
        learner_cards: Cards that train.
        offload: True with ds.adam_offload.
        shared: "": the learner has cards of its own; else the setting with which one card does both.
        sequences: Sequences of full length that an engine's cache holds.
        kv_tokens: Tokens that it holds.
    """

    engines: int
    tensor_parallel: int
    learner_cards: int
    offload: bool
    shared: str
    sequences: float
    kv_tokens: int


@dataclass(frozen=True)
class ScalePlan:
    """The best layout of a model on a number of cards, and what a step of it takes. Times in seconds."""

    model: str
    cards: int
    layout: Layout
    prompts: int
    learner_s: float
    gather_s: float
    rollout_s: float
    push_s: float
    push_bytes: int
    store_bytes: int
    """What a batch's tokens take in the object store."""
    env_s: float
    """Seconds of the environment's calls in a step, one after the other."""
    simulated: dict[str, float] | None = None

    @property
    def step_s(self) -> float:
        """Seconds between two steps if rollout and training overlap without a gap."""
        train = max(self.learner_s, self.gather_s) + self.push_s
        return train + self.rollout_s if self.layout.shared == "train.colocate_all" else max(train, self.rollout_s)

    @property
    def env_at_once(self) -> float:
        """The environment's calls that run at the same time, on average, by Little's law."""
        return self.env_s / self.step_s

    @property
    def first_limit(self) -> str:
        """What the step waits for."""
        if self.simulated and self.simulated["step_s"] > LONG_TAIL * self.step_s:
            return "the longest responses"
        training = {
            "learner's arithmetic": self.learner_s,
            "gathering weights (ZeRO-3)": self.gather_s,
            "weight pushes": self.push_s,
        }
        largest = max(training, key=lambda name: training[name])
        in_turns = self.layout.shared == "train.colocate_all"
        train_s = training[largest] if in_turns else max(self.learner_s, self.gather_s) + self.push_s
        return "engines' decoding" if self.rollout_s >= train_s else largest


def plan_scale(
    model: str,
    config: dict[str, Any],
    cards: int,
    *,
    gpu_gib: int = 80,
    push: str = "file",
) -> ScalePlan | None:
    """Return the plan whose step is shortest; None if no layout fits.

    Args:
        model: Name of the model, for the table.
        config: Its config.json.
        cards: Number of cards.
        gpu_gib: Memory of one.
        push: vllm.sync_backend.
    """
    workload = Workload.read(SEED_WORKLOAD)
    workload = replace(workload, prompts=max(workload.prompts, 2 * cards))
    candidates = [
        _plan_of(model, config, cards, layout, gpu_gib, push, workload) for layout in layouts(config, cards, gpu_gib)
    ]
    return min(candidates, key=lambda plan: (plan.step_s, plan.layout.learner_cards), default=None)


def layouts(config: dict[str, Any], cards: int, gpu_gib: int) -> Iterator[Layout]:
    """Yield the layouts that fit, for each split of the cards and each size of engine the one without offloading."""
    with tempfile.TemporaryDirectory(prefix="tir-scale-") as directory:
        Path(directory, "config.json").write_text(json.dumps(config))
        if cards == 1:
            yield from _on_one_card(directory, gpu_gib)
            return
        shape = Shape.of(config)
        for tensor_parallel in (1, 2, 4, 8):
            if shape is not None and tensor_parallel_fault(tensor_parallel, shape.heads, shape.keys):
                continue
            for learner_cards in _shares(cards):
                engines = (cards - learner_cards) // tensor_parallel
                if engines < 1:
                    continue
                for offload in (False, True):
                    cfg = _config(directory, learner_cards, engines, tensor_parallel, offload)
                    layout = _if_it_fits(cfg, gpu_gib, "")
                    if layout is not None:
                        yield layout
                        break


def _on_one_card(directory: str, gpu_gib: int) -> Iterator[Layout]:
    """Yield the first layout that fits: sharing before taking turns, no offloading before it, the largest cache."""
    side_by_side = [{"share_gpus": True, "kv_cache_mib": mib} for mib in (32_768, 16_384, 8_192, 4_096)]
    in_turns = [{"colocate_all": True, "utilization": share} for share in (0.8, 0.7, 0.6, 0.5)]
    ways: tuple[tuple[str, list[dict[str, Any]]], ...] = (
        ("train.share_gpus", side_by_side),
        ("train.colocate_all", in_turns),
    )
    for shared, attempts in ways:
        for offload, settings in itertools.product((False, True), attempts):
            layout = _if_it_fits(_config(directory, 1, 1, 1, offload, **settings), gpu_gib, shared, least=2)
            if layout is not None:
                yield layout
                return


def _shares(cards: int) -> Sequence[int]:
    """Return the numbers of learner cards that are tried: powers of two, over which the samples divide."""
    return [1 << power for power in range(cards.bit_length()) if 1 << power < cards]


def _config(
    directory: str,
    learner_cards: int,
    engines: int,
    tensor_parallel: int,
    offload: bool,
    *,
    share_gpus: bool = False,
    colocate_all: bool = False,
    kv_cache_mib: int | None = None,
    utilization: float = 0.9,
) -> Config:
    nodes = math.ceil(learner_cards / CARDS_OF_A_NODE)
    return Config.model_validate(
        {
            "actor": {
                "model_name_or_path": directory,
                "num_nodes": nodes,
                "num_gpus_per_node": learner_cards // nodes,
                "gradient_checkpointing_enable": True,
            },
            "ds": {"packing_samples": True, "attn_implementation": "sdpa", "adam_offload": offload},
            "algo": {"advantage": {"estimator": "group_norm"}},
            "data": {"max_len": LONGEST},
            "pipeline": {"mode": "sync"} if colocate_all else {},
            "rollout": {"batch_size": 1024, "n_samples_per_prompt": 16},
            "train": {
                "max_tokens_per_gpu": TOKENS_PER_CARD,
                "share_gpus": share_gpus,
                "colocate_all": colocate_all,
            },
            "vllm": {
                "num_engines": engines,
                "tensor_parallel_size": tensor_parallel,
                "gpu_memory_utilization": utilization,
                "kv_cache_mib": kv_cache_mib,
            },
        }
    )


def _if_it_fits(cfg: Config, gpu_gib: int, shared: str, least: float = LEAST_SEQUENCES) -> Layout | None:
    plan: MemoryPlan | None = memory_plan(cfg, gpu_gib << 30)
    if plan is None or plan.faults(gpu_gib << 30) or plan.sequences < least:
        return None
    return Layout(
        engines=cfg.vllm.num_engines,
        tensor_parallel=cfg.vllm.tensor_parallel_size,
        learner_cards=cfg.actor.world_size,
        offload=cfg.ds.adam_offload,
        shared=shared,
        sequences=plan.sequences,
        kv_tokens=plan.kv_tokens,
    )


def _plan_of(
    model: str, config: dict[str, Any], cards: int, layout: Layout, gpu_gib: int, push: str, workload: Workload
) -> ScalePlan:
    shape = Shape.of(config)
    count = of_config(config)
    active = active_parameters(config)
    assert shape is not None and count is not None and active is not None, "a layout exists, so the shape is complete"
    samples = workload.prompts * workload.samples_per_prompt
    written = workload.response_tokens.mean
    length = mean_length(workload)
    tokens = samples * length
    # forward and backward: 6 operations per parameter, and causal attention 6 layers (a d) L^2 per sequence
    operations = tokens * (6 * active + 6 * shape.layers * shape.heads * shape.head_dim * length)
    learner_s = operations / (layout.learner_cards * PEAK_FLOPS * MFU * 0.75)
    passes = math.ceil(tokens / (layout.learner_cards * TOKENS_PER_CARD))
    # Between nodes every card of a node sends its part of the ring through a network card of its own.
    nodes_link = CARDS_OF_A_NODE * NETWORK_BYTES_PER_S
    link = NODE_BYTES_PER_S if layout.learner_cards <= CARDS_OF_A_NODE else nodes_link
    # per pass: weights gathered forwards and backwards, gradients scattered, two bytes each
    gather_s = passes * 6 * count / link if layout.learner_cards > 1 else 0.0
    spec = engine_spec(config, layout, gpu_gib, length)
    push_bytes = 2 * count
    push_s = 2 * push_bytes / WRITE_BYTES_PER_S if push == "file" else push_bytes / NETWORK_BYTES_PER_S
    rollout_s = samples * written / (layout.engines * spec.saturated_tokens_per_s)
    return ScalePlan(
        model=model,
        cards=cards,
        layout=layout,
        prompts=workload.prompts,
        learner_s=learner_s,
        gather_s=gather_s,
        rollout_s=rollout_s,
        push_s=push_s,
        push_bytes=push_bytes,
        store_bytes=round(tokens * TOKEN_BYTES),
        env_s=samples * workload.tool_calls * workload.env_latency_s.mean,
    )


def mean_length(workload: Workload) -> float:
    """Return the mean number of tokens of a trajectory: prompt, response and observations."""
    observed = workload.tool_calls * workload.observation_tokens.mean
    return PROMPT_TOKENS + workload.response_tokens.mean + observed


def engine_spec(config: dict[str, Any], layout: Layout, gpu_gib: int, length: float) -> EngineSpec:
    """Return what one engine decodes, by the number of running sequences.

    A step of n sequences reads the weights (all experts that some sequence is sent to) and the cache of n sequences,
    of half their length on average; and the engine's process takes HOST_S_PER_TOKEN for each.
    """
    shape = Shape.of(config)
    count = of_config(config)
    assert shape is not None and count is not None, "a layout exists, so the shape is complete"
    active = active_parameters(config)
    experts = Experts.of(config)
    dense = of_config(config, experts=0)
    assert dense is not None and active is not None, "the shape is complete"
    bandwidth = BANDWIDTH.get(gpu_gib, min(BANDWIDTH.values())) * BANDWIDTH_SHARE * layout.tensor_parallel
    most = max(1, min(512, int(layout.kv_tokens / length)))

    def rate(running: int) -> float:
        weights = count
        if experts is not None:
            reached = 1 - (1 - experts.chosen / experts.count) ** running
            weights = dense + int((count - dense) * reached)
        cache = running * length / 2 * shape.kv_values
        step_s = max((2 * weights + 2 * cache) / bandwidth, running * HOST_S_PER_TOKEN)
        return running / step_s

    points = sorted({1, min(32, most), min(128, most), min(256, most), most})
    return EngineSpec(
        count=layout.engines,
        max_running=most,
        kv_tokens=layout.kv_tokens,
        decode_tokens_per_s=tuple((float(n), rate(n)) for n in points),
        prefill_tokens_per_s=PREFILL_SHARE * PEAK_FLOPS * layout.tensor_parallel / (2 * active),
        weight_push_s=0.0,
    )


def simulate_plan(plan: ScalePlan, config: dict[str, Any], *, gpu_gib: int) -> ScalePlan:
    """Return the plan with what the simulator says of it, at the staleness bound of 2 that suits most runs."""
    workload = Workload.read(SEED_WORKLOAD)
    spec = replace(engine_spec(config, plan.layout, gpu_gib, mean_length(workload)), weight_push_s=plan.push_s)
    workload = replace(
        workload, prompts=plan.prompts, steps=6 + WARM_UP, engine=spec, env_capacity=max(256, 8 * plan.prompts)
    )
    if plan.layout.shared == "train.colocate_all":
        cfg = configure(workload, mode="sync")
    else:
        cfg = configure(workload, mode="pipeline", max_staleness=2, depth="auto")
    result = simulate(workload, cfg, learner_s=max(plan.learner_s, plan.gather_s))
    return replace(
        plan,
        simulated={
            "step_s": result.step_s,
            "engine_idle": result.engine_idle,
            "learner_idle": result.learner_idle,
            "staleness_mean": result.staleness_mean,
        },
    )


def as_dict(plan: ScalePlan) -> dict[str, Any]:
    """Return a plan as plain values, with what follows from it."""
    return asdict(plan) | {"step_s": plan.step_s, "first_limit": plan.first_limit}
