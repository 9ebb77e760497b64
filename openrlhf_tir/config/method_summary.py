"""One sentence about what a configuration trains, for the start of a run and for recipes that were imported."""

from __future__ import annotations

from ..errors import ConfigError
from .environments import without_calls
from .schema import Config
from .sections.conditions import registered_estimator


def method_summary(cfg: Config) -> str:
    """Return estimator, samples, updates, learning rate, KL, tools and mode of a run."""
    estimator = registered_estimator(cfg)
    method = estimator.method if estimator is not None else cfg.algo.advantage.estimator
    rollout = cfg.rollout
    samples = f"{rollout.n_samples_per_prompt} response{'s' * (rollout.n_samples_per_prompt > 1)}"
    kl = "no KL"
    if cfg.algo.kl.init_coef:
        kl = f"KL {cfg.algo.kl.init_coef:g} in the {'loss' if cfg.algo.kl.use_loss else 'reward'}"
    return (
        f"{method}: {samples} to each of {rollout.batch_size} prompts a batch,"
        f" {cfg.updates_per_batch} update{'s' * (cfg.updates_per_batch > 1)} of each batch,"
        f" learning rate {cfg.actor.learning_rate:g}, {kl}, {_tools(cfg)}, mode {cfg.pipeline.mode}"
    )


def _tools(cfg: Config) -> str:
    if cfg.train.agent_func_path:
        return "an agent file"
    if cfg.by_agent:
        return "an external agent"
    try:
        calling = sorted(cfg.environments.keys() - without_calls(cfg))
    except ConfigError:
        return "its environments"  # the rules say what is wrong with them
    return f"tools of {', '.join(calling)}" if calling else "no tool"
