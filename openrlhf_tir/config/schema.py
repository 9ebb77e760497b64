"""The configuration tree: what a recipe (TOML) or a dotted flag can set. pydantic only, so that `--help` stays instant.

    Config                 one field a section of the recipe
      actor: Actor         sections/learner.py; a setting has everything that is known about it (setting.py)
      ...
      .max_staleness, ...  properties: what several settings amount to
      .environments        one `Environment` per environment, with what it takes from [env], [reward], [filter], [data]

Names are OpenRLHF 0.11's where the concept is OpenRLHF's. Checks that need nothing but the configuration are validators
of a section or rules (rules.py). Checks against registries, files and servers are in `cli/preflight.py`, which
runs before Ray is started or a model is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..algorithms.losses import LOSSES
from ..algorithms.losses.base import Aggregation, PolicyLossSpec
from ..errors import ConfigError
from . import rules as rules
from .environments import Environment, resolve, resolve_or_none
from .paths import local_path, query_path
from .sections.algo import Advantage as Advantage
from .sections.algo import Algo as Algo
from .sections.algo import Kl as Kl
from .sections.base import Option as Option
from .sections.base import Section as Section
from .sections.conditions import WITH_CRITIC
from .sections.critic import Critic as Critic
from .sections.critic import Ref as Ref
from .sections.data import Data as Data
from .sections.data import HeldOutData
from .sections.env import Env as Env
from .sections.envs import NAME, NamedEnv
from .sections.filter import Filter as Filter
from .sections.learner import Actor as Actor
from .sections.learner import Ds as Ds
from .sections.learner import Lora as Lora
from .sections.learner import Muon as Muon
from .sections.output import Ckpt as Ckpt
from .sections.output import Eval as Eval
from .sections.output import Logger as Logger
from .sections.output import LoggerWandb as LoggerWandb
from .sections.pipeline import Pipeline as Pipeline
from .sections.reward import Reward as Reward
from .sections.rollout import FP32_TOLERANCE
from .sections.rollout import Rollout as Rollout
from .sections.rollout import Vllm as Vllm
from .sections.sft import Sft as Sft
from .sections.timeouts import Timeouts as Timeouts
from .sections.train import Train as Train
from .setting import ALLOWED, setting

WITHOUT_RULES = {"rules": False}
"""Validation context that leaves out the rules between sections: settings.py reports them beside other mistakes."""


class Config(Section):
    """The configuration of a run."""

    run_dir: Path = setting(
        Path("runs/default"),
        description="Directory of everything that the run writes.",
        resume=ALLOWED,
        fine_tuning=True,
    )
    actor: Actor = Field(default_factory=Actor)
    ref: Ref = Field(default_factory=Ref)
    critic: Critic = setting(
        default_factory=Critic, description="The critic and its optimizer.", active_when=WITH_CRITIC
    )
    ds: Ds = Field(default_factory=Ds)
    rollout: Rollout = Field(default_factory=Rollout)
    vllm: Vllm = Field(default_factory=Vllm)
    timeouts: Timeouts = Field(default_factory=Timeouts)
    env: Env = Field(default_factory=Env)
    envs: dict[str, NamedEnv] = Field(default_factory=dict)
    reward: Reward = Field(default_factory=Reward)
    filter: Filter = Field(default_factory=Filter)
    algo: Algo = Field(default_factory=Algo)
    train: Train = Field(default_factory=Train)
    pipeline: Pipeline = Field(default_factory=Pipeline)
    data: Data = Field(default_factory=Data)
    eval: Eval = Field(default_factory=Eval)
    sft: Sft = Field(default_factory=Sft)
    ckpt: Ckpt = Field(default_factory=Ckpt)
    logger: Logger = Field(default_factory=Logger)

    @field_validator("run_dir", mode="after")
    @classmethod
    def _make_absolute(cls, path: Path) -> Path:
        try:
            return query_path(local_path(path, "run_dir"), Path.absolute, "run_dir")
        except ConfigError as e:
            raise ValueError(str(e)) from None

    @field_validator("envs", mode="after")
    @classmethod
    def _check_names(cls, envs: dict[str, NamedEnv]) -> dict[str, NamedEnv]:
        for name in envs:
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"envs.{name!r} is not a name of an environment. Use letters, digits, - and _, at most 64."
                )
        return envs

    @property
    def environments(self) -> dict[str, Environment]:
        """Every environment by name (environments.py). Raises ConfigError if its settings contradict one another."""
        return resolve(self)

    @property
    def resolved_environments(self) -> dict[str, Environment]:
        """Every environment by name; none at all if their settings contradict one another, which a rule reports."""
        return resolve_or_none(self) or {}

    @property
    def held_out(self) -> HeldOutData:
        """The section that describes eval.dataset."""
        of_evaluation = {
            "prompt_dataset": self.eval.dataset,
            "prompt_split": self.eval.split,
            "max_samples": self.eval.max_samples,
        }
        return HeldOutData.model_construct(**{**dict(self.data), **of_evaluation})

    @property
    def max_running(self) -> int:
        """Requests that an actor gives to its engine at a time.

        If a push keeps the KV cache, no request may wait in the engine, where it would take the canary's place.
        """
        slots = self.vllm.max_num_seqs
        waiting = 0 if self.pipeline.keeps_kv else (slots + 3) // 4
        return slots + waiting

    @property
    def minibatches(self) -> int:
        """Parts that a rollout batch is cut into, one update each."""
        samples = self.rollout.batch_size * self.rollout.n_samples_per_prompt
        return max(1, samples // (self.train.batch_size or samples))

    @property
    def shards(self) -> int:
        """Parts that a batch is spread over: ranks, or groups of ranks that share their sequences."""
        return max(1, self.actor.world_size // self.ds.ring_attn_size)

    @property
    def shares_prompts(self) -> bool:
        """True if the settings let the learner compute a prompt once for the responses that follow it in a micro batch.

        The policy and the reference do so with torch's attention (PolicyModel.can_share_prompts), the critic never.
        Two features rule it out: sequence parallelism cuts a row between any two tokens, and the balance of a mixture's
        experts would count a shared prompt once.
        """
        ruled_out = self.ds.ring_attn_size > 1 or self.actor.aux_loss_coef
        return self.ds.packing_samples and self.ds.share_prompts and not ruled_out

    @property
    def updates_per_batch(self) -> int:
        """Policy versions that each rollout batch adds: mini-batches times epochs."""
        return self.minibatches * self.train.max_epochs

    @property
    def updates_per_batch_in_words(self) -> str:
        """How updates_per_batch follows from the settings, for messages."""
        samples = self.rollout.batch_size * self.rollout.n_samples_per_prompt
        return (
            f"rollout.batch_size * rollout.n_samples_per_prompt / train.batch_size = {samples} /"
            f" {self.train.batch_size or samples} = {self.minibatches} mini-batches, train.max_epochs ="
            f" {self.train.max_epochs}"
        )

    @property
    def batches_ahead(self) -> int:
        """W: a group whose first token was sampled when i batches were trained is trained in batch i + W at the latest
        (counted from 0).

        The last of its k updates is then made at version (i + W) k + k - 1 of the learner: (W + 1) k - 1 updates after
        the token. So a staleness of S updates allows W = (S + 1) // k - 1, which is S for k = 1, and -1 (nothing could
        ever be trained) for S < k - 1."""
        requested = self.pipeline.requested_staleness
        if self.pipeline.max_staleness is None or self.pipeline.plan.is_preset:
            return requested
        return (requested + 1) // self.updates_per_batch - 1

    @property
    def max_staleness(self) -> int:
        """S, in updates: learner version - token version <= S for every trained token."""
        from_batches = (self.batches_ahead + 1) * self.updates_per_batch - 1
        if self.pipeline.max_staleness is None:
            return from_batches
        return max(self.pipeline.requested_staleness, from_batches)

    @property
    def depth_groups(self) -> int | Literal["auto"]:
        """Groups that are rolling or buffered at most: pipeline.depth, or what the mode means if it is unset."""
        if self.pipeline.depth is not None:
            return self.pipeline.depth
        limits: dict[str, int | Literal["auto"]] = {
            "one_batch": self.rollout.batch_size,
            "max_staleness": (self.batches_ahead + 1) * self.rollout.batch_size,
            "auto": "auto",
        }
        return limits[self.pipeline.plan.depth]

    @property
    def pi_old(self) -> Literal["engine", "learner"]:
        """Whose log-probs are in the denominator of the ratio (learner/objective.py)."""
        return self.actor.pi_old or ("engine" if self.algo.advantage.is_correction_level == "off" else "learner")

    @property
    def recomputes_old(self) -> bool:
        """True if a pass over the batch before its first update computes the log-probs of pi_old.

        With one update per batch they are the ones that the update computes anyway.
        """
        return self.pi_old == "learner" and self.updates_per_batch > 1

    @property
    def needs_reference(self) -> bool:
        """True if the policy that the run started from is loaded beside the learner's."""
        return self.algo.kl.init_coef > 0 or self.filter.max_base_ppl is not None

    @property
    def loss_agg_mode(self) -> Aggregation:
        """actor.loss_agg_mode; its default beside a policy loss that is a mean over sequences already."""
        return "token-mean" if self.policy_loss.over_sequences else self.actor.loss_agg_mode

    @property
    def loss_by_token(self) -> bool:
        """True if the policy's loss is a mean over tokens (or over sequences times a constant), not over sequences."""
        return self.loss_agg_mode != "seq-mean-token-mean" and not self.policy_loss.over_sequences

    @property
    def policy_loss(self) -> PolicyLossSpec:
        """The registered loss of actor.policy_loss_type; `ppo` for one of the user's own, which takes its place."""
        return LOSSES["ppo" if self.actor.own_loss else self.actor.policy_loss_type]

    @property
    def loss_sum_norm(self) -> float | None:
        """The constant of actor.loss_agg_mode = 'seq-mean-token-sum-norm'; None in other modes."""
        if self.loss_agg_mode != "seq-mean-token-sum-norm":
            return None
        return self.actor.loss_agg_constant or float(self.rollout.max_new_tokens)

    @property
    def fixed_canary_tolerance(self) -> float | None:
        """Mean difference in nats that is accepted after each push: vllm.canary_tolerance, or FP32_TOLERANCE where both
        sides compute in fp32. None: it follows the pushes accepted before."""
        is_fp32 = self.ds.param_dtype == "fp32" and self.vllm.dtype in ("auto", "float32")
        return self.vllm.canary_tolerance or (FP32_TOLERANCE if is_fp32 else None)

    @property
    def engines_beside_ranks(self) -> bool:
        """True if learner rank i and engine i are on one GPU, in turns or at the same time."""
        return self.train.colocate_all or self.train.share_gpus

    @property
    def push_backend(self) -> str:
        """The transport of weight pushes, vllm.sync_backend with 'auto' resolved: file (also of deltas), ipc, gloo or
        nccl."""
        if self.vllm.sync_backend == "auto":
            return "ipc" if self.train.share_gpus else "file"
        return "file" if self.vllm.pushes_changes else self.vllm.sync_backend

    @property
    def by_agent(self) -> bool:
        """True if agents write the responses, in place of our turns: programs from outside, or OpenRLHF's agent
        file."""
        return self.rollout.agent == "external" or self.train.agent_func_path is not None

    @property
    def stall_timeout_s(self) -> float:
        """Seconds without progress after which the watchdog aborts the run.

        Longer than a group takes, together with a push or a call of the learner for which engines wait at the
        staleness gate, and with train.colocate_all longer than an engine that starts in its turn.
        """
        starting = self.timeouts.start_s if self.train.colocate_all else 0
        return self.rollout.group_deadline_s + max(self.timeouts.push_s, self.timeouts.learner_s) + starting

    @model_validator(mode="after")
    def _sections_fit_together(self, info: ValidationInfo) -> Config:
        if info.context is not WITHOUT_RULES and (violations := [*rules.violations(self)]):
            raise ValueError("\n".join(problem.message for problem in violations))
        return self
