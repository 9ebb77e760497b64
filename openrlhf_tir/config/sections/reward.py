"""The reward."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from .base import Option, Section

REMOTE = "remote"
"""The reward that asks reward.remote_url."""


class Reward(Section):
    """What a response is worth. Functions: a registered name, 'package.module:function' or 'path/file.py:function'
    (docs/rewards.md)."""

    name: str = Field(
        "math",
        description=(
            "reward of one response: registered, or one's own; 'math' is 1.0 iff the boxed answer equals the label, in"
            " the required format, 'env' what the environment gave"
        ),
    )
    weights: dict[str, float] = Field(
        default_factory=dict,
        description=(
            "a weighted sum of rewards instead of reward.name, e.g. env=1.0 format=0.1;"
            " the first decides what counts as correct"
        ),
    )
    remote_url: str | None = Field(
        None,
        description=(
            "OpenRLHF's remote reward, which reward 'remote' asks and which makes it the reward: a Python file with"
            " reward_func(queries, prompts, labels), or URLs of reward servers, separated by commas"
            " (docs/openrlhf_files.md)"
        ),
    )
    remote_timeout_s: float = Field(
        180.0, gt=0, description="deadline of one call of a remote reward; missed for good: its samples are failed"
    )
    remote_retries: int = Field(
        4,
        ge=0,
        description=(
            "how often a reward server that does not answer, or answers that it is full or broken, is asked again,"
            " after growing pauses"
        ),
    )
    remote_batch: int = Field(
        16,
        ge=1,
        description=(
            "responses in one call of a remote reward, at most:"
            " those of one prompt that wait while the call before is answered"
        ),
    )
    group: str | None = Field(
        None,
        description=(
            "group reward: replaces the rewards of a prompt's trajectories after all of them are known; registered: otc"
        ),
    )
    env_reduce: Literal["sum", "last", "max"] = Field(
        "sum", description="how the rewards of an environment's replies become one (reward 'env')"
    )
    verify_timeout_s: float = Field(
        5.0,
        gt=0,
        description=(
            "CPU seconds of one check, and of one call of a function of one's own;"
            " an answer whose symbolic check uses them up is not equal: data"
        ),
    )
    verify_deadline_s: float = Field(
        60.0,
        gt=0,
        description=(
            "what is not over by then, though it had CPU left to use,"
            " fails its sample (a starved host is no wrong answer)"
        ),
    )
    workers: int = Field(
        1, ge=1, description="processes that check answers and run functions of one's own, per rollout actor"
    )
    format: Literal["think_answer", "answer", "boxed"] = Field(
        "answer", description="tags the response must have; 'think_answer' is ZeroTIR's, 'answer' its loose form"
    )
    options: dict[str, Option] = Field(
        default_factory=dict,
        description=(
            "what the reward can be told besides, e.g. zerotir's bonuses; with reward.weights a table per reward;"
            " registered ones refuse unknown keys"
        ),
    )
    group_options: dict[str, Option] = Field(default_factory=dict, description="what the group reward can be told")
    model_name_or_path: str | None = Field(
        None, description="HF sequence classifier of one label, for the reward 'model'; with the policy's vocabulary"
    )
    model_replicas: int = Field(
        1, ge=1, description="processes that each hold it, on a GPU of their own where there are any"
    )
    num_nodes: int = Field(1, ge=1, description="nodes that each run model_replicas of them")
    offload: bool = Field(
        False, description="the reward model's weights are in host memory while it has nothing to score"
    )
    model_timeout_s: float = Field(120.0, gt=0, description="a score that is not there by then fails its sample")
    normalize_enable: bool = Field(
        False, description="scores of the reward model minus the mean, over the std, that its config.json tells"
    )
    overlong_buffer_len: float | None = Field(
        None,
        gt=0,
        description=(
            "DAPO: a response within so many tokens of rollout.max_new_tokens is punished,"
            " the more the longer; unset: none is"
        ),
    )
    overlong_penalty_factor: float = Field(
        1.0, gt=0, description="what is taken from the reward of a response that fills the budget"
    )
    stop_properly_penalty_coef: float | None = Field(
        None,
        le=1,
        description=(
            "ProRL: a response that was cut has its reward times this; below 0:"
            " this reward instead; unset: no difference"
        ),
    )
    clip_range: tuple[float, float] | None = Field(
        None, description="bounds of a reward, after the penalties; unset: none"
    )
    max_failed_groups: int = Field(
        3,
        ge=1,
        description=(
            "abort the run after this many consecutive prompts fail in user code (reward, filter, protocol, environment"
            " class, agent file); until the first update the first one ends it"
        ),
    )

    def options_of(self, name: str) -> dict[str, Option]:
        """The options of one reward: all of them, or with `weights` its own table."""
        if not self.weights:
            return self.options
        table = self.options.get(name, {})
        return table if isinstance(table, dict) else {}

    @property
    def replicas(self) -> int:
        """Processes that hold the reward model, on all nodes."""
        return self.num_nodes * self.model_replicas

    @property
    def used(self) -> dict[str, float]:
        """The rewards that are added up, with their weights."""
        return self.weights or {self.name: 1.0}

    @model_validator(mode="before")
    @classmethod
    def _a_remote_reward_is_the_reward(cls, table: Any) -> Any:
        """As in OpenRLHF, where giving its URL is all that is needed."""
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
        return self
