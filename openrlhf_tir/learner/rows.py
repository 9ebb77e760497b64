"""Rows: groups of trajectories -> the rows this rank trains, with their advantages. numpy only.

TrainBatch + groups -> advantages per token (raw) -> [ranks add up their moments] -> whitened -> Row

Advantages and their whitening are of the whole batch, whatever number of updates it is cut into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..algorithms.advantages import AdvantageInputs, Estimator
from ..algorithms.advantages.gae import by_turn
from ..algorithms.advantages.turns import per_turn
from ..algorithms.advantages.whiten import mean_and_scale, moments, whiten
from ..config import Config
from ..config.environments import one
from ..errors import DataError
from ..types import Group, RankOf, TrainBatch, Trajectory
from .packing import Row

FIELDS: dict[str, type] = {
    "advantages": np.float32,
    "trained": np.float32,
    "sampled": np.float32,
    "rollout_logprobs": np.float32,
    "lag": np.int32,
}
"""Per-token fields of a row. trained: weight in the loss, 0: not in it; sampled: written by the policy, so that its
rollout log-prob and version mean something; lag: learner version - version of the weights that sampled it, 0 where not
sampled."""
OLD = "old_logprobs"
"""One more, where pi_old is the learner's own policy at the start of the batch and the batch makes several updates."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One chain of tokens before whitening: a trajectory, or a branch of one. trained [T] bool, advantages [T] float64
    (rewards, where a critic is to judge them). facts: what the models beside the policy say of it (roles/beside.py),
    [T] each, 0 where they say nothing.

    key: (b, i, c), chain c of the i-th valid trajectory of the batch's group b. masked: of its trajectory; it counts in
    the statistics and is not trained.
    """

    key: tuple[int, int, int]
    trajectory: Trajectory
    trained: np.ndarray
    advantages: np.ndarray
    masked: bool = False
    base_ppl: float = 1.0
    """Perplexity under the reference model, once that was asked."""
    facts: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether it has a token in the loss."""
        return bool(self.trained.any()) and not self.masked


def trained_mask(trajectory: Trajectory, env_mask: bool) -> np.ndarray:
    """[T] bool. With `env_mask` only what the model wrote; without, tool output too."""
    is_model = trajectory.is_model
    return is_model if env_mask else np.ones_like(is_model)


def env_masked(cfg: Config, version: int) -> bool:
    """Whether tool output is left out of the loss of a batch that begins at `version`."""
    return cfg.train.env_mask and version >= cfg.train.env_mask_from


def batch_samples(batch: TrainBatch, groups: Sequence[Group], cfg: Config, estimator: Estimator) -> list[Sample]:
    """The samples of all ranks, in batch order; `share` says which are whose. Group statistics see every valid
    trajectory.

    A trajectory with branches counts once: an estimator sees the tokens of all of its chains as one mask, end to end,
    its own last.
    Raises DataError when a payload does not fit its metadata: training on it would pair rewards with other tokens.
    """
    if len(groups) != len(batch.items):
        raise DataError(
            f"step {batch.step}: {len(groups)} payloads for {len(batch.items)} groups."
            " Pass groups[b] for batch.items[b]."
        )
    samples = []
    of_all = np.array([r for item in batch.items for r in item.meta.rewards], np.float64)
    masked = env_masked(cfg, batch.step)
    for b, (item, group) in enumerate(zip(batch.items, groups, strict=True)):
        valid = group.valid
        if group.key != item.meta.key or [t.index for t in valid] != list(item.meta.index):
            raise DataError(
                f"group {item.meta.key}, valid trajectories {item.meta.index}: the payload is of group {group.key},"
                f" {[t.index for t in valid]}. Pass groups[b] for batch.items[b]."
            )
        masks = [np.concatenate([trained_mask(s, masked) for s in t.sequences]) for t in valid]
        rewards = np.asarray(item.meta.rewards, np.float64)
        inputs = AdvantageInputs(rewards, masks, cfg.algo.advantage.gamma, cfg.algo.advantage.options, of_all)
        if cfg.algo.advantage.credit == "turn":  # refused with agents, which alone have branches
            weight = one(cfg.environments, group.task.env).reward.weights.get("env", 1.0)
            turns, earned = [t.turns for t in valid], [t.earned(weight) for t in valid]
            advantages = (
                by_turn(inputs, turns, earned) if estimator.critic else per_turn(estimator.fn, inputs, turns, earned)
            )
        else:
            advantages = estimator.fn(inputs)
        for i, (t, m, a) in enumerate(zip(valid, masks, advantages, strict=True)):
            samples += _chains((b, i), t, m, a)
    return samples


def _chains(key: tuple[int, int], trajectory: Trajectory, trained: np.ndarray, advantages: np.ndarray) -> list[Sample]:
    """One sample for each chain of tokens; `trained` and `advantages` are of all of them, end to end."""
    cuts = np.cumsum([s.response_tokens for s in trajectory.sequences])[:-1]
    parts = zip(trajectory.sequences, np.split(trained, cuts), np.split(advantages, cuts), strict=True)
    return [Sample((*key, c), s, m, a, bool(trajectory.masked)) for c, (s, m, a) in enumerate(parts)]


def share(samples: Sequence[Sample], rank_of: RankOf, rank: int) -> list[Sample]:
    """Those that `rank` trains, in batch order."""
    return [s for s in samples if rank_of.get(s.key[:2]) == rank]


def local_moments(samples: Sequence[Sample]) -> np.ndarray:
    """[3] float64, this rank's share of the whitening statistics."""
    return moments((s.advantages for s in samples), (s.trained for s in samples))


def to_rows(
    samples: Sequence[Sample],
    total: np.ndarray,
    version: int,
    cfg: Config,
    estimator: Estimator,
    old: Mapping[tuple[int, int, int], np.ndarray] | None = None,
) -> list[Row]:
    """Rows of the samples that have a trained token and are not masked. `total`: the moments of all ranks, masked
    samples included.

    `version`: the learner's at this update; `old`: key -> [L-1] float32, the field OLD.
    """
    mean, scale = mean_and_scale(total, no_std_norm=cfg.algo.advantage.no_std_norm) if estimator.whiten else (0.0, 1.0)
    coef = cfg.train.env_coef
    return [_row(s, whiten(s.advantages, s.trained, mean, scale), version, coef, old) for s in samples if s.counts]


def rows_of(
    samples: Sequence[Sample], rows: Sequence[Row], parts: Sequence[Sequence[tuple[int, int]]]
) -> list[list[Row]]:
    """The `rows` that `to_rows` made of `samples`, by the part that their trajectory is in; all of them as one, where
    there are no parts."""
    keyed = list(zip([s.key[:2] for s in samples if s.counts], rows, strict=True))
    return [[row for key, row in keyed if key in part] for part in map(set, parts)] or [list(rows)]


def _row(
    sample: Sample,
    advantages: np.ndarray,
    version: int,
    env_coef: float,
    old: Mapping[tuple[int, int, int], np.ndarray] | None,
) -> Row:
    trajectory = sample.trajectory
    sampled = trajectory.is_model
    per_token = {
        "advantages": advantages,
        "trained": np.where(sampled, 1.0, env_coef) * sample.trained,
        "sampled": sampled,
        "rollout_logprobs": trajectory.logprobs,
        "lag": np.where(sampled, version - trajectory.versions, 0),
    }
    row = laid_out(
        trajectory, {name: values.astype(FIELDS[name]) for name, values in per_token.items()} | as_float32(sample.facts)
    )
    return row if old is None else replace(row, fields={**row.fields, OLD: old[sample.key]})


def as_float32(facts: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values.astype(np.float32) for name, values in facts.items()}


def laid_out(trajectory: Trajectory, per_token: Mapping[str, np.ndarray]) -> Row:
    """A row of prompt and response; `per_token`: [T] of the response, laid out as fields [L-1] of their types.

    Response token 0 is predicted at position len(prompt) - 1, the first of the [L-1] layout being position 0."""
    prompt = trajectory.prompt_ids
    fields = {
        name: np.concatenate([np.zeros(len(prompt) - 1, values.dtype), values]) for name, values in per_token.items()
    }
    return Row(np.concatenate([prompt, trajectory.token_ids]), fields, prompt_tokens=len(prompt))
