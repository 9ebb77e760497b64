"""Conditions under which settings have an effect, where several sections share one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..setting import Condition

if TYPE_CHECKING:
    from ...algorithms.advantages import Estimator
    from ..schema import Config


def registered_estimator(c: Config) -> Estimator | None:
    """Return the estimator of algo.advantage.estimator with its properties; None for a user's own.

    Reading a configuration does not run the user's code. Rules that need the properties of an estimator are therefore
    declared with `rule(..., reads_estimator=True)` and use `estimator_of`.
    """
    from ...algorithms.advantages import ESTIMATORS  # numpy; `--help` does not need it

    return ESTIMATORS.get(c.algo.advantage.estimator)


def estimator_of(c: Config) -> Estimator:
    """Return the estimator of algo.advantage.estimator with its properties. A user's own is loaded.

    Raises:
        ConfigError: It cannot be loaded.
    """
    from ...algorithms.advantages import get_estimator

    return get_estimator(c.algo.advantage.estimator)


def may_have_critic(c: Config) -> bool:
    """Return True if the estimator has a critic, or is a user's own, which is not loaded for that."""
    estimator = registered_estimator(c)
    return estimator is None or estimator.critic


def is_user_code(name: str) -> bool:
    """Return True for a name like "path/file.py:function" or "package.module:function"."""
    return ":" in name


WITH_CRITIC = Condition("with an estimator that has a critic (algo.advantage.estimator = gae)", may_have_critic)
TURN_LOOP = Condition(
    "while no agent writes the responses (rollout.agent = turns, train.agent_func_path unset)", lambda c: not c.by_agent
)
WITH_VLLM = Condition("with rollout.engine = vllm", lambda c: c.rollout.engine != "torch")
