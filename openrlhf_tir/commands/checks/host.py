"""Host checks: what this machine must have for a Config, each asked without loading anything heavy. `preflight` calls
them.

GPUs and attention kernels, room for weight pushes, the run's directory, the endpoints' ports, isolation for
model-written code, loggers"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from ...cluster.process_watch import node_memory
from ...config import Config
from ...config.sections.colocation import NO_SLEEP_ON_CPU, STAND_IN
from ...errors import ConfigError, Unavailable, unknown
from ...learner.attention.choice import attention_implementation
from ...learner.compile_environment import unreadable_architectures
from ...machine.cards import Cards, cards
from ...machine.gpus import gpu_count, gpu_memory
from ...machine.namespaces import namespace_remedy
from ...machine.sizes import size
from ...memory.host_plan import REMEDY, host_plan
from ...memory.memory_plan import memory_plan
from ...memory.model_size import push_bytes

KEPT_FREE = 0.05
"""Share of a node's memory that must stay free: Ray's memory monitor ends processes beyond."""
BWRAP_TRIAL_S = 10
"""Deadline of one `bwrap true`, which takes milliseconds; a starved machine may need seconds."""
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_ABI = 6
"""The version of Linux 6.12, the first that also confines signals and abstract sockets
(env_servers/python_tir/isolation/fence.py needs it)."""


def isolation_fault() -> str | None:
    """Why neither bubblewrap nor Landlock can confine code here; None: one can, so far as a second's trial tells."""
    bwrap = shutil.which("bwrap")
    fault = "bubblewrap is not installed"
    if bwrap:
        try:
            trial = subprocess.run(
                [bwrap, "--unshare-user", "--ro-bind", "/", "/", "true"],
                capture_output=True,
                text=True,
                timeout=BWRAP_TRIAL_S,
            )
            if trial.returncode == 0:
                return None
            fault = f"bubblewrap does not work ({(trial.stderr.strip().splitlines() or ['no message'])[-1][:200]})"
        except (OSError, subprocess.TimeoutExpired) as e:
            fault = f"bubblewrap does not work ({e})"
    version = ctypes.CDLL(None).syscall(LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    return None if version >= LANDLOCK_ABI else f"{fault}, and this kernel's Landlock is too old (it needs Linux 6.12)"


@dataclass(frozen=True)
class Machine:
    """What the checks need to know of this machine; tests pass their own."""

    gpus: int = field(default_factory=gpu_count)
    cpus: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    shm_free: int = field(
        default_factory=lambda: shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    )
    memory: tuple[int, int] = field(default_factory=node_memory)
    """Bytes in use and in all."""
    gpu_bytes: int | None = field(default_factory=gpu_memory)
    """Memory of the smallest GPU; None where there is none, or it cannot be asked."""
    cards: Cards = field(default_factory=cards)
    """What the driver says of the GPUs."""
    has_module: Callable[[str], bool] = lambda name: find_spec(name) is not None
    isolation_fault: Callable[[], str | None] = isolation_fault


def runs_here(cfg: Config) -> bool:
    """Whether the run is one of this machine alone. Else the GPUs are those of a cluster, whose head may have none."""
    return cfg.actor.num_nodes == 1 and "RAY_ADDRESS" not in os.environ


def check_backend(cfg: Config, machine: Machine) -> None:
    """Raises ConfigError for pushes by NCCL between CPUs."""
    if cfg.vllm.sync_backend == "nccl" and machine.gpus == 0 and runs_here(cfg):
        raise ConfigError(
            "vllm.sync_backend = 'nccl' needs GPUs, and this machine has none."
            " Use 'gloo', which is the same on CPUs, or 'file'."
        )


ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
"""What transformers knows by name."""


def check_gpus(cfg: Config, machine: Machine) -> list[str]:
    """Attention kernel and GPU count."""
    if "/" not in (name := cfg.ds.attn_implementation) and name not in ATTENTION:  # a kernel of the hub has one
        raise unknown("ds.attn_implementation", name, ATTENTION, "Use one of them: sdpa or eager on CPU.")
    flash = "flash_attention" in cfg.ds.attn_implementation
    here = runs_here(cfg)
    if flash and machine.gpus == 0 and here:
        packing = " and ds.packing_samples to false" if cfg.ds.packing_samples else ""
        raise ConfigError(
            f"This is a GPU recipe on a CPU machine: ds.attn_implementation = {cfg.ds.attn_implementation!r} needs a"
            " GPU, and this machine has none. Run it where GPUs are, start from --recipe quickstart_cpu, or set it to"
            f" 'sdpa' or 'eager'{packing}."
        )
    if cfg.ds.packing_samples and not flash and cfg.ds.attn_implementation != "sdpa":
        raise ConfigError(
            f"ds.packing_samples needs flash attention or sdpa; with {cfg.ds.attn_implementation!r} a packed row costs"
            " the square of its length. Set ds.attn_implementation to sdpa, or turn packing off."
        )
    rewarding = cfg.reward.replicas if cfg.reward.model_name_or_path else 0
    engines = 0 if cfg.engines_beside_ranks else cfg.vllm.num_engines * cfg.vllm.world_size  # else on the learner's
    need = cfg.actor.num_gpus_per_node + engines + rewarding
    if machine.gpus and here and need > machine.gpus:
        raise ConfigError(
            f"{cfg.actor.num_gpus_per_node} learner ranks{f', {rewarding} reward models' * (rewarding > 0)} and"
            f" {cfg.vllm.num_engines}"
            f" engines{' on the same GPUs' if cfg.engines_beside_ranks else f' x {cfg.vllm.world_size} GPUs'} need"
            f" {need} GPUs, this machine has {machine.gpus}. Lower actor.num_gpus_per_node,"
            f" vllm.num_engines{', reward.model_replicas' * (rewarding > 0)} or vllm.tensor_parallel_size."
        )
    ranks = f"{cfg.actor.world_size} learner rank{'s' * (cfg.actor.world_size > 1)}"
    facts = [f"{machine.gpus} GPUs, {machine.cpus} CPUs", ranks]
    if machine.gpus and attention_implementation(name, machine.has_module) != name:
        facts.append(
            f"ds.attn_implementation = {name!r}: the package flash-attn is not installed, so torch's own flash kernels"
            " are used (setup_env.sh --gpu --with-flash-attn builds it, for hours)"
        )
    return facts


def check_cards(cfg: Config, machine: Machine) -> list[str]:
    """Check that the driver runs this torch and that the GPUs reach each other as the run needs it.

    Returns:
        What works with a detour.

    Raises:
        ConfigError: The driver is too old.
    """
    if not machine.gpus or not runs_here(cfg):
        return []
    if (needed := machine.cards.needed_driver) is not None:
        raise ConfigError(
            f"The NVIDIA driver is {machine.cards.driver}, and the installed torch is built with CUDA"
            f" {machine.cards.torch_cuda}, which needs driver {needed} or later. Install a newer driver, or a torch"
            " that is built with an older CUDA."
        )
    facts = []
    if machine.cards.apart and cfg.actor.world_size + cfg.vllm.num_engines * cfg.vllm.world_size > 1:
        pairs = ", ".join(f"{a} and {b}" for a, b in machine.cards.apart[:4])
        more = ", ..." if len(machine.cards.apart) > 4 else ""
        facts.append(
            f"GPUs {pairs}{more} have no peer access: what they exchange goes through host memory. Keep"
            " vllm.tensor_parallel_size = 1 where the model fits, and vllm.sync_backend = 'file'"
            " (CUDA_VISIBLE_DEVICES can choose GPUs that reach each other)"
        )
    compiles = cfg.train.colocate_all or cfg.ds.adam_offload
    given = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if compiles and (unreadable := unreadable_architectures(given)):
        facts.append(
            f"TORCH_CUDA_ARCH_LIST = {given!r}: DeepSpeed's builder cannot read {', '.join(unreadable)}, so the learner"
            " leaves it out; without any other entry it compiles for the GPUs that it finds (set it to e.g. 9.0)"
        )
    return facts


def check_colocation(cfg: Config, machine: Machine) -> list[str]:
    """What train.colocate_all needs of this machine, and what it takes of a GPU's memory. Raises ConfigError where
    there is none to share."""
    if not cfg.train.colocate_all:
        return []
    if machine.gpus == 0 and runs_here(cfg) and cfg.rollout.engine != STAND_IN:
        raise ConfigError(f"train.colocate_all needs GPUs, and this machine has none. {NO_SLEEP_ON_CPU}")
    shared = (
        f"each of {cfg.actor.world_size} learner ranks, {cfg.vllm.num_engines} of them with an engine, which take turns"
    )
    said = [f"train.colocate_all: a GPU for {shared}. It has never been run on GPUs: look at the first steps"]
    if cfg.actor.num_gpus_per_node and (plan := memory_plan(cfg, 0)):
        said.append(
            f"train.colocate_all: while engines sample a rank keeps {size(plan.kept)} of its GPU:"
            f" vllm.gpu_memory_utilization = {cfg.vllm.gpu_memory_utilization:g} must leave as much. While it trains it"
            f" needs {size(plan.learner_gpu)}, and the engine keeps about {size(plan.asleep)} (openrlhf-tir size"
            " --gpu-gib says whether they fit)"
        )
    if machine.gpus and not cfg.ds.adam_offload and not shutil.which("nvcc"):
        said.append(
            "train.colocate_all: DeepSpeed moves its own FusedAdam, which it compiles at the first start with the nvcc"
            " of a CUDA of torch's major version (13); there is none in PATH"
        )
    return said


def check_push_room(cfg: Config, machine: Machine) -> list[str]:
    """A file push holds the weights that are served and the ones that arrive."""
    if cfg.vllm.sync_backend != "file":
        return []
    one = push_bytes(cfg)
    if one is None:
        name = cfg.actor.model_name_or_path
        return [
            f"weight pushes go through {cfg.run_dir}: how much they need is not known, as neither files nor config.json"
            f" of {name} can be read here"
        ]
    need = 2 * one
    if need <= machine.shm_free:
        return []
    return [
        f"weight pushes go through {cfg.run_dir}: they need {size(need)}, /dev/shm has {size(machine.shm_free)} free "
        "(docker run --shm-size makes it bigger, and pushes faster)"
    ]


def check_memory(cfg: Config, machine: Machine, *, learner: bool = True) -> list[str]:
    """Host memory and GPUs hold what the run plans for.

    Raises ConfigError where the machine is too small. Where others have the memory now, that is said.

    Args:
        learner: Whether the run has one; without, only its engines count.
    """
    if not runs_here(cfg) or (plan := host_plan(cfg, gpus=machine.gpus > 0)) is None:
        return []
    if not learner:
        plan = replace(plan, ranks=0)
    used, total = machine.memory
    limit = int(total * (1 - KEPT_FREE))
    faults = plan.faults(limit)
    if machine.gpu_bytes and learner and (on_gpus := memory_plan(cfg, machine.gpu_bytes)):
        faults += [f"on a GPU, {fault}" for fault in on_gpus.faults(machine.gpu_bytes)]
    if faults:
        raise ConfigError(
            f"This machine is too small for the run: {' '.join(faults)} `openrlhf-tir size` lists each part."
        )
    said = [f"planned {plan.needs}; {size(total - used)} of {size(total)} are free"]
    if used + plan.total > limit:
        said.append(
            f"memory: others hold {size(used)} of this machine's {size(total)} now; with what the run needs that is"
            f" more than the {1 - KEPT_FREE:.0%} above which Ray ends processes. End them, or: {REMEDY}"
        )
    processes = plan.ranks + plan.engines
    if machine.gpus == 0 and processes > machine.cpus:
        said.append(f"{processes} learner ranks and engines share {machine.cpus} cores")
    return said


def check_loggers(cfg: Config, machine: Machine) -> None:
    """What the configured loggers import is installed, and wandb has its key."""
    key, mode = cfg.logger.wandb.key, cfg.logger.wandb.mode
    if (key or mode) and not machine.has_module("wandb"):
        raise ConfigError(
            f"logger.wandb.{'key' if key else 'mode'} is set, but wandb is not installed. pip install wandb, or leave"
            " it unset."
        )
    offline = mode == "offline" or os.environ.get("WANDB_MODE") in ("offline", "disabled")
    if key == "env" and not offline and not os.environ.get("WANDB_API_KEY"):
        raise ConfigError(
            "logger.wandb.key = 'env', but WANDB_API_KEY is not set. Export it, leave logger.wandb.key unset, or set"
            " logger.wandb.mode = 'offline', which needs no key."
        )
    if cfg.logger.tensorboard and not machine.has_module("tensorboard"):
        raise ConfigError(
            "logger.tensorboard is on, but tensorboard is not installed."
            " pip install tensorboard, or --no-logger.tensorboard."
        )


def check_writable(cfg: Config) -> None:
    """The directories that the run makes can be made: the first above each that exists is one, and takes files."""
    for setting, path in (
        ("run_dir", cfg.run_dir),
        ("ckpt.path", cfg.run_dir / cfg.ckpt.path),
        ("ckpt.output_dir", cfg.run_dir / cfg.ckpt.output_dir),
        *([("logger.tensorboard_dir", cfg.run_dir / cfg.logger.tensorboard_dir)] if cfg.logger.tensorboard else []),
    ):
        try:
            above = next(p for p in (path, *path.parents) if os.path.lexists(p))
            is_dir = above.is_dir()
            if any(len(os.fsencode(part)) > 255 for part in path.parts):
                raise ConfigError(
                    f"{setting} = {path} has a name of more than 255 bytes, which no file system takes. Shorten it."
                )
        except OSError as e:
            raise ConfigError(f"{setting} = {path} cannot be used: {e.strerror or e}. Choose another.") from None
        if not is_dir:
            raise ConfigError(f"{setting} = {path} cannot be made: {above} is not a directory. Choose another path.")
        try:
            # permission bits say nothing to root, nor of a read-only or full disk
            tempfile.TemporaryFile(dir=above).close()
        except OSError as e:
            raise ConfigError(
                f"{setting} = {path} cannot be written: {above} takes no new files ({e.strerror}). Choose another path."
            ) from None


def check_ports(cfg: Config) -> None:
    """rollout.port and those that follow it, one per actor, are free. On a cluster the actors may be elsewhere: then
    only their number counts."""
    first, count = cfg.rollout.port, cfg.vllm.num_engines
    if first == 0:
        return
    if first + count - 1 > 65535:
        raise ConfigError(
            f"rollout.port = {first} with {count} actors ends at port {first + count - 1};"
            " the last there is is 65535. Lower it, or set 0."
        )
    if "RAY_ADDRESS" in os.environ or cfg.actor.num_nodes > 1:
        return
    # a token: other machines are served
    host = "0.0.0.0" if any(map(os.environ.get, (cfg.rollout.token_env, cfg.env.token_env))) else "127.0.0.1"
    for port in range(first, first + count):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as s:
            # as the server does: a port of the last minute's run is free
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind((host, port))
                s.listen(1)
            except OSError as e:
                what = "" if port == first else f" (actor {port - first} takes port {port})"
                # in use, maybe by the run that this one is the restart of
                kind = Unavailable if e.errno == errno.EADDRINUSE else ConfigError
                raise kind(
                    f"rollout.port = {first}{what} cannot be used: {e.strerror}. Choose a free one, or 0 for any."
                ) from None


def check_isolation(machine: Machine, server: str) -> None:
    """The `server` of ours that runs model-written code can confine it here."""
    if fault := machine.isolation_fault():
        raise ConfigError(
            f"The {server} server that the run would start cannot confine model-written code here: {fault}. Install"
            f" bubblewrap (apt-get install bubblewrap). {namespace_remedy()}; or point env.url at a server on another"
            " machine."
        )
