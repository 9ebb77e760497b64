"""Turn groups of trajectories into the rows that this rank trains, with their advantages. numpy only.

    TrainBatch + groups -> batch_samples: raw advantages per token -> local_moments, added up over the ranks
                        -> to_rows: whitened advantages, one Row per sample

Advantages and their whitening use the whole batch, however many updates it is cut into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..algorithms.advantages import AdvantageInputs, Estimator
from ..algorithms.advantages.gae import token_rewards_by_turn
from ..algorithms.advantages.turns import per_turn
from ..algorithms.advantages.whiten import mean_and_scale, moments, whiten
from ..config import Config
from ..config.environments import entry_of
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
"""The fields of a row that every loss needs, per token.

trained: weight of the token in the loss; 0 if it is not trained. sampled: 1 if the policy wrote the token, so that it
has a rollout log-prob and a version. lag: learner version minus the version of the weights that sampled the token; 0
where not sampled."""
OLD_LOGPROBS = "old_logprobs"
"""One more field: log-probs of the policy at the start of the batch. It exists if actor.pi_old is "learner" and the
batch makes several updates."""
REFERENCE_LOGPROBS = "reference"
"""One more field: log-probs of the reference model. It exists with algo.kl.use_loss."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One chain of tokens before whitening: a trajectory, or a branch of one. T is the length of its response.

    Attributes:
        key: (b, i, c): chain c of the i-th valid trajectory of group b of the batch.
        trajectory: The chain.
        trained: [T] bool: the tokens that are trained unless `masked`.
        advantages: [T] float64, not whitened. With a critic these are rewards until the critic has evaluated them.
        masked: True if its trajectory counts in the group's statistics but is not trained.
        base_ppl: Perplexity of its policy tokens under the reference model; 1.0 until the reference has scored it.
        model_fields: Further fields, [T] each, that a model computed before the batch's first update.
    """

    key: tuple[int, int, int]
    trajectory: Trajectory
    trained: np.ndarray
    advantages: np.ndarray
    masked: bool = False
    base_ppl: float = 1.0
    model_fields: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """True if it has a token in the loss."""
        return bool(self.trained.any()) and not self.masked

    def with_fields(self, **fields: np.ndarray) -> Sample:
        """Return the sample with these `model_fields` in addition."""
        return replace(self, model_fields={**self.model_fields, **fields})


def trained_mask(trajectory: Trajectory, env_mask: bool) -> np.ndarray:
    """Return which tokens of a response are trained, [T] bool.

    With `env_mask` these are the tokens that the model wrote, without it the environment's tokens as well.
    """
    is_model = trajectory.is_model
    return is_model if env_mask else np.ones_like(is_model)


def masks_environment(cfg: Config, version: int) -> bool:
    """Return True if a batch that begins at `version` leaves the environment's tokens out of the loss."""
    masked_from = cfg.train.env_mask_from
    return masked_from != "never" and version >= masked_from


def batch_samples(batch: TrainBatch, groups: Sequence[Group], cfg: Config, estimator: Estimator) -> list[Sample]:
    """Return the samples of all ranks, in batch order. `share` selects those of one rank.

    The statistics of a group use every valid trajectory. A trajectory with branches counts once: the estimator sees the
    tokens of all its chains as one mask, one chain after the other, its main chain last.

    Args:
        batch: The metadata.
        groups: The payloads; groups[b] belongs to batch.items[b].
        cfg: The configuration.
        estimator: The advantage estimator.

    Raises:
        DataError: A payload does not match its metadata. Training on it would pair rewards with other tokens.
        MethodBroken: The user's estimator failed.
    """
    if len(groups) != len(batch.items):
        raise DataError(
            f"step {batch.step}: {len(groups)} payloads for {len(batch.items)} groups."
            " Pass groups[b] for batch.items[b]."
        )
    samples = []
    batch_rewards = np.array([r for item in batch.items for r in item.meta.rewards], np.float64)
    env_mask = masks_environment(cfg, batch.step)
    for b, (item, group) in enumerate(zip(batch.items, groups, strict=True)):
        valid = group.valid
        if group.key != item.meta.key or [t.index for t in valid] != list(item.meta.index):
            raise DataError(
                f"group {item.meta.key}, valid trajectories {item.meta.index}: the payload is of group {group.key},"
                f" {[t.index for t in valid]}. Pass groups[b] for batch.items[b]."
            )
        masks = [np.concatenate([trained_mask(s, env_mask) for s in t.sequences]) for t in valid]
        rewards = np.asarray(item.meta.rewards, np.float64)
        inputs = AdvantageInputs(rewards, masks, cfg.algo.advantage.gamma, cfg.algo.advantage.options, batch_rewards)
        if cfg.algo.advantage.credit == "turn":
            # The configuration refuses this credit with agents, so no trajectory here has branches.
            weight = entry_of(cfg.environments, group.task.env).reward.weights.get("env", 1.0)
            turns = [t.turns for t in valid]
            earned = [t.earned(weight) for t in valid]
            if estimator.critic:
                advantages = token_rewards_by_turn(inputs, turns, earned)
            else:
                advantages = per_turn(estimator.fn, inputs, turns, earned)
        else:
            advantages = estimator.fn(inputs)
        for i, (trajectory, mask, advantage) in enumerate(zip(valid, masks, advantages, strict=True)):
            samples += _chains((b, i), trajectory, mask, advantage)
    return samples


def _chains(key: tuple[int, int], trajectory: Trajectory, trained: np.ndarray, advantages: np.ndarray) -> list[Sample]:
    """Return one sample for each chain; `trained` and `advantages` cover all chains, one after the other."""
    ends = np.cumsum([s.response_tokens for s in trajectory.sequences])[:-1]
    parts = zip(trajectory.sequences, np.split(trained, ends), np.split(advantages, ends), strict=True)
    return [
        Sample((*key, c), chain, mask, advantage, bool(trajectory.masked))
        for c, (chain, mask, advantage) in enumerate(parts)
    ]


def share(samples: Sequence[Sample], rank_of: RankOf, rank: int) -> list[Sample]:
    """Return the samples that `rank` trains, in batch order."""
    return [s for s in samples if rank_of.get(s.key[:2]) == rank]


def local_moments(samples: Sequence[Sample]) -> np.ndarray:
    """Return this rank's contribution to the whitening statistics, [3] float64. Masked samples are included."""
    return moments((s.advantages for s in samples), (s.trained for s in samples))


def to_rows(
    samples: Sequence[Sample],
    total: np.ndarray,
    version: int,
    cfg: Config,
    estimator: Estimator,
) -> list[Row]:
    """Return a row for each sample that has a trained token and is not masked.

    Args:
        samples: The samples of this rank.
        total: `local_moments`, added up over all ranks.
        version: The learner's version at this update.
        cfg: The configuration.
        estimator: The advantage estimator.
    """
    mean, scale = 0.0, 1.0
    if estimator.whiten:
        mean, scale = mean_and_scale(total, no_std_norm=cfg.algo.advantage.no_std_norm)
    return [_row(s, whiten(s.advantages, s.trained, mean, scale), version) for s in samples if s.counts]


def rows_of(
    samples: Sequence[Sample], rows: Sequence[Row], parts: Sequence[Sequence[tuple[int, int]]]
) -> list[list[Row]]:
    """Distribute the `rows` that `to_rows` made of `samples` over `parts`, by the part that their trajectory is in.

    Without parts, all rows are returned as one part.
    """
    keyed = list(zip([s.key[:2] for s in samples if s.counts], rows, strict=True))
    return [[row for key, row in keyed if key in part] for part in map(set, parts)] or [list(rows)]


def _row(sample: Sample, advantages: np.ndarray, version: int) -> Row:
    trajectory = sample.trajectory
    sampled = trajectory.is_model
    per_token = {
        "advantages": advantages,
        "trained": sample.trained,
        "sampled": sampled,
        "rollout_logprobs": trajectory.logprobs,
        "lag": np.where(sampled, version - trajectory.versions, 0),
    }
    typed: dict[str, np.ndarray] = {name: values.astype(FIELDS[name]) for name, values in per_token.items()}
    return replace(build_row(trajectory, typed | as_float32(sample.model_fields)), experts=trajectory.experts)


def as_float32(fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the fields with their values converted to float32."""
    return {name: values.astype(np.float32) for name, values in fields.items()}


def build_row(trajectory: Trajectory, per_token: Mapping[str, np.ndarray]) -> Row:
    """Return a row of prompt and response.

    Response token 0 is predicted at position len(prompt) - 1, where position 0 is the first of the [L-1] layout. So
    each field gets len(prompt) - 1 zeros in front.

    Args:
        trajectory: One chain of tokens.
        per_token: Fields of the response, [T] each. They keep their dtype.
    """
    prompt = trajectory.prompt_ids
    fields = {
        name: np.concatenate([np.zeros(len(prompt) - 1, values.dtype), values]) for name, values in per_token.items()
    }
    return Row(np.concatenate([prompt, trajectory.token_ids]), fields, prompt_tokens=len(prompt))


def responses(samples: Sequence[Sample], per_row: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Cut the response's part [T] out of the values [L-1] of each sample's row."""
    return [row_values[len(s.trajectory.prompt_ids) - 1 :] for s, row_values in zip(samples, per_row, strict=True)]
