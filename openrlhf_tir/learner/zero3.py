"""One rank of the learner, as a plain class. cluster/ wraps it in one Ray actor per rank.

Methods are collective where nothing else is said: all ranks call them at the same time with the same arguments, because
with ZeRO-3 every rank holds a share of every weight.

    step(TrainBatch, groups)
        samples of this rank                            rows.py
        -> scores of the reference and the critic       roles/
        -> for each update: rows -> micro batches -> forward and backward -> one optimizer step
        -> updates of the critic                        roles/critic.py
        -> metrics of the global batch, the same on every rank
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import deepspeed
import numpy as np
import torch
import torch.distributed as dist

from ..algorithms.advantages import get_estimator
from ..algorithms.advantages.whiten import moments
from ..algorithms.global_counts import GlobalCounts
from ..algorithms.losses.diagnostics import Tally
from ..config import Config
from ..config.sections.output import OF_AVERAGE, OF_CRITIC
from ..errors import ConfigError
from ..machine.host_allocator import give_back_freed
from ..memory.threads import compute_threads
from ..pushes import BroadcastRendezvous, BroadcastResult, DeltaDigest, Exposed
from ..types import Group, TrainBatch
from ..waiting.deadlines import broadcast_deadline
from ..weights.broadcast.sender import Sender
from ..weights.ipc.exposer import Exposer
from .balance import lpt
from .device_states import DeviceStates
from .ema import WeightAverage
from .export import export_policy
from .minibatches import critic_parts
from .objective import PolicyObjective, SftObjective
from .openrlhf_adapter import PolicyModel, ZeroStrategy
from .packing import Row
from .passes import Forward, MicroBatchRunner
from .pushes.broadcast import broadcast_weights
from .pushes.delta import write_delta
from .pushes.expose import expose_weights
from .pushes.last_push import LastPush
from .roles.auxiliary_models import AuxiliaryModels
from .rows import (
    FIELDS,
    OLD_LOGPROBS,
    REFERENCE_LOGPROBS,
    Sample,
    batch_samples,
    local_moments,
    responses,
    rows_of,
    share,
    to_rows,
)
from .saved.background import BackgroundWriter
from .saved.checkpoint import POLICY, load_rank, save_rank
from .schedule import rl_schedule
from .updates.early import EarlyUpdate, gradients_divided
from .updates.metrics import over_updates
from .updates.not_finite import describe_faults, find_faults
from .weights_file import write_weights

K = TypeVar("K")
V = TypeVar("V")


class Zero3Rank:
    """One rank: its shards of the policy and the models beside it, their optimizers, and its part in every step."""

    def __init__(self, cfg: Config, rank: int, world_size: int, master_addr: str, master_port: int) -> None:
        """Join the process group, load this rank's shards of cfg.actor.model_name_or_path, and create the optimizer.

        Args:
            cfg: The configuration.
            rank: This rank.
            world_size: Number of ranks.
            master_addr: Host of the process group's store, which already listens (rendezvous.py).
            master_port: Port of the store.

        Raises:
            ConfigError: The model cannot be trained with these settings. Errors of torch, DeepSpeed and the file system
                are raised as they are.
        """
        self.rank = rank
        self.world_size = world_size
        self.strategy = ZeroStrategy(cfg)
        self.strategy.setup_distributed(rank, world_size, master_addr, master_port)
        self.device = self.strategy.device
        if self.device == "cpu":
            torch.set_num_threads(compute_threads(cfg).learner)
        self.sender = Sender()
        self.exposer = Exposer(torch.device(self.device))
        self.writer = BackgroundWriter(keeps=self.device == "cpu")
        self._start(cfg)

    def reload(self, cfg: Config) -> None:
        """Start again in this process: weights of cfg.actor.model_name_or_path, a new optimizer, version 0.

        A checkpoint of the model before is written to its end; `written` answers for it afterwards as well.
        """
        self.writer.wait_before_change()
        self.engine.destroy()
        self.auxiliary.destroy()
        del self.model, self.optimizer, self.engine, self.auxiliary, self.average
        self.exposer.release()
        gc.collect()
        self._start(cfg)

    def _start(self, cfg: Config) -> None:
        self.cfg = cfg
        self.estimator = get_estimator(cfg.algo.advantage.estimator)
        self.lr_at = rl_schedule(cfg)
        self.runner = MicroBatchRunner(cfg, self.strategy, self.writer.wait_before_change)
        self.model, self.optimizer = self.strategy.prepare_training(PolicyModel(cfg, self.strategy), cfg, cfg.actor)
        self.engine = self.model.model
        self.auxiliary = AuxiliaryModels(cfg, self.strategy, self.estimator, self.model, self.runner)
        self.average = WeightAverage(self.engine, cfg.train.ema_beta) if cfg.train.ema_beta else None
        self.states = DeviceStates(self._engines, self.device)
        self.last = LastPush() if cfg.vllm.pushes_changes else None
        self._why_skipped: list[str] = []
        self.early: EarlyUpdate | None = None
        """The batch of which some parts are accumulated already; None: no batch has begun."""
        for engine in self._engines().values():
            engine.checkpoint_engine = self.writer
        self._version = 0

    @property
    def version(self) -> int:
        """Number of policy updates behind the current weights. Steps of fine-tuning do not count."""
        return self._version

    def accumulate(self, batch: TrainBatch, groups: Sequence[Group]) -> None:
        """Accumulate the gradient of a part of the batch that the next `step` completes (updates/early.py).

        No weight changes. If this fails, all parts of the batch are discarded.

        Args:
            batch: The part; groups[b] is the payload of batch.items[b].
            groups: The payloads.

        Raises:
            ConfigError: The configured algorithm needs the whole batch at once.
            DataError: A payload does not match its metadata.
            MethodBroken: The user's estimator or policy loss failed.
            PipelineError: The optimizer's state is offloaded.
        """
        self.states.require_on_device("A step")
        self._begin_early(batch)
        try:
            self._accumulate_part(batch, groups, last=False)
        except BaseException:
            self._discard_early()
            raise

    def step(self, batch: TrainBatch, groups: Sequence[Group]) -> dict[str, float]:
        """Train on a batch: one optimizer step for each of its updates.

        An update whose gradient is not finite is skipped: DeepSpeed leaves weights and optimizer as they are, and the
        version does not count it. After `accumulate` the batch is the last part; the update and its metrics then cover
        all parts.

        Args:
            batch: The batch; groups[b] is the payload of batch.items[b].
            groups: The payloads.

        Returns:
            Metrics of the global batch, the same on every rank: loss, grad_norm (before clipping), lr, updates, those
            of algorithms/losses/diagnostics.py, and those of the models beside the policy. How long this rank took for
            what is in `runner.seconds`.

        Raises:
            DataError: A payload does not match its metadata.
            MethodBroken: The user's estimator or policy loss failed.
            PipelineError: The optimizer's state is offloaded.
        """
        self.states.require_on_device("A step")
        self._why_skipped = []
        if self.early:
            return self._complete_early(self.early, batch, groups)
        self.runner.seconds.clear()
        samples, own_samples, auxiliary_metrics = self._scored_samples(batch, groups)
        total = self.runner.sum(local_moments(own_samples))
        if self._version < self.auxiliary.freezing_steps:
            # Only the critic is trained. The updates count as versions all the same; rl_schedule subtracts them.
            metrics = {"loss": 0.0, "grad_norm": 0.0, "lr": 0.0, "updates": float(len(batch.updates))}
        else:
            if self.cfg.recomputes_old:
                with self.runner.timed("scoring_s"):
                    own_samples = self._with_old_logprobs(own_samples, total)
            if self.auxiliary or self.cfg.recomputes_old:
                samples = self._with_scores(samples, own_samples)
            metrics = self._policy_updates(batch, samples, total)
        if metrics["updates"]:
            rows = to_rows(own_samples, total, self._version, self.cfg, self.estimator)
            parts = rows_of(own_samples, rows, critic_parts(self.cfg, batch.step, [item.meta for item in batch.items]))
            metrics |= auxiliary_metrics | self.auxiliary.update(
                parts, metrics | auxiliary_metrics, len(batch.rank_of), self._version
            )
        self._version += int(metrics["updates"])
        give_back_freed()
        return metrics

    def _scored_samples(
        self, batch: TrainBatch, groups: Sequence[Group], *, is_part: bool = False
    ) -> tuple[list[Sample], list[Sample], dict[str, float]]:
        """Score the samples that this rank owns by the models beside the policy.

        Args:
            batch: The batch, or a part of it.
            groups: The payloads.
            is_part: True if it is a part.

        Returns:
            The samples of all ranks without scores, those that this rank owns with them, and the metrics of the scores.
        """
        samples = batch_samples(batch, groups, self.cfg, self.estimator)
        own_samples = share(samples, batch.rank_of, self.strategy.shard)
        if not self.auxiliary:
            return samples, own_samples, {}
        with self.runner.timed("scoring_s"):
            own_samples, metrics = self.auxiliary.score_samples(own_samples, is_part=is_part)
        return samples, own_samples, metrics

    def _policy_updates(self, batch: TrainBatch, samples: Sequence[Sample], total: np.ndarray) -> dict[str, float]:
        """Make the policy's updates.

        Args:
            batch: The batch.
            samples: The samples of all ranks; an update may train others here than those that this rank owns
                (minibatches.make_train_batch).
            total: The whitening statistics of all ranks.

        Returns:
            Metrics. `updates` is the number of updates that changed the weights.
        """
        tally = Tally(self.device)
        update_metrics: list[dict[str, float]] = []
        version = self._version
        for rank_of in batch.updates:
            part = share(samples, rank_of, self.strategy.shard)
            rows = to_rows(part, total, version, self.cfg, self.estimator)
            counts = replace(self.runner.counts(rows, "trained"), sum_norm=self.cfg.loss_sum_norm)
            objective = PolicyObjective(self.cfg, self.model, counts, tally, self.auxiliary.coef.value)
            update_metrics.append(self._update(rows, self._field_types(), objective, counts, self.lr_at(version)))
            if math.isfinite(update_metrics[-1]["grad_norm"]):
                version += 1
            else:
                self._why_skipped.append(self._describe_not_finite(batch, part, rows, version))
        return over_updates(update_metrics) | self._diagnostics(tally)

    def _diagnostics(self, tally: Tally) -> dict[str, float]:
        """Add up over the ranks what the objective collected on micro batches, and return it as metrics."""
        for sums in (tally.sums, tally.gated, tally.histogram):
            sums.copy_(self.strategy.sum_over_rows(sums))
        dist.all_reduce(tally.maxima, dist.ReduceOp.MAX)
        return tally.metrics()

    def _begin_early(self, batch: TrainBatch) -> None:
        """Begin a batch with its first part, or do nothing if it has begun.

        Raises:
            ConfigError: The algorithm needs the whole batch at once. The configuration's checks refuse that before a
                run starts, so this is a second line of defence.
        """
        if self.estimator.whole_batch or len(batch.updates) > 1:
            raise ConfigError(
                f"A part of the batch at version {batch.step} was to be trained, but"
                f" {self.cfg.algo.advantage.estimator!r} in {len(batch.updates)} updates needs the whole batch. Set"
                " pipeline.early_accumulation = 'off'."
            )
        if self.early is None:
            self.runner.seconds.clear()
            self.early = EarlyUpdate(self.cfg, self.model, self.runner, self.auxiliary.coef.value)

    def _accumulate_part(self, batch: TrainBatch, groups: Sequence[Group], *, last: bool) -> None:
        assert self.early is not None, "the first part has begun the batch"
        _, own_samples, _ = self._scored_samples(batch, groups, is_part=True)
        # No moments: estimators that whiten need the whole batch and are refused.
        rows = to_rows(own_samples, moments([], []), self._version, self.cfg, self.estimator)
        self.early.add((batch, own_samples, rows), self._field_types(), self.optimizer, last=last)

    def _complete_early(self, early: EarlyUpdate, batch: TrainBatch, groups: Sequence[Group]) -> dict[str, float]:
        """Make the one update of all parts; `batch` is the last part. Returns the metrics of all parts."""
        lr = self.lr_at(self._version)
        try:
            self._accumulate_part(batch, groups, last=True)
            with gradients_divided(self.engine, early.divisor):
                norm = self._apply(lr)
        except BaseException:
            self._discard_early()
            raise
        self.early = None
        metrics = over_updates([{"loss": early.loss, "grad_norm": norm, "lr": lr}])
        metrics |= self._diagnostics(early.tally)
        metrics |= self.auxiliary.masked_share([s for _, samples, _ in early.parts for s in samples])
        if metrics["updates"]:
            metrics |= self.auxiliary.update([], metrics, early.trajectories, self._version)
        else:
            self._why_skipped = [self._describe_not_finite(*part, self._version) for part in early.parts]
        self._version += int(metrics["updates"])
        give_back_freed()
        return metrics

    def _discard_early(self) -> None:
        """Discard the parts that were accumulated, and their gradients."""
        if self.early:
            self.early = None
            # This also resets micro_step_id, by which DeepSpeed knows that the next backward pass overwrites them.
            self.engine.optimizer.zero_grad()

    def _field_types(self) -> dict[str, type]:
        """Return the fields that the policy's loss needs, with their numpy types."""
        further = {REFERENCE_LOGPROBS: self.cfg.algo.kl.use_loss, OLD_LOGPROBS: self.cfg.recomputes_old}
        return FIELDS | {name: np.float32 for name, needed in further.items() if needed}

    def _describe_not_finite(
        self, batch: TrainBatch, samples: Sequence[Sample], rows: Sequence[Row], version: int
    ) -> str:
        """Return a sentence that names the tensors and trajectories that are not finite in a skipped update.

        Args:
            batch: The batch, or the part of it.
            samples: The samples that this rank had in the update.
            rows: Their rows.
            version: The version that the update started from.
        """
        scores = self.runner.log_probs(self.model, rows, "trained")
        faults = self._gathered(dict.fromkeys(find_faults(samples, rows, scores)))
        return describe_faults(batch, version, faults)

    def why_skipped(self) -> list[str]:
        """Return a sentence for each update of the last step that was skipped: what in it was not finite."""
        return self._why_skipped

    def _with_scores(self, samples: Sequence[Sample], own_samples: Sequence[Sample]) -> list[Sample]:
        """Copy what models computed before the first update into the samples of all ranks.

        In later epochs other ranks may train a sample than the one that scored it, so with several epochs the ranks
        exchange their results.

        Args:
            samples: The samples of all ranks.
            own_samples: Those of this rank, scored.
        """
        scores = {s.key: (s.advantages, s.model_fields, s.masked) for s in own_samples}
        if self.cfg.train.max_epochs > 1:
            scores = self._gathered(scores)
        scored_samples = []
        for sample in samples:
            if sample.key in scores:
                advantages, model_fields, masked = scores[sample.key]
                sample = replace(sample, advantages=advantages, model_fields=model_fields, masked=masked)
            scored_samples.append(sample)
        return scored_samples

    def _with_old_logprobs(self, samples: Sequence[Sample], total: np.ndarray) -> list[Sample]:
        """Return the samples; those that count have their log-probs under the present weights as OLD_LOGPROBS."""
        counted = [s for s in samples if s.counts]
        rows = to_rows(counted, total, self._version, self.cfg, self.estimator)
        scores = responses(counted, self.runner.log_probs(self.model, rows, "trained"))
        scored = {s.key: s.with_fields(**{OLD_LOGPROBS: own}) for s, own in zip(counted, scores, strict=True)}
        return [scored.get(s.key, s) for s in samples]

    def sft_step(self, rows: Sequence[tuple[np.ndarray, np.ndarray]], lr: float) -> dict[str, float]:
        """Make one update of weighted cross entropy.

        Args:
            rows: Pairs of token ids [T] and weights [T], the same on every rank. weights[t] belongs to token t; 0 masks
                it. weights[0] is not used, because no position predicts token 0.
            lr: The learning rate.

        Returns:
            loss, grad_norm (before clipping) and lr.

        Raises:
            PipelineError: The optimizer's state is offloaded.
        """
        self.states.require_on_device("A step of fine-tuning")
        own_rows = self._share_of(rows)
        counts = self.runner.counts(own_rows, "weights")
        return self._update(own_rows, {"weights": np.float32}, SftObjective(self.model, counts), counts, lr)

    def sft_loss(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[float, float]:
        """Evaluate the loss of `sft_step` over rows with the current weights, without training.

        Returns:
            The sums over all ranks of weight * -log p and of the weights. The loss is the first over the second.
        """
        own_rows = self._share_of(rows)
        scores = self.runner.score_rows(
            self.model,
            own_rows,
            {"weights": np.float32},
            lambda micro: self.model.log_probs(micro, micro.fields["weights"] > 0),
        )
        weights = [row.fields["weights"].astype(np.float64) for row in own_rows]
        loss_sum = -sum(float(w @ s) for w, s in zip(weights, scores, strict=True))
        weight_sum = sum(float(w.sum()) for w in weights)
        total, weight = self.runner.sum(np.array([loss_sum, weight_sum], np.float64))
        return float(total), float(weight)

    def _share_of(self, rows: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Row]:
        """Return the rows of fine-tuning that this rank trains, balanced by tokens."""
        own = [rows[i] for i in self._own_indices([ids for ids, _ in rows])]
        return [Row(ids, {"weights": weights[1:]}) for ids, weights in own]

    def _own_indices(self, sequences: Sequence[Sized]) -> list[int]:
        """Return the indices of the sequences that this rank computes."""
        shard_of = lpt([len(ids) for ids in sequences], self.cfg.shards)
        return [i for i, shard in enumerate(shard_of) if shard == self.strategy.shard]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the log-prob of every token but the first under the current weights, at temperature 1.

        Args:
            sequences: Token ids of each sequence, the same on every rank.

        Returns:
            [T-1] float32 for each sequence, on every rank.
        """
        own_indices = self._own_indices(sequences)
        rows = [Row(np.asarray(sequences[i])) for i in own_indices]
        scores = self.runner.score_rows(self.model, rows, {}, self.model.log_probs)
        merged = self._gathered(dict(zip(own_indices, scores, strict=True)))
        return [merged[i] for i in range(len(sequences))]

    def _gathered(self, entries: dict[K, V]) -> dict[K, V]:
        """Return the entries of all ranks in one dict."""
        parts: list[dict[K, V]] = [{}] * self.world_size
        dist.all_gather_object(parts, entries)
        return {key: value for part in parts for key, value in part.items()}

    def publish(self, path: str | Path) -> str | None:
        """Write the full weights with Hugging Face names into one safetensors file, which is complete on return.

        Returns:
            The digest of the weights on rank 0, None elsewhere.

        Raises:
            OSError: On every rank if rank 0's disk is full or fails.
        """
        return write_weights(self.engine.module, Path(path), rank=self.rank, last=self.last)

    def publish_changes(self, path: str | Path, base_version: int) -> DeltaDigest | None:
        """Write what changed since the last `publish` or `publish_changes` into a delta file (pushes/delta.py).

        Args:
            path: The file.
            base_version: The version of that last push.

        Returns:
            The digests of the delta on rank 0; None if a full push has to take its place. None on other ranks.

        Raises:
            OSError: On every rank if rank 0's disk is full or fails.
        """
        return write_delta(self.engine.module, Path(path), self.last, base_version=base_version, rank=self.rank)

    def open_broadcast(self, address: str, receivers: int) -> BroadcastRendezvous:
        """Open the rendezvous of the next broadcast; see Sender.open. Not collective: called on rank 0 only.

        Args:
            address: An address of rank 0's node that the engines reach.
            receivers: Number of engine workers that will take part.
        """
        return self.sender.open(self.cfg.vllm.sync_backend, address, receivers, broadcast_deadline(self.cfg).seconds)

    def broadcast(self, push: str) -> BroadcastResult | None:
        """Send the full weights with Hugging Face names to all receivers.

        Args:
            push: The identity of the push.

        Returns:
            The result on rank 0, None elsewhere.
        """
        return broadcast_weights(self.engine.module, push, self.sender, rank=self.rank)

    def expose_trial(self) -> Exposed:
        """Expose a few random bytes, with which engines find out whether they can map this rank's memory."""
        return self.exposer.trial()

    def expose(self, push: str, first: int) -> Exposed:
        """Expose buckets of the full weights with Hugging Face names on every rank's device (pushes/expose.py).

        Args:
            push: The identity of the push.
            first: Number of the first bucket: 0, then the one after the last that was exposed.

        Returns:
            This rank's buckets, or its fault.
        """
        return expose_weights(self.engine.module, push, first, self.exposer)

    def export(self, directory: str | Path) -> None:
        """Write a directory that plain transformers loads: configuration, weights and tokenizer.

        With LoRA it also has `adapter/`, which peft loads. Next to it, in directories of their own, are the average of
        the weights (train.ema_beta) and the critic (critic.save_value_network).

        Raises:
            OSError: On every rank if rank 0's disk is full or fails.
        """
        self._export_policy(Path(directory))
        if self.average:
            self.writer.wait_before_change()
            with self.average.in_place_of_weights():
                self._export_policy(Path(f"{directory}{OF_AVERAGE}"))
        if self.auxiliary.critic and self.cfg.critic.save_value_network:
            self.auxiliary.critic.export(Path(f"{directory}{OF_CRITIC}"), rank=self.rank)

    def _export_policy(self, directory: Path) -> None:
        export_policy(
            self.engine.module,
            self.model.hf_config,
            self.cfg.actor.model_name_or_path,
            directory,
            rank=self.rank,
        )

    def save(self, directory: str | Path) -> None:
        """Hold this rank's state as it is and start to write it to `directory`. Training may go on.

        On CPU the next optimizer step waits until it is written.

        The files are complete when `written` has returned on every rank.

        Raises:
            OSError: On every rank if the disk of one refuses to create files.
        """
        counters = {"version": self._version, **self.auxiliary.state()}
        extra_files = self.average.files(self.rank) if self.average else {}
        with self.states.without_host_copies():
            save_rank(
                self._engines(),
                self.writer,
                Path(directory),
                rank=self.rank,
                world_size=self.world_size,
                counters=counters,
                extra_files=extra_files,
            )

    def written(self) -> dict[str, tuple[int, str]]:
        """Wait until what `save` started is on disk. Not collective; may be called from another thread.

        Returns:
            Size in bytes and XXH3-128 of each file of this rank by path.

        Raises:
            OSError: The disk is full or failed.
        """
        return self.writer.written()

    def load(self, directory: str | Path) -> int:
        """Load a checkpoint, which may be of another number of ranks, and return its version.

        Raises:
            ConfigError: The checkpoint is incomplete, or lacks the critic that this run has.
            CheckpointDamaged: The file of a rank is missing.
            PipelineError: The optimizer's state is offloaded.
        """
        self.states.require_on_device("The loading of a checkpoint")
        self._discard_early()
        self.writer.wait_before_change()
        directory = Path(directory)
        counters = load_rank(self._engines(), directory, rank=self.rank, world_size=self.world_size)
        if self.average:
            self.average.load(
                directory, directory / POLICY, rank=self.rank, world_size=self.world_size, saved=counters["world_size"]
            )
        self.auxiliary.restore(counters)
        self._version = counters["version"]
        return self._version

    def offload(self) -> None:
        """Move the optimizer's state and the gradients to host memory (train.colocate_all).

        The weights stay, so scoring, pushes, saving and exports work as before.
        """
        self.states.offload()

    def onload(self) -> None:
        """Move the state back onto the GPU, for a step or to load a checkpoint."""
        self.states.onload()

    def _engines(self) -> dict[str, deepspeed.DeepSpeedEngine]:
        """Return the engines that a checkpoint contains, by the name of their directory."""
        return {POLICY: self.engine, **self.auxiliary.engines()}

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()

    def _update(
        self, rows: Sequence[Row], names: Mapping[str, type], objective: Forward, counts: GlobalCounts, lr: float
    ) -> dict[str, float]:
        """Run forward and backward of all micro batches, then one optimizer step at `lr`.

        Returns:
            loss (the global mean), grad_norm (before clipping) and lr.
        """
        summed = self.runner.accumulate(self.model, self.optimizer, rows, names, objective, last=True)
        return {"loss": counts.unscale(summed), "grad_norm": self._apply(lr), "lr": lr}

    def _apply(self, lr: float) -> float:
        """Take the optimizer's step with the accumulated gradient, and return its norm before clipping."""
        norm = self.runner.apply(self.model, self.optimizer, lr)
        if self.average and math.isfinite(norm):
            self.average.update()
        return norm
