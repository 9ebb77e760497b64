"""Nodes: what the cluster has, and what each process of a run takes of it. Asked of Ray, never of this machine: the
driver's may have no GPU.

engine_room(cfg)   bundles and resources of a rollout engine; learner_room, reward_room likewise
plan(cfg, nodes)   which rank and engine goes where, in words, before anything is loaded
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import ray

from ..config import Config
from ..errors import ClusterFull, ConfigError
from ..waiting.backoff import MAX_PROBE_PAUSE_S, backoff_s


class Node(NamedTuple):
    address: str
    cpus: int
    gpus: int

    def __str__(self) -> str:
        return f"{self.address} ({self.cpus} CPUs, {self.gpus} GPUs)"


def nodes() -> list[Node]:
    """Those that are alive, with what they were started with, whoever uses it now."""
    alive = [n for n in ray.nodes() if n["Alive"]]
    return [
        Node(n["NodeManagerAddress"], int(n["Resources"].get("CPU", 0)), int(n["Resources"].get("GPU", 0)))
        for n in alive
    ]


def hosts() -> list[Node]:
    """Return the nodes that an engine or a learner rank can be placed on: those with GPUs where there are any. Neither
    a head without GPUs nor a node that is gone is one."""
    return [node for node in nodes() if node.gpus or not has_gpus()]


def only_here() -> bool:
    """Return True if every engine and learner rank is on the controller's own node, now.

    Then they share its memory (/dev/shm) and its loopback. One node with GPUs beside a head without is not that: what
    the controller reads or serves is on the head.
    """
    own_id = ray.get_runtime_context().get_node_id()
    own = {node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == own_id}
    return {node.address for node in hosts()} <= own


@functools.cache
def has_gpus() -> bool:
    """Whether the run is one on GPUs: whether the cluster had any when it was first asked, in this session of Ray
    (`ray_session` forgets it).

    Once for all: an engine replaced while the nodes with GPUs are lost waits for them, and does not start on CPU."""
    return any(node.gpus for node in nodes())


async def some_gpus(cfg: Config) -> None:
    """Until the cluster has GPUs, for a recipe that cannot do without: at once, or a restart by the launcher within
    train.start_wait_s.

    Raises ClusterFull, with what there is: its nodes may still come.
    """
    loop = asyncio.get_running_loop()
    give_up, tries = loop.time() + cfg.train.start_wait_s, 0
    while "flash_attention" in cfg.ds.attn_implementation and not has_gpus():
        if loop.time() >= give_up:
            raise ClusterFull(
                f"ds.attn_implementation = {cfg.ds.attn_implementation!r} needs GPUs, and Ray knows of none:"
                f" {', '.join(map(str, nodes()))}. Start Ray on nodes with GPUs (ray start --num-gpus), or start from"
                " --recipe quickstart_cpu."
            )
        await asyncio.sleep(backoff_s(tries, cap_s=MAX_PROBE_PAUSE_S))
        tries += 1
        has_gpus.cache_clear()


def transport(cfg: Config) -> str | None:
    """What is to be said of vllm.sync_backend on the nodes that there are. Raises ConfigError where it cannot work."""
    backend = cfg.vllm.sync_backend
    if backend == "nccl" and not has_gpus():
        raise ConfigError(
            f"vllm.sync_backend = 'nccl' needs GPUs, and Ray knows of none: {', '.join(map(str, nodes()))}. Use 'gloo',"
            " which is the same on CPUs, or 'file'."
        )
    if backend == "nccl":
        return (
            "vllm.sync_backend = nccl has not been run on GPUs yet: every push is proved by digest and canary as ever."
            " If it fails, use 'file'."
        )
    if backend == "gloo" and has_gpus():
        return (
            "vllm.sync_backend = gloo sends the weights by way of the hosts' memory, which is slow between GPUs."
            " 'file' with vllm.sync_delta sends less."
        )
    return None


class Room(NamedTuple):
    """What an actor reserves, and takes of it itself."""

    bundles: list[dict[str, float]]
    strategy: str
    num_cpus: float
    num_gpus: float
    workers_by_ray: bool
    """The actor takes no GPU: vLLM starts a Ray actor in each bundle."""
    each: int = 1
    """Processes in a bundle."""


SHARE = 0.5
"""The share of a GPU by which Ray reserves it for a learner rank or an engine of one bundle (train.colocate_all,
train.share_gpus). Ray watches no memory."""


def shared_room(cfg: Config) -> Room:
    """Return a bundle for each learner rank, with a GPU if there are any, whose other half an engine takes."""
    gpu = float(has_gpus())
    bundle = {"CPU": 2.0, "GPU": 1.0} if gpu else {"CPU": 2.0}
    return Room([bundle] * cfg.actor.world_size, "PACK", 1.0, SHARE * gpu, False)


def engine_room(cfg: Config) -> Room:
    """One bundle, whose GPUs are the actor's own and so visible to vLLM's worker processes. An engine that no node has
    enough GPUs for gets a bundle per GPU, on as few nodes as can be."""
    n = float(cfg.vllm.world_size)
    if not has_gpus():
        return Room([{"CPU": n}], "STRICT_PACK", n, 0.0, False)
    if n <= max(node.gpus for node in nodes()) or cfg.vllm.world_size == 1:
        return Room([{"CPU": 1.0, "GPU": n}], "STRICT_PACK", 1.0, n, False)
    return Room([{"CPU": 1.0, "GPU": 1.0}] * cfg.vllm.world_size, "PACK", 1.0, 0.0, True)


def single_room(count: int) -> Room:
    """`count` processes with a GPU each where there are any: learner ranks, reward models."""
    gpus = float(has_gpus())
    bundle = {"CPU": 1.0, "GPU": 1.0} if gpus else {"CPU": 1.0}
    return Room([bundle] * count, "PACK", 1.0, gpus, False)


def learner_room(cfg: Config) -> Room:
    """Learner ranks, so many on each of actor.num_nodes; where no node has room for them, wherever there is."""
    per_node = max(1, cfg.actor.num_gpus_per_node)
    holds = max((node.gpus if has_gpus() else node.cpus for node in nodes()), default=0)
    return _on_nodes(cfg.actor.num_nodes, per_node) if per_node <= holds else single_room(cfg.actor.world_size)


def reward_room(cfg: Config) -> Room:
    """Reward models, so many on each of reward.num_nodes."""
    return _on_nodes(cfg.reward.num_nodes, cfg.reward.model_replicas)


def _on_nodes(count: int, per_node: int) -> Room:
    """Processes with a GPU each where there are any. Those of several nodes have one bundle per node, on different
    nodes as far as there are."""
    if count == 1:
        return single_room(per_node)
    of_one = single_room(1)
    bundle = {kind: amount * per_node for kind, amount in of_one.bundles[0].items()}
    return of_one._replace(bundles=[bundle] * count, strategy="SPREAD", each=per_node)


def plan(cfg: Config, there: Sequence[Node], *, learner: bool = True) -> list[str]:
    """Lines for the start of the run: the nodes, and where each process can go; what is missing, and where, when they
    do not all fit.

    Ray decides in the end, and what it decided is said as well. This is the proof that it can: engines first, each on
    the node that it leaves the least room on, then what takes one GPU, nodes of which it has none first where it asks
    for several. What is missing may still come (an autoscaler, a node that restarts).
    """
    engine, reward, ranks = engine_room(cfg), reward_room(cfg), learner_room(cfg)
    shared = learner and cfg.engines_beside_ranks
    how = "in turns" if cfg.train.colocate_all else "beside it"
    kind = "GPU" if has_gpus() else "CPU"
    left = {node.address: node.gpus if has_gpus() else node.cpus for node in there}
    placed: dict[str, Counter[str]] = {address: Counter() for address in left}
    missing: Counter[str] = Counter()

    def put(room: Room, names: Sequence[str], size: int) -> None:
        """`names`: of the processes of one bundle after another, each of which takes `size`."""
        used: set[str] = set()
        for i in range(0, len(names), room.each):
            of_bundle = dict.fromkeys(names[i : i + room.each], size)
            fitting = [address for address in left if left[address] >= room.each * size]
            if not fitting:
                missing.update(of_bundle)
                continue
            best = min(fitting, key=lambda address: (room.strategy == "SPREAD" and address in used, left[address]))
            used.add(best)
            left[best] -= room.each * size
            placed[best].update(of_bundle)

    for i in range(0 if shared else cfg.vllm.num_engines):
        for bundle in engine.bundles:
            put(engine, [f"engine {i}"], round(bundle[kind]))
    put(reward, [f"reward model {i}" for i in range(cfg.reward.replicas if cfg.reward.model_name_or_path else 0)], 1)
    if shared:
        beside = [f" + engine {i} {how}" if i < cfg.vllm.num_engines else "" for i in range(cfg.actor.world_size)]
        room = shared_room(cfg)
        put(room, [f"learner rank {i}{other}" for i, other in enumerate(beside)], round(room.bundles[0][kind]))
    else:
        put(ranks, [f"learner rank {i}" for i in range(cfg.actor.world_size if learner else 0)], 1)
    lines = [f"plan: {node}: {_counted(placed[node.address], kind) or 'nothing of this run'}" for node in there]
    if missing:
        free = ", ".join(f"{address} has {n} left" for address, n in left.items())
        lines.append(
            f"plan: does not fit yet: {_counted(missing, kind)} have no room ({free}). The run waits for more"
            " (timeouts.placement_s); or lower vllm.num_engines, vllm.tensor_parallel_size or actor.num_gpus_per_node."
        )
    return lines


def _counted(processes: Counter[str], kind: str) -> str:
    return ", ".join(name if n == 1 else f"{name} ({n} {kind}s)" for name, n in processes.items())
