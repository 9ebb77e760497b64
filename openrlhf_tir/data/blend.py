"""Turn the data sets and environments of a run into the lanes of its PromptStream, and its curriculum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..config import Config
from ..config.environments import Environment, entry_of
from ..errors import DataError
from .curriculum import EXPLORE, HALF_LIFE, Settings
from .prompts import PromptSet
from .stream import PromptLane


def lanes_of(
    prompts: PromptSet, environments: Mapping[str, Environment], probs: Sequence[float] | None
) -> list[PromptLane]:
    """Return one lane per environment if environments have shares, and per data set if these have probabilities.

    Prompts of an environment with share 0 are in no lane.

    Raises:
        DataError: An environment with a share, or a data set with a probability, has no prompt.
    """
    shares = {name: environment.share for name, environment in environments.items() if environment.share is not None}
    names, env_of = prompts.envs() if shares else ([""], np.zeros(len(prompts), int))
    dataset_of = np.asarray(prompts.dataset_of) if probs else np.zeros(len(prompts), int)
    members: dict[tuple[str, int], np.ndarray] = {}
    for number, name in enumerate(names):
        for dataset in range(len(probs or [1.0])):
            indices = np.flatnonzero((env_of == number) & (dataset_of == dataset))
            if len(indices):
                members[name, dataset] = indices
    for name, share in shares.items():
        if share and not any(env == name for env, _ in members):
            raise DataError(
                f"envs.{name}.share = {share:g}, but no prompt that can be used is of env {name!r}. Give rows with that"
                " name, or the environment no share."
            )
    for dataset, prob in enumerate(probs or ()):
        if not any(other == dataset for _, other in members):
            raise DataError(
                f"data.prompt_probs gives {prob:g} to data set {dataset + 1}, of which no prompt can be used."
                " Leave it out, or correct it."
            )
    lanes = [
        PromptLane(indices, env, shares.get(env, 0.0) if shares else 1.0, dataset, probs[dataset] if probs else 1.0)
        for (env, dataset), indices in sorted(members.items())
    ]
    return [lane for lane in lanes if lane.share > 0]


def curriculum_of(cfg: Config, prompts: PromptSet) -> Settings | None:
    """Return the settings of data.curriculum; None if it is off.

    A group is kept as its environment's accuracy filter says. Without that filter it is kept if its samples differ,
    because only then it has an advantage.
    """
    if cfg.data.curriculum == "off":
        return None
    ranges = {
        name: environment.filter.accuracy_range if "accuracy" in environment.filter.order else (0.0, 1.0)
        for name, environment in cfg.environments.items()
    }
    names, numbers = prompts.envs()
    of_env = [entry_of(ranges, name) for name in names]
    return Settings(
        cfg.rollout.n_samples_per_prompt,
        EXPLORE,
        HALF_LIFE,
        [of_env[number] for number in numbers],
    )
