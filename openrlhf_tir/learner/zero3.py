"""Zero3Rank: one rank of the learner. A plain class; cluster/ wraps it in a Ray actor per rank.

Every method is collective: all ranks call it with the same arguments at the same time, because ZeRO-3 keeps a share of
every weight on every rank. Raises of the constructor are ConfigErrors or what torch, deepspeed and the file system say.

    TrainBatch, groups -> samples of this rank -> [roles: reference, critic]
                       -> (each update) rows of this rank -> micro batches -> forward, backward, ... -> one optimiser
                       step
                       -> [the critic's updates] -> metrics
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import deepspeed
import numpy as np
import torch
import torch.distributed as dist

from ..algorithms.advantages import get_estimator
from ..algorithms.advantages.whiten import moments
from ..algorithms.aggregate import GlobalCounts
from ..algorithms.losses.diagnostics import Tally
from ..config import Config
from ..config.sections.output import OF_AVERAGE
from ..errors import ConfigError
from ..types import BroadcastRendezvous, BroadcastResult, DeltaDigest, Group, TrainBatch
from ..weights.broadcast.sender import Sender
from .agreement import agree
from .balance import lpt
from .device_states import device_states
from .ema import WeightAverage
from .export import write_model_files
from .host_memory import give_back_freed
from .lora import ADAPTER, adapter_weights, hf_weights
from .minibatches import critic_parts
from .objective import KlInLoss, PolicyObjective, SftObjective
from .openrlhf_adapter import PolicyModel, ZeroStrategy
from .packing import Row
from .passes import Forward, Passes
from .pushes.broadcast import broadcast_weights
from .pushes.delta import write_delta
from .pushes.last_push import LastPush
from .roles.beside import Roles
from .roles.reference import log_probs
from .rows import FIELDS, OLD, Sample, batch_samples, local_moments, rows_of, share, to_rows
from .saved.background import BackgroundWriter
from .saved.checkpoint import POLICY, load_rank, save_rank
from .schedule import rl_schedule
from .updates.early import Begun, forget_gradients, gradients_divided
from .updates.metrics import over_updates
from .updates.not_finite import faults, told
from .weight_shards import write_shards
from .weights_file import write_file, write_weights

K = TypeVar("K")
V = TypeVar("V")
ADAPTER_DIRECTORY = "adapter"


class Zero3Rank:
    def __init__(self, cfg: Config, rank: int, world_size: int, master_addr: str, master_port: int) -> None:
        """Joins the process group, whose store listens at the master's address (rendezvous.py), loads
        cfg.actor.model_name_or_path in shards, and makes the optimiser."""
        self.rank, self.world_size = rank, world_size
        self.strategy = ZeroStrategy(cfg)
        self.strategy.setup_distributed(rank, world_size, master_addr, master_port)
        self.device = self.strategy.device
        self.sender = Sender()
        self._start(cfg)

    def reload(self, cfg: Config) -> None:
        """Start anew in place: the weights of cfg.actor.model_name_or_path, a fresh optimiser, version 0."""
        self.engine.destroy()
        self.roles.destroy()
        del self.model, self.optimizer, self.engine, self.roles, self.average
        gc.collect()
        self._start(cfg)

    def _start(self, cfg: Config) -> None:
        self.cfg, self.estimator, self.lr_at = cfg, get_estimator(cfg.algo.advantage.estimator), rl_schedule(cfg)
        self.passes = Passes(cfg, self.strategy)
        self.model, self.optimizer = self.strategy.prepare_training(PolicyModel(cfg, self.strategy), cfg, cfg.actor)
        self.engine = self.model.model
        self.roles = Roles(cfg, self.strategy, self.estimator)
        self.average = WeightAverage(self.engine, cfg.train.ema_beta) if cfg.train.enable_ema else None
        self.states = device_states(self._engines, self.device)
        self.writer = BackgroundWriter()
        self.last = LastPush() if cfg.vllm.sync_delta else None
        self.left_out: list[str] = []
        self.begun: Begun | None = None
        for engine in self._engines().values():
            engine.checkpoint_engine = self.writer
        self._version = 0

    @property
    def version(self) -> int:
        """Policy updates behind the current weights. Fine-tuning steps do not count: no rollout came between."""
        return self._version

    def accumulate(self, batch: TrainBatch, groups: Sequence[Group]) -> None:
        """Forward and backward of a part of the batch that the next `step` completes; no weight changes (early.py).
        groups[b] is the payload of batch.items[b]. What fails makes all parts void."""
        self.states.needed("A step")
        self._begin(batch)
        try:
            self._add(batch, groups, last=False)
        except BaseException:
            self._forget()
            raise

    def step(self, batch: TrainBatch, groups: Sequence[Group]) -> dict[str, float]:
        """The batch's updates, one optimiser step each. groups[b] is the payload of batch.items[b]. Returns the metrics
        of the global batch, the same on every rank: loss, grad_norm (before clipping), lr, updates, and those of
        algorithms/losses/diagnostics.py.

        A gradient that is not finite changes nothing: DeepSpeed leaves weights and optimiser as they are, and the
        version does not count it. After `accumulate` the batch is what its parts left, and the update and its metrics
        are of all of them."""
        self.states.needed("A step")
        self.left_out = []
        if self.begun:
            return self._completed(self.begun, batch, groups)
        judged: dict[str, float] = {}
        samples = batch_samples(batch, groups, self.cfg, self.estimator)
        mine = share(samples, batch.rank_of, self.strategy.shard)
        if self.roles:
            mine, judged = self.roles.judged(mine, self.model, self.passes, self._sum)
            samples = self._with_judged(samples, mine)
        total = self._sum(local_moments(mine))
        if self._version < self.roles.freezing_steps:
            metrics = {"loss": 0.0, "grad_norm": 0.0, "lr": 0.0, "updates": float(len(batch.updates))}
        else:
            metrics = self._policy_updates(batch, samples, mine, total)
        if metrics["updates"]:
            rows = to_rows(mine, total, self._version, self.cfg, self.estimator)
            parts = rows_of(mine, rows, critic_parts(self.cfg, batch.step, [item.meta for item in batch.items]))
            metrics |= judged | self.roles.trained(
                parts, metrics | judged, len(batch.rank_of), self._version, self.passes, self._trained_counts
            )
        self._version += int(metrics["updates"])
        give_back_freed()
        return metrics

    def _policy_updates(
        self, batch: TrainBatch, samples: Sequence[Sample], mine: Sequence[Sample], total: np.ndarray
    ) -> dict[str, float]:
        """Metrics; `updates` says by how many the version is to move."""
        old = self._old_logprobs(mine, total) if self.cfg.recomputes_old else None
        kl = self._kl_in_loss()
        names = self._fields(kl) | ({} if old is None else {OLD: np.float32})
        tally, parts, version = Tally(self.device), [], self._version
        for rank_of in batch.updates:
            part = share(samples, rank_of, self.strategy.shard)
            rows = to_rows(part, total, version, self.cfg, self.estimator, old)
            counts = replace(self._trained_counts(rows), sum_norm=self.cfg.loss_sum_norm)
            parts.append(
                self._update(
                    rows, names, PolicyObjective(self.cfg, self.model, counts, tally, kl), counts, self.lr_at(version)
                )
            )
            if math.isfinite(parts[-1]["grad_norm"]):
                version += 1
            else:
                self.left_out.append(self._not_finite(batch, part, rows, version))
        return over_updates(parts) | self._told(tally, kl)

    def _told(self, tally: Tally, kl: KlInLoss | None) -> dict[str, float]:
        """What the micro batches of all ranks gathered, as metrics."""
        for sums in (tally.sums, tally.gated, tally.distances, *([kl.sums] if kl else [])):
            sums.copy_(self.strategy.sum_over_rows(sums))
        dist.all_reduce(tally.maxima, dist.ReduceOp.MAX)
        return tally.metrics() | (kl.metrics() if kl else {})

    def _begin(self, batch: TrainBatch) -> None:
        """The first part begins a batch; what cannot be trained in parts is refused before a run starts."""
        if self.estimator.whole_batch or len(batch.updates) > 1:
            raise ConfigError(
                f"A part of the batch at version {batch.step} was to be trained, and"
                f" {self.cfg.algo.advantage.estimator!r} in {len(batch.updates)} updates needs the whole of it. Set"
                " pipeline.early_accumulation = 'off'."
            )
        self.begun = self.begun or Begun(self.cfg, self.model, self.passes, self._version, self._kl_in_loss())

    def _add(self, batch: TrainBatch, groups: Sequence[Group], *, last: bool) -> None:
        assert self.begun is not None, "a part has begun it"
        mine = share(batch_samples(batch, groups, self.cfg, self.estimator), batch.rank_of, self.strategy.shard)
        if self.roles:
            mine, _ = self.roles.judged(mine, self.model, self.passes, self._sum)
        rows = to_rows(mine, moments([], []), self._version, self.cfg, self.estimator)
        counts, names = (
            replace(self._trained_counts(rows), sum_norm=self.cfg.loss_sum_norm),
            self._fields(self.begun.kl),
        )
        self.begun.add((batch, mine, rows), counts, names, self.optimizer, last=last)

    def _completed(self, begun: Begun, batch: TrainBatch, groups: Sequence[Group]) -> dict[str, float]:
        """The one update of the parts so far and of `batch`, the last."""
        lr = self.lr_at(self._version)
        try:
            self._add(batch, groups, last=True)
            with gradients_divided(self.engine, begun.divisor):
                norm = self._apply(lr)
        except BaseException:
            self._forget()
            raise
        self.begun = None
        metrics = over_updates([{"loss": begun.loss, "grad_norm": norm, "lr": lr}])
        metrics |= self._told(begun.tally, begun.kl)
        if metrics["updates"]:
            metrics |= self.roles.trained(
                [], metrics, begun.trajectories, self._version, self.passes, self._trained_counts
            )
        else:
            self.left_out = [self._not_finite(*part, self._version) for part in begun.parts]
        self._version += int(metrics["updates"])
        give_back_freed()
        return metrics

    def _forget(self) -> None:
        """What was accumulated is void."""
        if self.begun:
            self.begun = None
            forget_gradients(self.engine)

    def _kl_in_loss(self) -> KlInLoss | None:
        return KlInLoss(self.cfg, self.roles.coef.value, self.device) if self.cfg.algo.kl.use_loss else None

    @staticmethod
    def _fields(kl: KlInLoss | None) -> dict[str, type]:
        """The fields of a row whose loss has that KL."""
        return FIELDS | ({} if kl is None else {KlInLoss.FIELD: np.float32})

    def _not_finite(self, batch: TrainBatch, samples: Sequence[Sample], rows: Sequence[Row], version: int) -> str:
        """Which tensor of which trajectory is not, of the samples that the update on `version` had of `batch`."""
        scored = log_probs(self.model, self.passes, rows, of="trained")
        return told(batch, version, self._gathered(dict.fromkeys(faults(samples, rows, scored))))

    def why_left_out(self) -> list[str]:
        """For each update of the last step whose gradient was not finite: which tensor of which
        trajectory was not."""
        return self.left_out

    def _with_judged(self, samples: Sequence[Sample], mine: Sequence[Sample]) -> list[Sample]:
        """`samples` with what this rank's roles said of `mine`, and, where other ranks will train them too, what theirs
        said of the others."""
        judged = {s.key: (s.advantages, s.facts, s.masked) for s in mine}
        if self.cfg.train.max_epochs > 1:
            judged = self._gathered(judged)
        return [
            replace(s, advantages=judged[s.key][0], facts=judged[s.key][1], masked=judged[s.key][2])
            if s.key in judged
            else s
            for s in samples
        ]

    def _trained_counts(self, rows: Sequence[Row]) -> GlobalCounts:
        return self._counts([row.fields["trained"].sum() for row in rows])

    def _old_logprobs(self, samples: Sequence[Sample], total: np.ndarray) -> dict[tuple[int, int, int], np.ndarray]:
        """key -> [L-1] float32: log-probs before the batch's first update, of all samples that any rank trains."""
        counting = [s for s in samples if s.counts]
        rows = to_rows(counting, total, self._version, self.cfg, self.estimator)
        mine = dict(zip([s.key for s in counting], log_probs(self.model, self.passes, rows, of="trained"), strict=True))
        if self.cfg.train.max_epochs == 1:  # what is trained once is trained where it was scored
            return mine
        return self._gathered(mine)

    def sft_step(self, rows: Sequence[tuple[np.ndarray, np.ndarray]], lr: float) -> dict[str, float]:
        """One update of weighted cross entropy. rows: (token_ids [T], weights [T]); weights[t] is of token t, 0 masks
        it, weights[0] is unused."""
        self.states.needed("A step of fine-tuning")
        mine = self._share_of(rows)
        counts = self._counts([row.fields["weights"].sum() for row in mine])
        return self._update(mine, {"weights": np.float32}, SftObjective(self.model, counts), counts, lr)

    def sft_loss(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
        """(sum of weight * -log p, sum of weights) over all rows, under the current weights: the loss of `sft_step` is
        the first over the second."""
        mine = self._share_of(rows)
        scored = self.passes.ask(
            self.model,
            mine,
            {"weights": np.float32},
            lambda m: self.model.log_probs(m, m.fields["weights"] > 0),
        )
        weights = [row.fields["weights"].astype(np.float64) for row in mine]
        local = [-sum(float(w @ s) for w, s in zip(weights, scored, strict=True)), sum(float(w.sum()) for w in weights)]
        total, weight = self._sum(np.array(local, np.float64))
        return float(total), float(weight)

    def _share_of(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Row]:
        """The rows of fine-tuning that this rank has, balanced by tokens."""
        owner = lpt([len(ids) for ids, _ in rows], self.cfg.shards)
        return [
            Row(ids, {"weights": weights[1:]})
            for (ids, weights), r in zip(rows, owner, strict=True)
            if r == self.strategy.shard
        ]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Log-prob of every token but the first, [T-1] float32 each, by the current weights. All ranks return all."""
        owner = lpt([len(ids) for ids in sequences], self.cfg.shards)
        mine = [i for i, r in enumerate(owner) if r == self.strategy.shard]
        rows = [Row(np.asarray(sequences[i])) for i in mine]
        scored = dict(
            zip(
                mine,
                self.passes.ask(self.model, rows, {}, self.model.log_probs),
                strict=True,
            )
        )
        merged = self._gathered(scored)
        return [merged[i] for i in range(len(sequences))]

    def _gathered(self, mine: dict[K, V]) -> dict[K, V]:
        """The entries of all ranks."""
        parts: list[dict[K, V]] = [{}] * self.world_size
        dist.all_gather_object(parts, mine)
        return {key: value for part in parts for key, value in part.items()}

    def publish(self, path: str | Path) -> str | None:
        """Full weights with HF names into one safetensors file; its digest on rank 0, None elsewhere. The file is
        complete on return."""
        return write_weights(
            self.engine.module, Path(path), rank=self.rank, sharded=self.cfg.ds.zero_stage == 3, last=self.last
        )

    def publish_changes(self, path: str | Path, base_version: int) -> DeltaDigest | None:
        """What changed since the last of these two calls, which was of `base_version`, as a delta file; see
        write_delta. On rank 0, None elsewhere."""
        sharded = self.cfg.ds.zero_stage == 3
        return write_delta(
            self.engine.module, Path(path), self.last, base_version=base_version, rank=self.rank, sharded=sharded
        )

    def open_broadcast(self, address: str, receivers: int) -> BroadcastRendezvous:
        """By rank 0 alone, on whose node `address` is; see Sender.open."""
        return self.sender.open(self.cfg.vllm.sync_backend, address, receivers, self.cfg.timeouts.broadcast_s)

    def broadcast(self, push: str) -> BroadcastResult | None:
        """Collective. Full weights with HF names to all receivers; what became of it on rank 0, None elsewhere."""
        sharded, bucket = self.cfg.ds.zero_stage == 3, self.cfg.vllm.sync_bucket_mib << 20
        return broadcast_weights(
            self.engine.module, push, self.sender, rank=self.rank, sharded=sharded, bucket_bytes=bucket
        )

    def export(self, directory: str | Path) -> None:
        """A directory that plain transformers loads: config, weights, tokenizer; with LoRA `adapter/` besides, which
        peft loads. The average of the weights and the critic beside it, where there are such and they are asked for."""
        self._export_policy(Path(directory))
        if self.average:
            with self.average.in_place_of_weights():
                self._export_policy(Path(f"{directory}{OF_AVERAGE}"))
        if self.roles.critic and self.cfg.critic.save_value_network:
            agree(self.roles.critic.export(Path(f"{directory}_critic"), rank=self.rank))

    def _export_policy(self, directory: Path) -> None:
        sharded = self.cfg.ds.zero_stage == 3
        write_shards(
            hf_weights(self.engine.module),
            directory,
            rank=self.rank,
            sharded=sharded,
            max_bytes=self.cfg.ckpt.max_shard_bytes,
        )
        adapter, of_adapter = adapter_weights(self.engine.module), directory / ADAPTER_DIRECTORY
        if adapter:
            write_file(adapter, of_adapter / "adapter_model.safetensors", rank=self.rank, sharded=sharded)
        fault = None
        if self.rank == 0:
            try:
                write_model_files(self.model.hf_config, self.cfg.actor.model_name_or_path, directory)
                if adapter:
                    self.engine.module.peft_config[ADAPTER].save_pretrained(str(of_adapter))
            except OSError as e:
                fault = e
        agree(fault)

    def save(self, directory: str | Path) -> None:
        """Copies this rank's state to host memory; training may go on. Files are complete when `written` has returned
        on every rank."""
        facts = {"version": self._version, **self.roles.state()}
        more = self.average.files(self.rank) if self.average else {}
        with self.states.saved():
            save_rank(
                self._engines(),
                self.writer,
                Path(directory),
                rank=self.rank,
                world_size=self.world_size,
                facts=facts,
                more=more,
            )

    def written(self) -> dict[str, tuple[int, str]]:
        """Not collective, from another thread: blocks until what was saved is on disk. path -> (bytes, XXH3-128)."""
        return self.writer.written()

    def load(self, directory: str | Path) -> int:
        """Returns the version. The checkpoint may be of another number of ranks. Raises ConfigError for one without the
        critic that this run has."""
        self.states.needed("The loading of a checkpoint")
        self._forget()
        directory = Path(directory)
        facts = load_rank(self._engines(), directory, rank=self.rank, world_size=self.world_size)
        if self.average:
            self.average.load(
                directory, directory / POLICY, rank=self.rank, world_size=self.world_size, saved=facts["world_size"]
            )
        self.roles.restore(facts)
        self._version = facts["version"]
        return self._version

    def offload(self) -> None:
        """Optimiser and gradients to host memory (train.colocate_all). Weights stay: they are scored with, pushed,
        saved and exported as before."""
        self.states.offload()

    def onload(self) -> None:
        """Back onto the GPU, for a step or to load a checkpoint."""
        self.states.onload()

    def _engines(self) -> dict[str, deepspeed.DeepSpeedEngine]:
        return {POLICY: self.engine, **self.roles.engines()}

    def close(self) -> None:
        dist.destroy_process_group()

    def _update(
        self, rows: Sequence[Row], names: Mapping[str, type], objective: Forward, counts: GlobalCounts, lr: float
    ) -> dict[str, float]:
        """Forward and backward of all micro batches, then one optimiser step at `lr`."""
        summed = self.passes.accumulate(self.model, self.optimizer, rows, names, objective, last=True)
        return {"loss": counts.unscale(summed), "grad_norm": self._apply(lr), "lr": lr}

    def _apply(self, lr: float) -> float:
        """The optimiser's step on what was accumulated; the norm of the gradient, before clipping."""
        self.passes.apply(self.model, self.optimizer, lr)
        norm = self.strategy.get_grad_norm(self.model)
        if self.average and math.isfinite(norm):
            self.average.update()
        return norm

    def _counts(self, trained_per_row: Sequence[float]) -> GlobalCounts:
        tokens, sequences = self._sum(np.array([sum(trained_per_row), sum(n > 0 for n in trained_per_row)], np.float64))
        return GlobalCounts(float(tokens), float(sequences), self.world_size)

    def _sum(self, local: np.ndarray) -> np.ndarray:
        return self.strategy.sum_over_rows(torch.from_numpy(local).to(self.device)).cpu().numpy()
