"""The learner ranks, one Ray actor each, as one Learner for the pipeline. Every call goes to all ranks at once.

Every call has a deadline. If a rank dies, loses what its call needs, or does not answer in time, LearnerDied is raised:
all ranks start again from the last checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ..config import Config
from ..errors import ClusterFull, ConfigError, DeadlineMissed, LearnerDied
from ..pushes import BroadcastRendezvous, BroadcastResult, DeltaDigest, Exposed
from ..telemetry.clock import Clock
from ..types import BatchItem, StepReport, TrainBatch
from ..waiting.backoff import backoff_s
from ..waiting.deadlines import Deadline, broadcast_deadline, within
from ..weights.ipc.merged import merged
from .collector import importing
from .lost import end_of, watched
from .node_room import NodeReport, check_room, node_report
from .nodes import has_gpus, learner_room, shared_room
from .ray_faults import death, own_error
from .ray_session import by_node, place, worker_env
from .shared_dir import check_models, marked
from .versions import required_versions

if TYPE_CHECKING:
    from ..learner.zero3 import Zero3Rank

log = logging.getLogger(__name__)
PLACEMENT_ATTEMPTS = 8
"""Tries to place restarting ranks. With pauses and a minute (PLACEMENT) for each that is about twenty minutes."""
MAX_RESTARTS = 3
"""Times in a row, without a new checkpoint, that a run replaces ranks that died, all of them from the last one."""
DEATHS_AT_START = 3
"""Deaths of starting ranks after which they are not started again: the same cause kills them each time."""
FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 300.0
THREADS = {"io": 1, "control": 1}
"""Concurrency group of a rank's actor -> number of its threads, beside the thread for all other calls."""
DEATH_NOTICE_S = 60
"""Seconds that Ray may take to notice that a process is gone, after another rank has failed. On a busy machine its
daemons stand still for seconds, and a death that is not noticed ends the run instead of restarting the ranks."""


def _name(rank: int) -> str:
    """Return the name under which a rank's process is watched."""
    return f"learner-rank-{rank}"


class LearnerRank:
    """A rank's process. torch and DeepSpeed are imported here, in the worker."""

    inner: Zero3Rank
    """The rank itself; it exists from `start` on."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    def address(self) -> tuple[str, int]:
        """Return where the ranks find each other: this node's address, and a port that stays open while this rank
        lives.

        Raises:
            ConfigError: The address that Ray was given does not belong to this node.
        """
        from ..weights.rendezvous import served_store

        node = ray.util.get_node_ip_address()
        try:
            self.store = served_store(node)
        except OSError as error:
            raise ConfigError(
                f"Learner rank 0 cannot listen on {node}, which is its node's address for Ray: {error.strerror}."
                " Start Ray there with --node-ip-address= and the address of one of the node's own interfaces."
            ) from error
        return node, self.store.port

    def check_node(self, mark: Path, theirs: Mapping[str, str]) -> NodeReport:
        """Compare this node with the controller's, and return what it is and has; see node_room.node_report."""
        return node_report(f"learner rank {self.rank}", mark, theirs, learner=True)

    def start(self, cfg: Config, master_addr: str, master_port: int) -> int:
        """Load the model and return its version. Raises ConfigError if this node does not see it."""
        check_models(
            f"learner rank {self.rank}",
            ray.util.get_node_ip_address(),
            actor=cfg.actor.model_name_or_path,
            critic=cfg.critic.model_name_or_path,
        )
        watched(cfg, _name(self.rank))
        with importing():
            from ..learner.zero3 import Zero3Rank

        self.inner = Zero3Rank(cfg, self.rank, self.world_size, master_addr, master_port)
        return self.inner.version

    def step(self, batch: TrainBatch, *groups: Any) -> dict[str, float]:
        """Train a batch and return its metrics."""
        from ..learner.utilisation import gpu_metrics, tokens_of
        from ..memory.model_size import parameters

        begun = time.monotonic()
        metrics = self.inner.step(batch, list(groups))
        seconds = time.monotonic() - begun
        cfg = self.inner.cfg
        # Each epoch passes the whole batch through the model once, without a part that was accumulated early.
        metas = [item.meta for item in batch.items]
        tokens = tokens_of(metas, share_prompts=cfg.shares_prompts) * cfg.train.max_epochs
        utilisation = gpu_metrics(parameters(cfg.actor.model_name_or_path), tokens, seconds, self.world_size)
        return metrics | self.inner.runner.seconds | utilisation

    def accumulate(self, part: TrainBatch, *groups: Any) -> None:
        """Accumulate the gradients of a part of the batch."""
        self.inner.accumulate(part, list(groups))

    @ray.method(concurrency_group="io")
    def written(self) -> dict[str, tuple[int, str]]:
        """Return the files that this rank wrote since the last call; see Learner.written.

        It has its own thread: passes do not wait for the disk, nor this call for a step.
        """
        return self.inner.written()

    def open_broadcast(self, receivers: int) -> BroadcastRendezvous:
        """Prepare a broadcast and return where its receivers meet."""
        return self.inner.open_broadcast(ray.util.get_node_ip_address(), receivers)

    @ray.method(concurrency_group="control")
    def end_broadcast(self, push: str, why: str) -> None:
        """End a broadcast. It has its own thread, because the broadcast occupies the other."""
        self.inner.sender.end(push, why)

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the rank."""
        return getattr(self.inner, method)(*args)


class LearnerGroup:
    """All ranks, as one Learner. See ports.Learner for the methods without a docstring.

    Attributes:
        cfg: The run's configuration.
        ranks: The Ray handles of the ranks, by rank.
        version: Version of the policy.
    """

    def __init__(self, cfg: Config, ranks: list, group: PlacementGroup | None) -> None:
        """Create the group; see `start`.

        Args:
            cfg: The run's configuration.
            ranks: The Ray handles of the ranks.
            group: The ranks' own reservation, which ends with them; None if it is shared.
        """
        self.cfg = cfg
        self.ranks = ranks
        self._placement = group
        self.version = 0
        self._accumulated = 0
        """Trained tokens of the parts that the next step completes."""

    @classmethod
    async def reserve(cls, cfg: Config) -> PlacementGroup:
        """Reserve room for the ranks, which `start` uses.

        Raises:
            ClusterFull: There is none now.
        """
        return await place(learner_room(cfg), f"{cfg.actor.world_size} learner ranks", cfg)

    @classmethod
    async def start(
        cls,
        cfg: Config,
        shared: PlacementGroup | None = None,
        rank_class: type[LearnerRank] = LearnerRank,
        reserved: PlacementGroup | None = None,
    ) -> LearnerGroup:
        """Start all ranks and return the group.

        Args:
            cfg: The run's configuration.
            shared: A reservation in which engines have their places too (train.colocate_all). It outlives the ranks.
            rank_class: LearnerRank, or a subclass.
            reserved: The result of `reserve`. Without it and without `shared`, room is reserved here.

        Raises:
            ClusterFull: There is no room.
            ConfigError: A node does not see the run's directory, has other packages, or is too small for its ranks.
            LearnerDied: A rank died or did not start in time.
        """
        world_size = cfg.actor.world_size
        room = learner_room(cfg) if shared is None else shared_room(cfg)
        placement = shared or reserved or await cls.reserve(cfg)
        actor = ray.remote(concurrency_groups=THREADS)(rank_class)
        options = {"num_cpus": 1, "num_gpus": room.num_gpus, "runtime_env": {"env_vars": worker_env(cfg)}}
        self = cls(cfg, [], placement if shared is None else None)
        try:
            for bundle in by_node(placement):
                strategy = PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=bundle)
                for _ in range(room.each):
                    self.ranks.append(
                        actor.options(**options, scheduling_strategy=strategy).remote(len(self.ranks), world_size)
                    )
            with marked(cfg.run_dir) as mark:
                packages = required_versions()
                sent = time.time()
                reports = await self._all(
                    [rank.check_node.remote(mark, packages) for rank in self.ranks],
                    "check_node",
                    self._start_deadline,
                )
            for report in {report.address: report for report in reports}.values():
                Clock(f"node {report.address}").record_answer(sent, report.time, time.time())
            check_room(cfg, reports, gpus=has_gpus())
            [(addr, port)] = await self._all([self.ranks[0].address.remote()], "address", self._start_deadline)
            await self._all([rank.start.remote(cfg, addr, port) for rank in self.ranks], "start", self._start_deadline)
        except BaseException:
            await self.stop()  # Otherwise the resources stay reserved, and the next try finds the cluster full.
            raise
        return self

    @classmethod
    async def start_again(cls, cfg: Config, shared: PlacementGroup | None = None) -> LearnerGroup:
        """Start new ranks in place of lost ones.

        The resources of the lost ranks may not be free yet, and their node may have to come back, so this is tried
        several times.

        Raises:
            ClusterFull: There was no room in any attempt.
            LearnerDied: New ranks died while they started, DEATHS_AT_START times.
        """
        deaths = 0
        for attempt in range(1, PLACEMENT_ATTEMPTS):
            try:
                return await cls.start(cfg, shared)
            except ClusterFull as e:
                level = logging.WARNING if attempt == 1 else logging.DEBUG
                log.log(level, "the learner waits for room and tries again: %s", e)
            except LearnerDied as error:
                deaths += 1
                if deaths == DEATHS_AT_START:
                    raise
                log.warning("new learner ranks were lost while they started; they are started again: %s", error)
            await asyncio.sleep(backoff_s(attempt - 1, first_s=FIRST_PAUSE_S, cap_s=MAX_PAUSE_S))
        return await cls.start(cfg, shared)

    async def step(self, batch: TrainBatch) -> StepReport:
        start = time.monotonic()
        metrics = (await self._on_batch("step", batch))[0]
        self.version += int(metrics["updates"])
        tokens = self._accumulated + batch.num_tokens
        self._accumulated = 0
        report = StepReport(self.version, metrics, time.monotonic() - start, tokens)
        if not report.finite or metrics.get("updates_left_out"):
            report.why_skipped = await self._call("why_skipped")
        return report

    async def accumulate(self, part: TrainBatch) -> None:
        """Run forward and backward of a part of the batch that the next `step` completes. No weight changes."""
        accumulated = self._accumulated
        self._accumulated = 0  # If this call fails, earlier parts are void too.
        await self._on_batch("accumulate", part)
        self._accumulated = accumulated + part.num_tokens

    async def _on_batch(self, method: str, batch: TrainBatch) -> list[Any]:
        """Call a method of all ranks with a batch, whose payloads stay in the object store, and return their
        answers."""
        items = [BatchItem(item.meta, payload=None) for item in batch.items]
        # The batch without payloads is put into the object store once, not for each rank.
        metadata = ray.put(TrainBatch(batch.step, items, batch.rank_of, batch.cuts))
        payloads = [item.payload for item in batch.items]
        calls = [getattr(rank, method).remote(metadata, *payloads) for rank in self.ranks]
        return await self._all(calls, method, self._step_deadline)

    async def publish(self, path: Path) -> str:
        return await self._call("publish", path)

    async def publish_changes(self, path: Path, base_version: int) -> DeltaDigest | None:
        return await self._call("publish_changes", path, base_version)

    async def open_broadcast(self, receivers: int) -> BroadcastRendezvous:
        """Prepare a broadcast and return where its receivers meet.

        Rank 0 answers when it has exported the weights, which may take minutes: the deadline is not that of a bucket.
        """
        opening = self.ranks[0].open_broadcast.remote(receivers)
        [rendezvous] = await self._all([opening], "open_broadcast", self._step_deadline)
        return rendezvous

    async def broadcast(self, push: str) -> BroadcastResult:
        return await self._call("broadcast", push)

    async def end_broadcast(self, push: str, why: str) -> None:
        await self._all([self.ranks[0].end_broadcast.remote(push, why)], "end_broadcast", broadcast_deadline(self.cfg))

    async def expose_trial(self) -> Exposed:
        return merged(await self._call_all("expose_trial"))

    async def expose(self, push: str, first: int) -> Exposed:
        return merged(await self._call_all("expose", push, first))

    async def score(self, sequences: list[list[int]]) -> list[Any]:
        return await self._call("score", sequences)

    async def save(self, directory: Path) -> None:
        await self._call("save", directory)

    async def written(self) -> dict[str, tuple[int, str]]:
        parts = await self._all([rank.written.remote() for rank in self.ranks], "written", self._step_deadline)
        return {path: facts for files in parts for path, facts in files.items()}

    async def load(self, directory: Path) -> int:
        self._accumulated = 0
        self.version = await self._call("load", directory)
        return self.version

    async def onload(self) -> None:
        """Move optimiser and gradients to the GPUs, which the engines have left (train.colocate_all)."""
        await self._call("onload")

    async def offload(self) -> None:
        await self._call("offload")

    async def export(self, directory: Path) -> None:
        await self._call("export", directory)

    async def sft_step(self, rows: list, lr: float) -> dict[str, float]:
        return await self._call("sft_step", rows, lr)

    async def sft_loss(self, rows: list) -> tuple[float, float]:
        return await self._call("sft_loss", rows)

    async def reload(self, cfg: Config) -> None:
        """Load the model of `cfg` in the same processes, with a fresh optimiser, as version 0."""
        await self._call("reload", cfg)
        self.cfg = cfg
        self.version = 0
        self._accumulated = 0

    async def stop(self) -> None:
        try:
            for rank in self.ranks:
                ray.kill(rank)
        finally:
            if self._placement is not None:
                remove_placement_group(self._placement)

    @property
    def _start_deadline(self) -> Deadline:
        return Deadline.of(self.cfg, "timeouts.start_s")

    @property
    def _step_deadline(self) -> Deadline:
        return Deadline.of(self.cfg, "timeouts.learner_s")

    async def _call(self, method: str, *args: Any) -> Any:
        """Call a method of all ranks and return the answer of rank 0."""
        return (await self._call_all(method, *args))[0]

    async def _call_all(self, method: str, *args: Any) -> list[Any]:
        return await self._all([rank.call.remote(method, *args) for rank in self.ranks], method, self._step_deadline)

    async def _all(self, refs: list, what: str, deadline: Deadline) -> list[Any]:
        """Return the answers to calls of all ranks.

        Args:
            refs: The calls, by rank.
            what: Name of the method, for the message.
            deadline: How long the slowest answer may take.

        Raises:
            LearnerDied: The process of a rank is gone or hangs. The others are then stuck in a collective, so nothing
                can be saved.
        """
        calls = [asyncio.ensure_future(ref) for ref in refs]
        try:
            waiting = asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            done, pending = await within(deadline, waiting, f"'{what}' of the learner ranks")
            if pending:  # A rank that loses its peer fails in the collective before Ray notices the peer's death.
                late, pending = await asyncio.wait(pending, timeout=DEATH_NOTICE_S)
                done |= late
        except DeadlineMissed as e:
            silent = [rank for rank, call in enumerate(calls) if not call.done()]
            raise LearnerDied(
                f"{e} No answer from rank {', '.join(map(str, silent))}. All ranks restart from the last checkpoint."
            ) from e
        finally:
            for call in calls:
                call.cancel()
        failed = {rank: error for rank, call in enumerate(calls) if call in done and (error := call.exception())}
        for rank, error in failed.items():
            if happened := death(error):
                happened = await end_of(self.cfg, _name(rank), happened)
                raise LearnerDied(
                    f"A learner rank is lost: {happened}. All ranks restart from the last checkpoint."
                ) from error
        if failed:
            error = next(iter(failed.values()))
            # The caller reports a disk's refusal in one sentence.
            cause = own_error(error)
            raise cause if isinstance(cause, OSError) else error
        return [call.result() for call in calls]
