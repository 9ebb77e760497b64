"""The connection to Ray: join the cluster that this job was submitted to, or start one here. Resources and
environment of our actors."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial

import psutil
import ray
from ray._private import parameter, services, utils
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from ..config import Config
from ..config.forwarded import forwarded
from ..config.paths import shorten
from ..config.secrets import ENV_TOKEN
from ..errors import ClusterFull, ConfigError, DeadlineMissed, Unavailable
from ..machine.gpus import CPU_ONLY, gpu_count, visible_gpus
from ..machine.host_allocator import ONE_ARENA
from ..machine.replaced import replaced
from ..waiting.backoff import until_available
from ..waiting.deadlines import Deadline, within
from .nodes import Room, has_gpus, nodes
from .own_sessions import own_sessions
from .ray_address import check_ray_address
from .signals import StopSignals, kill

log = logging.getLogger(__name__)
LOCAL_OBJECT_STORE = 512 << 20
"""Bytes of the object store of a Ray that is started here without GPUs."""
SHORT_TEMP_DIR = "/tmp"
LONGEST_TEMP_DIR = 107 - len("/session_2026-11-30_17-00-00_000000_4194304/sockets/plasma_store")
"""Bytes of the longest directory for Ray's files: the path of a Unix socket has at most 107."""
START_ATTEMPTS = 3
"""How often Ray's daemons are started if they do not come up in time."""
MAX_REASON = 300
"""Characters of Ray's own message that are repeated."""
JOIN_REMEDY = (
    "Run this on a node of the cluster, or by train_scripts/submit_ray_job.sh, with the same Ray and Python; or unset"
    " RAY_ADDRESS to start a Ray on this machine alone"
)
PLACEMENT = Deadline(60.0, "ray_session.PLACEMENT")
"""How long an actor or the learner ranks wait for room: a job that just ended gives it back within this. A start that
is to wait longer has train.start_wait_s; engines and ranks that restart are placed again and again."""
START_TIMED_OUT = "timed out during startup"
"""Text in Ray's error when its daemons did not come up in time."""


@contextmanager
def ray_session(cfg: Config, signals: StopSignals | None = None) -> Iterator[None]:
    """Connect to Ray for the time of the block.

    Inside `ray job submit` or after `ray start` (RAY_ADDRESS is set) that is the given cluster, otherwise a Ray that is
    started here. A local Ray gets as many logical CPUs as our actors need: on two cores they share them.

    Args:
        cfg: The run's configuration.
        signals: Signals that raise Stopped while Ray starts, and afterwards reach the processes of a Ray that we
            started.
    """
    # This will be Ray's default. Ray warns if neither value is chosen.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray's own handler of SIGTERM would end the process with exit code 15.
    without_handler = replaced(utils, "set_sigterm_handler", lambda handler: None)
    with without_handler, signals.blocking() if signals else nullcontext():
        if os.environ.get("RAY_ADDRESS"):
            until_available(check_ray_address, cfg.train.start_wait_s)
            _join(cfg)
        else:
            _start_local(cfg)
    has_gpus.cache_clear()
    try:
        if signals:
            signals.install()  # ray.init has replaced the handlers
            signals.marker = None if os.environ.get("RAY_ADDRESS") else session_directory()
        yield
    finally:
        ray.shutdown()
        has_gpus.cache_clear()


def session_directory() -> str:
    """Return the directory of the session of Ray, which the command lines of its processes name."""
    return ray._private.worker.global_worker.node.get_session_dir_path()


def _join(cfg: Config) -> None:
    """Connect to the cluster at RAY_ADDRESS, where something answers.

    Raises:
        ConfigError: This Ray or Python has another version than the cluster's.
        Unavailable: The cluster does not accept this machine as one of its nodes, or its head is going down.
    """
    address = os.environ["RAY_ADDRESS"]
    try:
        ray.init(log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError, RayError) as error:
        ray.shutdown()
        reason = shorten(" ".join(str(error).split()), MAX_REASON)
        kind = ConfigError if "ersion mismatch" in reason else Unavailable
        raise kind(
            f"The Ray cluster at RAY_ADDRESS = {address!r} cannot be joined: {reason.rstrip('.')}. {JOIN_REMEDY}."
        ) from None


def _start_local(cfg: Config) -> None:
    """Start a Ray on this machine.

    Ray gives its daemons 30 s to come up, which a busy machine can miss, so it is started up to START_ATTEMPTS times.

    Raises:
        Unavailable: The daemons did not come up in any attempt.
    """
    actors = cfg.vllm.num_engines * cfg.vllm.world_size + cfg.actor.world_size + cfg.reward.replicas + 2
    before = set(psutil.Process().children(recursive=True))
    # Ray would start a worker for each CPU now, a CPU second each, and none of them fits our actors, which have
    # environment variables of their own.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    for _ in range(START_ATTEMPTS):
        try:
            with own_sessions(), _few_daemons():
                ray.init(
                    address="local",  # never a cluster that another user runs on this machine
                    num_cpus=max(actors, os.cpu_count() or 1),
                    num_gpus=None if visible_gpus(on_node=1) else 0,  # Ray takes CUDA_VISIBLE_DEVICES=-1 for a GPU
                    include_dashboard=False,
                    log_to_driver=False,
                    object_store_memory=LOCAL_OBJECT_STORE if not gpu_count() else None,
                    logging_level="warning",
                    _temp_dir=temp_dir(),
                )
            return
        except BaseException as error:  # Ray raises nothing narrower than Exception; a signal may also raise.
            ray.shutdown()
            _end_all_but(before)
            if START_TIMED_OUT not in str(error):
                raise
    raise Unavailable(
        f"Ray's daemons did not come up on this machine, {START_ATTEMPTS} times in a row (it gives them 30 s). The"
        f" machine is very busy, or they end at once: their logs are in {os.environ.get('TMPDIR', '/tmp')}/ray, or in"
        " /tmp/ray. Try again when it is less busy, or start Ray yourself (ray start --head) and set RAY_ADDRESS=auto."
    )


def temp_dir(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the directory for the files of a Ray that is started here; None for the one that Ray takes by itself.

    That one is in TMPDIR, which on a cluster may be too long for the paths of Ray's sockets.
    """
    taken = environ.get("RAY_TMPDIR") or environ.get("TMPDIR") or SHORT_TEMP_DIR
    if len(os.fsencode(os.path.join(taken, "ray"))) <= LONGEST_TEMP_DIR:
        return None
    log.warning("%s is too long a path for Ray's sockets: Ray's files are in %s/ray.", taken, SHORT_TEMP_DIR)
    return f"{SHORT_TEMP_DIR}/ray"


def _end_all_but(before: set[psutil.Process]) -> None:
    """Ray forgets the daemons of a start that timed out; they would live as long as we do, and take the next try its
    share of the machine.

    Args:
        before: The children of this process before the start. They and what they have started since are left alone.
    """
    daemons = {
        daemon
        for child in set(psutil.Process().children()) - before
        for daemon in (child, *child.children(recursive=True))
    }
    kill(daemons)


@contextmanager
def _few_daemons() -> Iterator[None]:
    """Let Ray start no daemon that has nothing to do here, and its dashboard agent listen anywhere.

    The autoscaler's monitor has no nodes to add, nobody reads what the log monitor publishes (log_to_driver=False), and
    the dashboard's server, which starts even with include_dashboard=False, would only report statistics of use; each
    takes two or three CPU seconds to start. By default the agent wants one port, for which a second Ray on a machine
    waits more than three seconds before its start goes on.
    """
    few = partial(parameter.RayParams, dashboard_agent_listen_port=0, no_monitor=True, include_log_monitor=False)
    no_server = replaced(services, "start_api_server", lambda *_, **__: (None, None))  # as where it fails to start
    with replaced(parameter, "RayParams", few), no_server:
        yield


async def place(room: Room, what: str, cfg: Config) -> PlacementGroup:
    """Reserve resources and print on which nodes they are.

    If this fails or is cancelled, nothing stays reserved.

    Args:
        room: The resources.
        what: What they are for, for messages.
        cfg: The run's configuration.

    Raises:
        ClusterFull: The cluster did not have them free within PLACEMENT and train.start_wait_s.
    """
    group = placement_group(room.bundles, strategy=room.strategy)
    try:
        patience = PLACEMENT + Deadline.of(cfg, "train.start_wait_s")
        await within(patience, group.ready(), f"The reservation for {what}")
    except DeadlineMissed:
        remove_placement_group(group)
        free = _cpus_and_gpus(ray.available_resources())
        total = _cpus_and_gpus(ray.cluster_resources())
        raise ClusterFull(
            f"The Ray cluster has no room for {what}: it needs {room.bundles} ({room.strategy}), and {free} of {total}"
            f" is free on {', '.join(map(str, nodes()))}. Start Ray with more (ray start --num-cpus), or ask for fewer"
            " engines or ranks (vllm.num_engines, actor.num_gpus_per_node)."
        ) from None
    except BaseException:
        remove_placement_group(group)
        raise
    print(f"placed: {what}: {where(group, room.each)}", flush=True)
    return group


def _cpus_and_gpus(resources: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in resources.items() if name in ("CPU", "GPU")}


def where(group: PlacementGroup, each: int = 1) -> str:
    """Return the addresses of a reservation's nodes, with the number of processes if there are several, `each` per
    bundle."""
    by_id = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    bundles_by_node = Counter(
        by_id.get(node, node) for node in placement_group_table(group)["bundles_to_node_id"].values()
    )
    if len(bundles_by_node) == 1 and bundles_by_node.total() * each == 1:
        return next(iter(bundles_by_node))
    return ", ".join(f"{address} x {bundles * each}" for address, bundles in bundles_by_node.items())


def by_node(group: PlacementGroup) -> list[int]:
    """Return the bundles of a reservation, grouped by node: neighbouring ranks communicate most."""
    node_of = placement_group_table(group)["bundles_to_node_id"]
    first = {node: min(bundle for bundle in node_of if node_of[bundle] == node) for node in node_of.values()}
    return sorted(node_of, key=lambda bundle: (first[node_of[bundle]], bundle))


def worker_env(cfg: Config) -> dict[str, str]:
    """Return the environment variables of every actor.

    They are what the driver was given for NCCL, vLLM, CUDA and the like (`config.forwarded`), and our own. Each actor
    gets one thread: more threads on shared cores slow everything down by orders of magnitude.
    """
    env = forwarded() | {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "PYTHONUNBUFFERED": "1",
        # Some images set it, and then every process compiles torch and vLLM anew. Empty means not set.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    for secret in (ENV_TOKEN, "WANDB_API_KEY"):
        if secret in os.environ:
            env[secret] = os.environ[secret]
    if not has_gpus():
        env |= CPU_ONLY | {name: os.environ.get(name, value) for name, value in ONE_ARENA.items()}
    return env
