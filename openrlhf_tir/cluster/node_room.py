"""Learner ranks are refused on nodes that are too small for them, before any of them loads the model.

A run on this machine alone is judged as a whole before Ray starts (cli/checks/host.py). On a cluster nobody knows
beforehand which nodes the ranks get, so each rank tells what its node has.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import ray

from ..config import Config
from ..errors import ConfigError
from ..machine.gpus import gpu_memory
from ..machine.sizes import size
from ..memory.host_plan import KEPT_FREE, REMEDY, host_plan, usable
from ..memory.memory_plan import memory_plan, wants_liger
from .process_watch import node_memory
from .shared_dir import prove
from .versions import compare


class NodeReport(NamedTuple):
    """What a rank or an engine tells of its node.

    Attributes:
        address: Address of the node.
        time: Its clock, in seconds since the epoch.
        memory: Bytes of host memory, or of the rank's control group if that has less.
        gpu: Bytes of the smallest GPU that the rank can have; None if there is none, or if it is not known.
        has_liger: Whether the package liger-kernel is installed. A controller without GPUs may not have it.
    """

    address: str
    time: float
    memory: int
    gpu: int | None
    has_liger: bool = False


def node_report(who: str, mark: Path, theirs: Mapping[str, str], *, learner: bool) -> NodeReport:
    """Compare this node with the controller's, and return what it is and has.

    Args:
        who: Name of this process, for messages.
        mark: A file that the controller has just written to the run's directory.
        theirs: The controller's packages and versions.
        learner: Whether to ask for what only learner ranks are judged by.

    Raises:
        ConfigError: This node does not see the run's directory, or has other packages.
    """
    address = ray.util.get_node_ip_address()
    compare(theirs, who, address)
    prove(mark, who, address)
    gpu = gpu_memory() if learner else None  # before the clock is read: nvidia-smi may take seconds
    has_liger = learner and find_spec("liger_kernel") is not None
    return NodeReport(address, time.time(), node_memory()[1], gpu, has_liger)


def check_room(cfg: Config, reports: Sequence[NodeReport], *, gpus: bool) -> None:
    """Check that each node holds the learner ranks that were placed on it. What else runs there is not counted.

    Args:
        cfg: The run's configuration.
        reports: What each rank tells of its node, rank 0 first.
        gpus: Whether the ranks have GPUs.

    Raises:
        ConfigError: A node's host memory, or its smallest GPU, is too small.
    """
    faults = []
    host = host_plan(cfg, gpus=gpus)
    if host is None:
        return
    ranks = Counter(report.address for report in reports)
    for report in {report.address: report for report in reports}.values():
        count = ranks[report.address]
        needed = count * (host.rank_bytes + host.checkpoint)
        if report.address == reports[0].address:
            needed += host.last_push
        if needed > usable(report.memory):
            faults.append(
                f"node {report.address} got {count} learner ranks, which need {size(needed)} of host memory, with their"
                f" copies for a checkpoint; of its {size(report.memory)} a run may use {1 - KEPT_FREE:.0%},"
                f" {size(usable(report.memory))}. {REMEDY}"
            )
        if gpus and report.gpu and (gpu := memory_plan(_with_kernels_of(report, cfg), report.gpu)):
            judged = gpu if cfg.engines_beside_ranks else replace(gpu, engine_known=False)  # engines' cards may differ
            faults += [f"on a GPU of node {report.address}, {fault}" for fault in judged.faults(report.gpu)]
    if faults:
        raise ConfigError(
            f"The cluster is too small for the learner: {' '.join(faults)} `openrlhf-tir size` lists each part."
        )


def _with_kernels_of(report: NodeReport, cfg: Config) -> Config:
    """Return the configuration with ds.use_liger_kernel as a node with a GPU takes it."""
    ds = cfg.ds.model_copy(update={"use_liger_kernel": wants_liger(cfg, report.has_liger)})
    return cfg.model_copy(update={"ds": ds})
