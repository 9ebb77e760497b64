"""Checks of what the method names: it exists, can be called as it will be, and takes its options."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from ... import filters, rewards
from ...algorithms.advantages import get_estimator
from ...algorithms.losses.own import POLICY_LOSS
from ...config import Config, Reward, own_files, rules
from ...config.environments import Environment, in_section
from ...config.integrations.reward_signatures import UnknownSignature, convention_of
from ...config.problems import Problems
from ...config.recipe_paths import RULE
from ...data import templates
from ...errors import ConfigError
from ...filters.samples import SAMPLE_FILTER
from ...rewards.context import RewardContext
from ...rollout import protocols
from ...types import Task, Trajectory
from ...user_code import plugins
from .chat import check_chat
from .envs import environments_of

log = logging.getLogger(__name__)


def check_names(cfg: Config, problems: Problems) -> None:
    """Check that everything that the method names exists, can be called as it will be, and takes its options.

    Mistakes are added to `problems`.
    """
    for e in environments_of(cfg):
        check_names_of_env(cfg, e, problems)
    with problems.caught(code="method"):
        get_estimator(cfg.algo.advantage.estimator)
        problems.add(rules.violations_of_own_estimator(cfg))
    for _, name in openrlhf_files(cfg):
        if is_missing(name):
            problems.add(f"{name.rpartition(':')[0]} does not exist. {RULE}", code="no_file")
    with problems.caught(code="user_code"):
        if cfg.actor.own_loss is not None:
            plugins.load(POLICY_LOSS, cfg.actor.own_loss)


def check_names_of_env(cfg: Config, e: Environment, problems: Problems) -> None:
    """Check protocol, rewards, filters, class and template of one environment. Messages name its section."""

    def caught() -> AbstractContextManager[None]:
        return problems.caught(lambda line: in_section(line, e.section), code="method")

    with caught():
        protocols.check(e.env)
        check_chat(cfg, e)
    for name in e.reward.weights or [e.reward.name]:
        with caught():
            check_reward(e.reward, name)
    with caught():
        filters.filters_of(e.filter)
    places = (
        (e.reward.group, rewards.GROUP_REWARD),
        (e.filter.sample, SAMPLE_FILTER),
        (e.env.file, plugins.ENVIRONMENT),
    )
    for named, place in places:
        with caught():
            if named is not None:
                plugins.load(place, named)
    with caught():
        templates.resolve(e.input_template)


def check_reward(cfg: Reward, name: str) -> None:
    """Check that a reward can be loaded and takes its options.

    A registered reward is called with an empty response: it reads its options before the response.

    Raises:
        ConfigError: It cannot be loaded, or an option is wrong.
    """
    function = rewards.load(name)
    if plugins.is_own(rewards.REWARD, name):
        try:
            convention_of(function, cfg.options_of(name).keys())
        except UnknownSignature as error:
            raise ConfigError(f"reward.name = {name!r}: {plugins.location(function)}: {error}.") from None
        return
    try:
        context = RewardContext(cfg, options=cfg.options_of(name))
        rewards.call_now(function, Trajectory(0, np.zeros(0, np.int32)), Task("", ""), context)
    except ConfigError:
        raise
    except Exception as error:  # Some rewards refuse an empty label; only what they say about options counts here.
        log.debug("reward %s refused an empty response: %s", name, error)


def own_code(cfg: Config) -> list[str]:
    """Return which of the user's files the run will work with."""
    files = own_files.files_of(cfg)
    if not files:
        return []
    return [f"own code: {', '.join(map(str, files))}; a run works with copies in {cfg.run_dir / own_files.OWN}"]


def conventions_of(cfg: Config) -> list[str]:
    """Return in whose form each of the user's rewards is written, which decides how it is called."""
    facts = []
    for e in environments_of(cfg):
        for name in filter(lambda name: plugins.is_own(rewards.REWARD, name), e.reward.used):
            try:
                convention = convention_of(rewards.load(name))
            except ConfigError:
                continue  # reported by check_names_of_env
            called = "" if convention.name == "ours" else ", called once for each response"
            facts.append(in_section(f"reward.name {name}: a function of {convention.described}{called}", e.section))
    return facts


def openrlhf_files(cfg: Config) -> list[tuple[str, str]]:
    """Return place and name of each of the user's files in OpenRLHF's form.

    They import torch and more, so they are loaded in their own process.
    """
    agent = cfg.train.agent_func_path
    files = [("openrlhf_tir.rollout.protocols.agent_file.place:AGENT", agent)] if agent else []
    remotes = dict.fromkeys(e.reward.remote_url or "" for e in environments_of(cfg))
    place = "openrlhf_tir.rewards.remote.file:REWARD_FUNC"
    return [*files, *((place, remote) for remote in remotes if remote.endswith(":reward_func"))]


def is_missing(name: str) -> bool:
    file, _, _ = name.rpartition(":")
    return file.endswith(".py") and not Path(file).is_file()
