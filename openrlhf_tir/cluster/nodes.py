"""The nodes of the cluster, and the resources that each process of a run takes.

Ray is asked, never this machine: the driver's may have no GPU.

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

NEED_GPUS = {"nccl": "'gloo', which is the same on CPUs, or 'file'", "ipc": "'file' or 'auto'"}
"""Value of vllm.sync_backend -> what to use in its place without GPUs."""


class Node(NamedTuple):
    """A node with the CPUs and GPUs that it was started with."""

    address: str
    cpus: int
    gpus: int

    def __str__(self) -> str:
        return f"{self.address} ({self.cpus} CPUs, {self.gpus} GPUs)"


def nodes() -> list[Node]:
    """Return the nodes that are alive, whoever uses their resources now."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    return [
        Node(node["NodeManagerAddress"], int(node["Resources"].get("CPU", 0)), int(node["Resources"].get("GPU", 0)))
        for node in alive
    ]


def hosts() -> list[Node]:
    """Return the nodes on which an engine or a learner rank can be placed: those with GPUs, if there are any.

    A head without GPUs and a node that is gone are left out.
    """
    return [node for node in nodes() if node.gpus or not has_gpus()]


def only_here() -> bool:
    """Return True if every engine and learner rank is on the controller's own node now.

    Then they share its memory (/dev/shm) and its loopback. That is not so for one node with GPUs beside a head without:
    what the controller reads or serves is on the head.
    """
    own_id = ray.get_runtime_context().get_node_id()
    own_addresses = {node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == own_id}
    return {node.address for node in hosts()} <= own_addresses


@functools.cache
def has_gpus() -> bool:
    """Return True if the run uses GPUs: if the cluster had any when this was first called in this session of Ray.

    The answer is kept (`ray_session` resets it): an engine that is replaced while the nodes with GPUs are lost waits
    for them, and does not start on CPUs.
    """
    return any(node.gpus for node in nodes())


async def wait_for_gpus(cfg: Config) -> None:
    """Wait until the cluster has GPUs, for a recipe that needs them.

    A first start does not wait; a restart by the launcher waits for train.start_wait_s.

    Raises:
        ClusterFull: There are none. The nodes with GPUs may still come.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + cfg.train.start_wait_s
    tries = 0
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
    """Return a remark on vllm.sync_backend for the nodes of this cluster, or None.

    Raises:
        ConfigError: It cannot work there.
    """
    backend = cfg.vllm.sync_backend
    if backend in NEED_GPUS and not has_gpus():
        raise ConfigError(
            f"vllm.sync_backend = {backend!r} needs GPUs, and Ray knows of none: {', '.join(map(str, nodes()))}."
            f" Use {NEED_GPUS[backend]}."
        )
    if backend == "nccl":
        return (
            "vllm.sync_backend = nccl has not run on GPUs yet. Every push is proved by digest and canary, as always."
            " If it fails, use 'file'."
        )
    if backend == "gloo" and has_gpus():
        return (
            "vllm.sync_backend = gloo sends the weights through the hosts' memory, which is slow between GPUs."
            " 'delta' sends less."
        )
    return None


class Room(NamedTuple):
    """The resources that an actor reserves, and those that it uses itself.

    Attributes:
        bundles: Resources of each bundle of the reservation.
        strategy: Ray's placement strategy.
        num_cpus: CPUs of the actor itself.
        num_gpus: GPUs of the actor itself.
        workers_by_ray: Whether vLLM starts a Ray actor in each bundle; the actor itself then takes no GPU.
        each: Processes in a bundle.
    """

    bundles: list[dict[str, float]]
    strategy: str
    num_cpus: float
    num_gpus: float
    workers_by_ray: bool
    each: int = 1


SHARE = 0.5
"""The share of a GPU that Ray reserves for a learner rank or an engine if they share it (train.colocate_all,
train.share_gpus). Ray does not watch memory."""


def shared_room(cfg: Config) -> Room:
    """Return a bundle for each learner rank, with a GPU if there are any. An engine takes the other half of the GPU."""
    gpu = float(has_gpus())
    bundle = {"CPU": 2.0, "GPU": 1.0} if gpu else {"CPU": 2.0}
    return Room([bundle] * cfg.actor.world_size, "PACK", 1.0, SHARE * gpu, False)


def engine_room(cfg: Config) -> Room:
    """Return the room of an engine: one bundle whose GPUs are the actor's own, so that vLLM's worker processes see
    them.

    An engine for which no node has enough GPUs gets one bundle per GPU, on as few nodes as possible.
    """
    gpus = float(cfg.vllm.world_size)
    if not has_gpus():
        return Room([{"CPU": gpus}], "STRICT_PACK", gpus, 0.0, False)
    if gpus <= max(node.gpus for node in nodes()) or cfg.vllm.world_size == 1:
        return Room([{"CPU": 1.0, "GPU": gpus}], "STRICT_PACK", 1.0, gpus, False)
    return Room([{"CPU": 1.0, "GPU": 1.0}] * cfg.vllm.world_size, "PACK", 1.0, 0.0, True)


def single_room(count: int) -> Room:
    """Return the room of `count` processes (learner ranks, reward models), with a GPU each if there are any."""
    gpus = float(has_gpus())
    bundle = {"CPU": 1.0, "GPU": 1.0} if gpus else {"CPU": 1.0}
    return Room([bundle] * count, "PACK", 1.0, gpus, False)


def learner_room(cfg: Config) -> Room:
    """Return the room of the learner ranks: the same number on each of actor.num_nodes.

    If no node has room for that number, Ray places the ranks wherever there is room.
    """
    per_node = max(1, cfg.actor.num_gpus_per_node)
    largest = max((node.gpus if has_gpus() else node.cpus for node in nodes()), default=0)
    return _on_nodes(cfg.actor.num_nodes, per_node) if per_node <= largest else single_room(cfg.actor.world_size)


def reward_room(cfg: Config) -> Room:
    """Return the room of the reward models: the same number on each of reward.num_nodes."""
    return _on_nodes(cfg.reward.num_nodes, cfg.reward.model_replicas)


def _on_nodes(count: int, per_node: int) -> Room:
    """Return the room of processes with a GPU each if there are any.

    On several nodes each node has one bundle; the bundles are on different nodes as far as possible.
    """
    if count == 1:
        return single_room(per_node)
    single = single_room(1)
    bundle = {kind: amount * per_node for kind, amount in single.bundles[0].items()}
    return single._replace(bundles=[bundle] * count, strategy="SPREAD", each=per_node)


def plan(cfg: Config, cluster: Sequence[Node], *, learner: bool = True) -> list[str]:
    """Return lines for the start of the run: the nodes, and where each process can go; and what does not fit."""
    placed, missing = placement(cfg, cluster, learner=learner)
    kind = "GPU" if has_gpus() else "CPU"
    lines = [f"plan: {node}: {_counted(placed[node.address], kind) or 'nothing of this run'}" for node in cluster]
    if missing:
        free = ", ".join(f"{node.address} has {_free(node) - placed[node.address].total()} left" for node in cluster)
        lines.append(
            f"plan: does not fit yet: {_counted(missing, kind)} have no room ({free}). The run waits for more,"
            " a minute and train.start_wait_s. Or lower vllm.num_engines, vllm.tensor_parallel_size or"
            " actor.num_gpus_per_node."
        )
    return lines


def placement(
    cfg: Config, cluster: Sequence[Node], *, learner: bool = True
) -> tuple[dict[str, Counter[str]], Counter[str]]:
    """Return which processes go to which address, and those that do not fit; with the GPUs (or CPUs) of each.

    Ray decides in the end, and its decision is printed as well. This plan shows that a placement exists: first the
    engines, each on the node where it leaves the least room, then the processes with one GPU, on nodes that have none
    of them first if several nodes are wanted. What is missing may still come (an autoscaler, a node that restarts).

    Args:
        cfg: The configuration.
        cluster: The nodes.
        learner: Whether the run has a learner.
    """
    engine = engine_room(cfg)
    reward = reward_room(cfg)
    ranks = learner_room(cfg)
    shared = learner and cfg.engines_beside_ranks
    note = "in turns" if cfg.train.colocate_all else "beside it"
    kind = "GPU" if has_gpus() else "CPU"
    left = {node.address: _free(node) for node in cluster}
    placed: dict[str, Counter[str]] = {address: Counter() for address in left}
    missing: Counter[str] = Counter()

    def place(room: Room, names: Sequence[str], size: int) -> None:
        """Place the processes `names`, bundle after bundle. Each takes `size` GPUs (or CPUs)."""
        used: set[str] = set()
        for number in range(0, len(names), room.each):
            bundle_names = dict.fromkeys(names[number : number + room.each], size)
            fitting = [address for address in left if left[address] >= room.each * size]
            if not fitting:
                missing.update(bundle_names)
                continue
            best = min(fitting, key=lambda address: (room.strategy == "SPREAD" and address in used, left[address]))
            used.add(best)
            left[best] -= room.each * size
            placed[best].update(bundle_names)

    for number in range(0 if shared else cfg.vllm.num_engines):
        for bundle in engine.bundles:
            place(engine, [f"engine {number}"], round(bundle[kind]))
    place(
        reward,
        [f"reward model {number}" for number in range(cfg.reward.replicas)],
        1,
    )
    if shared:
        neighbours = [
            f" + engine {number} {note}" if number < cfg.vllm.num_engines else ""
            for number in range(cfg.actor.world_size)
        ]
        room = shared_room(cfg)
        place(
            room,
            [f"learner rank {number}{neighbour}" for number, neighbour in enumerate(neighbours)],
            round(room.bundles[0][kind]),
        )
    else:
        place(ranks, [f"learner rank {number}" for number in range(cfg.actor.world_size if learner else 0)], 1)
    return placed, missing


def _free(node: Node) -> int:
    return node.gpus if has_gpus() else node.cpus


def _counted(processes: Counter[str], kind: str) -> str:
    return ", ".join(name if count == 1 else f"{name} ({count} {kind}s)" for name, count in processes.items())
