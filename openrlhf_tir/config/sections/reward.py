"""The reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from ..rewards import OWN, REWARDS, RewardInfo
from ..setting import ALLOWED, About, Condition, Fault, rule, setting
from .base import Option, Section

if TYPE_CHECKING:
    from ..schema import Config

REMOTE = "remote"
"""The reward that asks reward.remote_url."""

REDUCTIONS = ("sum", "last", "max")
"""How the rewards of an environment's replies become one; the first is the default."""
WALL_PER_CPU = 12
"""Wall-clock time of one check over its CPU time."""
WALL_NAME = f"{WALL_PER_CPU} * reward.verify_timeout_s"
"""Where the wall-clock time of a check comes from, for messages."""

WITH_MODEL = Condition("with a reward model in reward.model_name_or_path", lambda c: bool(c.reward.model_name_or_path))
WITH_REMOTE = Condition("with reward.remote_url", lambda c: c.reward.remote_url is not None)


class Reward(Section):
    """What a response is worth. Functions: a registered name, 'package.module:function' or 'path/file.py:function'
    (docs/rewards.md)."""

    name: str = setting(
        "math",
        description=(
            "Reward of one response: a registered name or your own function. 'math' is 1.0 if the boxed answer equals"
            " the label, in the required format; 'env' is what the environment gave."
        ),
        short="the reward; see `openrlhf-tir rewards`",
        active_when=Condition(
            "without reward.weights, which name the rewards to add up", lambda c: not c.reward.weights
        ),
        names="user_code",
    )
    weights: dict[str, float] = setting(
        default_factory=dict,
        description=(
            "Weighted sum of rewards in place of reward.name, e.g. env=1.0 format=0.1. The first one decides what"
            " counts as correct."
        ),
        names="user_code_keys",
    )
    remote_url: str | None = setting(
        None,
        description=(
            "OpenRLHF's remote reward, asked by reward 'remote', which it makes the reward: a Python file with"
            " reward_func(queries, prompts, labels), or URLs of reward servers, separated by commas"
            " (docs/openrlhf_files.md)."
        ),
        openrlhf=True,
        names="user_code",
    )
    remote_batch: int = setting(
        16,
        ge=1,
        description=(
            "Responses in one call of a remote reward at most: those of one prompt that wait while the call before is"
            " answered."
        ),
        unit="responses",
        active_when=WITH_REMOTE,
    )
    group: str | None = setting(
        None,
        description=(
            "Group reward: replaces the rewards of a prompt's trajectories once all of them are known. Registered: otc."
        ),
        names="user_code",
    )
    verify_timeout_s: float = setting(
        5.0,
        gt=0,
        description=(
            "CPU time of one check, and of one call of your own function. An answer whose symbolic check uses it up is"
            " not equal. One that takes twelve times as long by the clock without using it up fails its sample: a"
            " starved host is not a wrong answer."
        ),
        unit="CPU seconds",
    )
    workers: int = setting(
        1,
        ge=1,
        description=(
            "Processes per rollout actor that check answers and run your own functions. As many execute"
            " train.agent_func_path, each many samples at a time."
        ),
    )
    format: Literal["think_answer", "answer", "boxed"] = setting(
        "answer",
        description="Tags that the response must have. 'think_answer' is ZeroTIR's, 'answer' its loose form.",
        active_when=Condition(
            "with a reward that looks at the response's tags (reward.name, reward.weights)",
            lambda c: any(reward.checks_format for reward in c.reward.used_info),
        ),
    )
    options: dict[str, Option] = setting(
        default_factory=dict,
        description=(
            "Options of the reward, e.g. zerotir's bonuses, or reduce = last for the rewards of an environment's"
            " replies; with reward.weights one table per reward. Registered rewards refuse unknown keys."
        ),
        active_when=Condition(
            "with a reward that has options (reward.name, reward.weights)",
            lambda c: any(reward.takes_options for reward in c.reward.used_info),
        ),
        names="user_code_keys",
    )
    group_options: dict[str, Option] = setting(
        default_factory=dict,
        description="Options of the group reward.",
        active_when=Condition("with reward.group", lambda c: c.reward.group is not None),
    )
    model_name_or_path: str | None = setting(
        None,
        description="HF sequence classifier of one label for the reward 'model'. It must have the policy's vocabulary.",
        names="input_files",
    )
    model_replicas: int = setting(
        1,
        ge=1,
        description="Processes per node that each hold the reward model, on a GPU of their own if there are any.",
        active_when=WITH_MODEL,
        resume=ALLOWED,
        openrlhf="reward.num_gpus_per_node",
    )
    num_nodes: int = setting(
        1,
        ge=1,
        description="Nodes that each run model_replicas processes.",
        active_when=WITH_MODEL,
        resume=ALLOWED,
        openrlhf=True,
    )
    normalize_enable: bool = setting(
        False,
        description="Subtract the mean from the reward model's scores and divide by the std that its config.json has.",
        openrlhf=True,
    )
    overlong_buffer_len: float | None = setting(
        None,
        gt=0,
        description=(
            "DAPO's overlong penalty: a response that ends within this many tokens of rollout.max_new_tokens is"
            " punished, the more the longer it is. Unset: no penalty."
        ),
        unit="tokens",
        openrlhf=True,
    )
    overlong_penalty_factor: float = setting(
        1.0,
        gt=0,
        description="Penalty of a response that fills rollout.max_new_tokens.",
        active_when=Condition("with reward.overlong_buffer_len", lambda c: c.reward.overlong_buffer_len is not None),
        openrlhf=True,
    )
    stop_properly_penalty_coef: float | None = setting(
        None,
        le=1,
        description=(
            "ProRL's penalty: the reward of a truncated response is multiplied by this. Below 0: this value is its"
            " reward. Unset: no penalty."
        ),
        openrlhf=True,
    )
    clip_range: tuple[float, float] | None = setting(
        None, description="Bounds of a reward, applied after the penalties. Unset: none.", openrlhf=True
    )

    def options_of(self, name: str) -> dict[str, Option]:
        """Return the options of one reward: all of them, or with `weights` its own table."""
        if not self.weights:
            return self.options
        table = self.options.get(name, {})
        return table if isinstance(table, dict) else {}

    @property
    def env_reduce(self) -> str:
        """How the rewards of an environment's replies become one: option `reduce` of reward 'env'."""
        return str(self.options_of("env").get("reduce", REDUCTIONS[0]))

    @property
    def verify_deadline_s(self) -> float:
        """Wall-clock seconds of one check: its CPU time on a host that runs twelve times as much as it has cores."""
        return WALL_PER_CPU * self.verify_timeout_s

    @property
    def replicas(self) -> int:
        """Processes on all nodes that hold the reward model; 0 without one."""
        return self.num_nodes * self.model_replicas if self.model_name_or_path else 0

    @property
    def used(self) -> dict[str, float]:
        """The rewards that are added up, with their weights."""
        return self.weights or {self.name: 1.0}

    @property
    def used_info(self) -> list[RewardInfo]:
        """What is known of each of the rewards that are added up."""
        return [REWARDS.get(name, OWN) for name in self.used]

    @model_validator(mode="before")
    @classmethod
    def _remote_url_chooses_the_reward(cls, table: Any) -> Any:
        """Make 'remote' the reward if its URL is given and no reward is named, as OpenRLHF does."""
        if isinstance(table, dict) and table.get("remote_url") and not table.get("name") and not table.get("weights"):
            return table | {"name": REMOTE}
        return table

    @model_validator(mode="after")
    def _weights_have_tables(self) -> Reward:
        if self.weights and not any(self.weights.values()):
            raise ValueError(
                f"reward.weights = {self.weights} are all 0, so every reward would be. Give one another weight."
            )
        if self.weights and (strange := sorted(set(self.options) - set(self.weights))):
            raise ValueError(
                f"reward.options.{strange[0]} belongs to no reward of reward.weights ({', '.join(self.weights)}). "
                f"With weights, options are a table per reward: [reward.options.{next(iter(self.weights))}]."
            )
        if "env" in self.used and self.env_reduce not in REDUCTIONS:
            raise ValueError(
                f"reward.options has reduce = {self.env_reduce!r}, which the reward 'env' does not know. Use"
                f" {', '.join(REDUCTIONS[:-1])} or {REDUCTIONS[-1]}."
            )
        return self


def _sections(c: Config) -> Iterator[tuple[str, Any]]:
    """Yield dotted name and section of [reward] and of each [envs.NAME.reward], whose unset settings are None."""
    yield "reward", c.reward
    for name, environment in c.envs.items():
        yield f"envs.{name}.reward", environment.reward


@rule("reward.remote_url")
def remote_reward_and_its_url_go_together(c: Config) -> Iterator[Fault]:
    environments = c.resolved_environments.values()
    for environment in environments:
        if REMOTE in environment.reward.used and not environment.reward.remote_url:
            name = f"{environment.prefix}reward.remote_url"
            yield About(
                name,
                f"Reward 'remote' needs {name}, which is not set."
                " Give a Python file with a reward_func, or the URL of a reward server.",
            )
    for section, own in _sections(c):
        url_or_file = own.remote_url
        if not url_or_file:
            continue
        name = f"{section}.remote_url"
        yield from _not_a_url(name, url_or_file)
        rewards = [
            environment.reward
            for environment in environments
            if environment.reward.remote_url == url_or_file and section in ("reward", f"{environment.prefix}reward")
        ]
        if environments and not any(REMOTE in reward.used for reward in rewards):
            used = dict.fromkeys(reward_name for reward in rewards or [c.reward] for reward_name in reward.used)
            yield About(
                name,
                f"{name} = {url_or_file!r} is only used by reward 'remote', and the reward is {', '.join(used)}. Leave"
                f" {section}.name out, set it to 'remote', or add remote to {section}.weights.",
            )


def _not_a_url(name: str, url_or_file: str) -> Iterator[Fault]:
    """Yield each part of the setting `name` that is neither a file with a reward_func nor a URL."""
    if url_or_file.endswith(":reward_func"):
        return
    for url in (part.strip() for part in url_or_file.split(",") if part.strip()):
        if not url.startswith(("http://", "https://")):
            yield About(
                name,
                f"{name} has {url!r}, which is neither a Python file (path/file.py) nor the URL of a reward server."
                " Write http://host:port/path.",
            )


@rule("reward.model_name_or_path")
def reward_model_is_loaded_and_used(c: Config) -> Iterator[Fault]:
    environments = c.resolved_environments.values()
    used = dict.fromkeys(name for environment in environments for name in environment.reward.used)
    model = c.reward.model_name_or_path
    if "model" in used and not model:
        yield (
            "The reward 'model' needs a reward model."
            " Set reward.model_name_or_path to a HF sequence classifier of one label."
        )
    if model and environments and "model" not in used:
        yield (
            f"reward.model_name_or_path = {model!r} is set, but no reward uses it: the reward is "
            f"{', '.join(used)}. Set reward.name to 'model', or give 'model' a weight in reward.weights."
        )
    if c.reward.normalize_enable and not model:
        yield About(
            "reward.normalize_enable",
            "reward.normalize_enable is about the scores of a reward model, and reward.model_name_or_path is unset."
            " Set that, or leave it out.",
        )


@rule("reward.overlong_buffer_len")
def overlong_buffer_is_a_part_of_the_response(c: Config) -> Iterator[Fault]:
    for section, own in _sections(c):
        buffer = own.overlong_buffer_len
        if buffer is not None and buffer > c.rollout.max_new_tokens:
            name = f"{section}.overlong_buffer_len"
            yield About(
                name,
                f"{name} = {buffer:g} is more than rollout.max_new_tokens = {c.rollout.max_new_tokens}:"
                " every response would be overlong. Make it a part of it, e.g. a quarter.",
            )


@rule("reward.clip_range")
def clip_range_is_a_range(c: Config) -> Iterator[Fault]:
    for section, own in _sections(c):
        bounds = own.clip_range
        if bounds is not None and not bounds[0] < bounds[1]:
            name = f"{section}.clip_range"
            yield About(name, f"{name} = {bounds} is not a range. Use low < high, e.g. -10 10.")
