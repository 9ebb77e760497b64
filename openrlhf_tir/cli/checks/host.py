"""Checks of what this machine must have for a configuration, none of which loads anything heavy. preflight.py calls
them.

They cover GPUs and attention kernels, memory, room for weight pushes, the ports of the endpoints, and loggers.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from ...cluster.process_watch import node_memory
from ...config import Config
from ...config.ranks import runs_here
from ...config.secrets import ENV_TOKEN, ROLLOUT_TOKEN
from ...config.sections.colocation import NO_SLEEP_ON_CPU, STAND_IN
from ...config.sections.pipeline import ALONE
from ...errors import ConfigError, Unavailable, unknown
from ...learner.attention.choice import attention_implementation
from ...learner.compile_environment import unreadable_architectures
from ...machine.cards import Cards, cards
from ...machine.cores import computes_bf16, usable_cores
from ...machine.gpus import gpu_memory, usable_gpus
from ...machine.sizes import free_above, size
from ...memory.host_plan import KEPT_FREE, REMEDY, host_plan, usable
from ...memory.memory_plan import memory_plan
from ...memory.model_size import push_bytes
from ...memory.threads import compute_threads
from .isolation import isolation_fault

LEAST_DEEPSPEED = (0, 19, 8)
"""On CPUs 0.19.6, which openrlhf's package asks for, waits for the last of several gathers only: with two ranks weights
were wrong in 3 of 6 loads, and nothing said so."""
GPUS_OF_A_NODE = 8
"""GPUs that a node usually has, where this machine has none and cannot tell."""


def deepspeed_version() -> tuple[int, ...] | None:
    """Return the numbers of the installed version; None if there is none."""
    try:
        return tuple(map(int, re.findall(r"\d+", metadata.version("deepspeed"))))
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True)
class Machine:
    """What the checks need to know about this machine. Tests pass their own.

    Attributes:
        gpus: Number of GPUs that a run on it may use.
        cpus: Number of cores that this process may use.
        bf16: False if they are known to lack fast instructions for bf16.
        shm_free: Free bytes in /dev/shm.
        memory: Bytes in use and in total.
        gpu_bytes: Memory of the smallest GPU; None if there is none, or it does not answer.
        cards: What the driver says about the GPUs.
        deepspeed: Version of DeepSpeed; None if it is not installed.
        has_module: Returns True if a Python module is installed.
        isolation_fault: Returns why code cannot be confined here, or None.
    """

    gpus: int = field(default_factory=usable_gpus)
    cpus: int = field(default_factory=usable_cores)
    bf16: bool = field(default_factory=computes_bf16)
    shm_free: int = field(
        default_factory=lambda: shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    )
    memory: tuple[int, int] = field(default_factory=node_memory)
    gpu_bytes: int | None = field(default_factory=gpu_memory)
    cards: Cards = field(default_factory=cards)
    deepspeed: tuple[int, ...] | None = field(default_factory=deepspeed_version)
    has_module: Callable[[str], bool] = lambda name: find_spec(name) is not None
    isolation_fault: Callable[[], str | None] = isolation_fault


def gpus_needed(cfg: Config, *, learner: bool) -> int:
    """Return the GPUs that the processes of a command need. Engines beside learner ranks are on the GPUs of the ranks.

    Args:
        cfg: The configuration.
        learner: False for a command that trains nothing, which has engines and reward models alone.
    """
    ranks = cfg.actor.world_size if learner else 0
    engines = 0 if learner and cfg.engines_beside_ranks else cfg.vllm.num_engines * cfg.vllm.world_size
    return ranks + engines + cfg.reward.replicas


def engines_elsewhere(cfg: Config, machine: Machine, *, learner: bool = True) -> str | None:
    """Return why engines will be on other nodes than this one, as far as configuration and machine tell; None if they
    may all be here.

    Ray is not asked: it is not running yet. Whether nodes of a run without GPUs share its engines is seen when it is
    (`cluster/services.py`).

    Args:
        cfg: The configuration.
        machine: The machine.
        learner: As for `gpus_needed`.
    """
    if runs_here(cfg) or not ("flash_attention" in cfg.ds.attn_implementation or cfg.engines_beside_ranks):
        return None
    needed = gpus_needed(cfg, learner=learner)
    here = machine.gpus or GPUS_OF_A_NODE
    if needed > here:
        whose = "this machine has" if machine.gpus else "a node usually has"
        return f"the run needs {needed} GPUs, and {whose} {here}"
    return None


def check_backend(cfg: Config, machine: Machine) -> None:
    """Check that weights are not pushed by NCCL or CUDA IPC between CPUs.

    Raises:
        ConfigError: They are.
    """
    if cfg.vllm.sync_backend in ("nccl", "ipc") and machine.gpus == 0 and runs_here(cfg):
        raise ConfigError(
            f"vllm.sync_backend = {cfg.vllm.sync_backend!r} needs GPUs, and this machine has none. Use 'file' or"
            " 'auto'; 'gloo' does on CPUs what 'nccl' does on GPUs."
        )


def check_deepspeed(cfg: Config, machine: Machine) -> None:
    """Check that the installed DeepSpeed gathers weights rightly on this machine.

    Raises:
        ConfigError: It does not.
    """
    if machine.gpus or not runs_here(cfg) or cfg.actor.world_size == 1 or machine.deepspeed is None:
        return
    if machine.deepspeed < LEAST_DEEPSPEED:
        raise ConfigError(
            f"DeepSpeed {'.'.join(map(str, machine.deepspeed))} corrupts weights on CPUs with several learner ranks."
            f" Install {'.'.join(map(str, LEAST_DEEPSPEED))} (train_scripts/setup_env.sh), or set"
            " actor.num_gpus_per_node to 1."
        )


ATTENTION = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")
"""Attention implementations that transformers knows by name."""


def slow_precision(cfg: Config, machine: Machine) -> str | None:
    """Return a fact if the run computes in bf16 on CPU cores that are slow at it; None if it does not."""
    if cfg.ds.param_dtype != "bf16" or machine.bf16 or machine.gpus or not runs_here(cfg):
        return None
    return (
        "ds.param_dtype = bf16 is slow on this CPU, which has no instructions for it (AVX-512, or bf16 on Arm): a"
        " product of matrices takes some six times as long as in fp32"
    )


def check_attention(cfg: Config, machine: Machine, cpu_recipe: str = "quickstart_cpu") -> list[str]:
    """Check the attention kernel, and return a fact if another one takes its place.

    Args:
        cfg: The configuration.
        machine: The machine.
        cpu_recipe: The recipe to start from on a machine without GPUs.

    Raises:
        ConfigError: There is no such kernel, or it does not run here.
    """
    name = cfg.ds.attn_implementation
    if "/" not in name and name not in ATTENTION:  # A name with a slash is a kernel on the hub.
        raise unknown("ds.attn_implementation", name, ATTENTION, "Use one of them: sdpa or eager on CPU.")
    is_flash = "flash_attention" in name
    if is_flash and machine.gpus == 0 and runs_here(cfg):
        packing = " and ds.packing_samples to false" if cfg.ds.packing_samples else ""
        raise ConfigError(
            f"This is a GPU recipe on a CPU machine: ds.attn_implementation = {name!r} needs a GPU, and this machine"
            f" has none. Run it where GPUs are, start from --recipe {cpu_recipe}, or set it to 'sdpa' or"
            f" 'eager'{packing}."
        )
    if cfg.ds.packing_samples and not is_flash and name != "sdpa":
        raise ConfigError(
            f"ds.packing_samples needs flash attention or sdpa; with {name!r} a packed row costs the square of its"
            " length. Set ds.attn_implementation to sdpa, or turn packing off."
        )
    if machine.gpus and attention_implementation(name, machine.has_module) != name:
        return [
            f"ds.attn_implementation = {name!r}: the package flash-attn is not installed, so torch's own flash kernels"
            " are used (setup_env.sh --gpu --with-flash-attn builds it, for hours)"
        ]
    return []


def check_gpus(cfg: Config, machine: Machine, *, learner: bool = True) -> list[str]:
    """Check that this machine has the GPUs that a run on it needs, and return facts.

    Args:
        cfg: The configuration.
        machine: The machine.
        learner: As for `gpus_needed`.

    Raises:
        ConfigError: It has fewer.
    """
    needed = gpus_needed(cfg, learner=learner)
    if machine.gpus and runs_here(cfg) and needed > machine.gpus:
        raise _too_few_gpus(cfg, needed, machine.gpus, learner=learner)
    ranks = f"{cfg.actor.world_size} learner rank{'s' * (cfg.actor.world_size > 1)}"
    return [f"{machine.gpus} GPUs, {machine.cpus} CPUs", ranks]


def _too_few_gpus(cfg: Config, needed: int, gpus: int, *, learner: bool) -> ConfigError:
    """Return an error that names each kind of process that needs GPUs, and the settings of their number."""
    processes = []
    settings = []
    if learner:
        processes.append(f"{cfg.actor.world_size} learner ranks")
        settings.append("actor.num_gpus_per_node")
    if cfg.reward.replicas:
        processes.append(f"{cfg.reward.replicas} reward models")
        settings.append("reward.model_replicas")
    if cfg.vllm.num_engines:
        beside_ranks = learner and cfg.engines_beside_ranks
        on = "on the same GPUs" if beside_ranks else f"x {cfg.vllm.world_size} GPUs"
        processes.append(f"{cfg.vllm.num_engines} engines {on}")
        settings += ["vllm.num_engines", "vllm.tensor_parallel_size"]
    fits_if_shared = (
        learner
        and not cfg.engines_beside_ranks
        and cfg.actor.world_size + cfg.reward.replicas <= gpus
        and cfg.vllm.num_engines <= cfg.actor.world_size
        and cfg.vllm.world_size == 1
        and cfg.vllm.sync_backend != "nccl"
    )
    listed = " (CUDA_VISIBLE_DEVICES)" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
    sharing = (
        ", or put each engine on the GPU of a rank: train.share_gpus = true with vllm.kv_cache_mib (16384 on a card"
        " of 80 GiB; openrlhf-tir size says what fits)"
    )
    return ConfigError(
        f"{', '.join(processes)} need {needed} GPUs, this machine has {gpus}{listed}. Lower {' or '.join(settings)}"
        f"{sharing if fits_if_shared else ''}."
    )


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
    if machine.cards.without_peer_access and cfg.actor.world_size + cfg.vllm.num_engines * cfg.vllm.world_size > 1:
        pairs = ", ".join(f"{a} and {b}" for a, b in machine.cards.without_peer_access[:4])
        more = ", ..." if len(machine.cards.without_peer_access) > 4 else ""
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
    """Check what train.colocate_all needs of this machine, and return what it takes of a GPU's memory.

    Raises:
        ConfigError: There is no GPU to share.
    """
    if not cfg.train.colocate_all:
        return []
    if machine.gpus == 0 and runs_here(cfg) and cfg.rollout.engine != STAND_IN:
        raise ConfigError(f"train.colocate_all needs GPUs, and this machine has none. {NO_SLEEP_ON_CPU}")
    shared = (
        f"each of {cfg.actor.world_size} learner ranks, {cfg.vllm.num_engines} of them with an engine, which take turns"
    )
    facts = [f"train.colocate_all: a GPU for {shared}. It has never run on GPUs: watch the first steps"]
    if cfg.actor.num_gpus_per_node and (plan := memory_plan(cfg, 0)):
        facts.append(
            f"train.colocate_all: while engines sample a rank keeps {size(plan.kept)} of its GPU:"
            f" vllm.gpu_memory_utilization = {cfg.vllm.gpu_memory_utilization:g} must leave as much. While it trains it"
            f" needs {size(plan.learner_gpu)}, and the engine keeps about {size(plan.asleep)} (openrlhf-tir size"
            " --gpu-gib says whether they fit)"
        )
    if machine.gpus and not cfg.ds.adam_offload and not shutil.which("nvcc"):
        facts.append(
            "train.colocate_all: DeepSpeed moves its own FusedAdam, which it compiles at the first start with the nvcc"
            " of a CUDA of torch's major version (13); there is none in PATH"
        )
    return facts


def check_push_room(cfg: Config, machine: Machine) -> list[str]:
    """Return a fact if /dev/shm has no room for a file push: the weights that are served and those that arrive.

    Raises:
        Unavailable: The run's disk, which takes its place, has no room for the first push either.
    """
    if cfg.push_backend not in ("file", "ipc"):  # ipc falls back to files
        return []
    weights_bytes = push_bytes(cfg)
    if weights_bytes is None:
        name = cfg.actor.model_name_or_path
        return [
            f"weight pushes go through {cfg.run_dir}: their size is not known, because neither files nor config.json of"
            f" {name} can be read here"
        ]
    needed_bytes = 2 * weights_bytes
    if needed_bytes <= machine.shm_free:
        return []
    free = free_above(cfg.run_dir)
    if 0 < free < weights_bytes:  # 0: some file systems do not tell
        raise Unavailable(
            f"A weight push takes {size(weights_bytes)}: /dev/shm has {size(machine.shm_free)} free, the disk of"
            f" {cfg.run_dir} {size(free)}. Make room in one of them (docker run --shm-size; twice as much for two"
            " files), choose another --run-dir, or set vllm.sync_backend = 'gloo', which needs no file."
        )
    return [
        f"weight pushes go through {cfg.run_dir}: they need {size(needed_bytes)}, /dev/shm has {size(machine.shm_free)}"
        " free "
        "(docker run --shm-size makes it bigger, and pushes faster)"
    ]


def check_memory(cfg: Config, machine: Machine, *, learner: bool = True) -> list[str]:
    """Check that host memory and GPUs hold what the run plans for, and return facts.

    If other processes use the memory now, that is a fact and no error.

    Args:
        cfg: The configuration.
        machine: The machine.
        learner: Whether the run has a learner; without one only its engines count.

    Raises:
        ConfigError: The machine is too small.
    """
    if not runs_here(cfg) or (plan := host_plan(cfg, gpus=machine.gpus > 0, shm_free=machine.shm_free)) is None:
        return []
    if not learner:
        plan = replace(plan, ranks=0, last_push=0, pushes=0)
    used, total = machine.memory
    faults = plan.faults(total)
    if machine.gpu_bytes and learner and (gpu_plan := memory_plan(cfg, machine.gpu_bytes)):
        faults += [f"on a GPU, {fault}" for fault in gpu_plan.faults(machine.gpu_bytes)]
    if faults:
        raise ConfigError(
            f"This machine is too small for the run: {' '.join(faults)} `openrlhf-tir size` lists each part."
        )
    facts = [f"planned {plan.needs}; {size(total - used)} of {size(total)} are free"]
    if used + plan.total > usable(total):
        facts.append(
            f"memory: others hold {size(used)} of this machine's {size(total)} now; with what the run needs that is"
            f" more than the {1 - KEPT_FREE:.0%} above which Ray ends processes. End them, or: {REMEDY}"
        )
    processes = plan.ranks + plan.engines * cfg.vllm.world_size + plan.rewards
    if machine.gpus == 0 and processes > machine.cpus:
        kinds = "learner ranks, engines and reward models" if plan.rewards else "learner ranks and engines"
        facts.append(f"{processes} {kinds} share {machine.cpus} cores")
    if machine.gpus == 0:
        facts += _threads(cfg, machine.cpus, learner=learner)
    return facts


def _threads(cfg: Config, cores: int, *, learner: bool) -> list[str]:
    threads = compute_threads(cfg if learner else cfg.model_copy(update={"pipeline": ALONE}), cores)
    processes = {"learner rank": threads.learner, "engine": threads.engine} if learner else {"engine": threads.engine}
    if max(processes.values()) == 1:
        return []
    return [f"threads: {', '.join(f'{number} of each {process}' for process, number in processes.items())}"]


def check_loggers(cfg: Config, machine: Machine) -> None:
    """Check that the packages of the configured loggers are installed, and that wandb has its key.

    Raises:
        ConfigError: They are not, or it has not.
    """
    key = cfg.logger.wandb.key
    if key and not machine.has_module("wandb"):
        raise ConfigError("logger.wandb.key is set, but wandb is not installed. pip install wandb, or leave it unset.")
    offline = key == "offline" or os.environ.get("WANDB_MODE") in ("offline", "disabled")
    if key == "env" and not offline and not os.environ.get("WANDB_API_KEY"):
        raise ConfigError(
            "logger.wandb.key = 'env', but WANDB_API_KEY is not set. Export it, leave logger.wandb.key unset, or set"
            " it to 'offline', which needs no key."
        )
    if cfg.logger.tensorboard_dir and not machine.has_module("tensorboard"):
        raise ConfigError(
            "logger.tensorboard_dir is set, but tensorboard is not installed."
            " pip install tensorboard, or --logger.tensorboard_dir unset."
        )


def check_ports(cfg: Config) -> None:
    """Check that rollout.port and the ports after it, one per actor, are free.

    On a cluster the actors may be on other nodes, so only the number of ports is checked.

    Raises:
        ConfigError: The ports cannot be used.
        Unavailable: A port is in use, maybe only for now.
    """
    first, count = cfg.rollout.port, cfg.vllm.num_engines
    if first == 0:
        return
    if first + count - 1 > 65535:
        raise ConfigError(
            f"rollout.port = {first} with {count} actors ends at port {first + count - 1};"
            " the last there is is 65535. Lower it, or set 0."
        )
    if not runs_here(cfg):
        return
    # With a token the endpoints also serve other machines.
    host = "0.0.0.0" if any(map(os.environ.get, (ROLLOUT_TOKEN, ENV_TOKEN))) else "127.0.0.1"
    for port in range(first, first + count):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            # The server sets this too, so that a port that a run has just left is free.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, port))
                listener.listen(1)
            except OSError as error:
                actor_note = "" if port == first else f" (actor {port - first} takes port {port})"
                # A port in use may be held by the run of which this one is the restart.
                error_type = Unavailable if error.errno == errno.EADDRINUSE else ConfigError
                raise error_type(
                    f"rollout.port = {first}{actor_note} cannot be used: {error.strerror}. Choose a free one, or 0 for"
                    " any."
                ) from None
