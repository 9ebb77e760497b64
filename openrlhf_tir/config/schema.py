"""The configuration tree: what a recipe (TOML) or a dotted flag can set. pydantic only, so `--help` stays instant.

Names are OpenRLHF 0.11's where the concept is OpenRLHF's. A field says what turning it does; defaults are the vetted
setting; consequences (batch sizes, admission bounds) are properties. Checks that need no other file live here as
validators; checks against registries, files and servers are in `commands/preflight.py`, which runs before Ray or a
model is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from ..errors import ConfigError
from . import rules as rules
from .environments import Environment, resolve
from .paths import asked, local_path
from .sections.algo import Advantage as Advantage
from .sections.algo import Algo as Algo
from .sections.algo import Kl as Kl
from .sections.base import Option as Option
from .sections.base import Section as Section
from .sections.critic import Critic as Critic
from .sections.critic import Ref as Ref
from .sections.data import Data as Data
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
from .sections.rollout import Rollout as Rollout
from .sections.rollout import Vllm as Vllm
from .sections.sft import Sft as Sft
from .sections.timeouts import Timeouts as Timeouts
from .sections.train import Train as Train

WITHOUT_RULES = {"rules": False}
"""Context of a validation that leaves out the rules across sections: settings tells them with other mistakes."""


class Config(Section):
    run_dir: Path = Path("runs/default")
    actor: Actor = Field(default_factory=Actor)
    ref: Ref = Field(default_factory=Ref)
    critic: Critic = Field(default_factory=Critic)
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
    def _absolute(cls, v: Path) -> Path:
        try:
            return asked(local_path(v, "run_dir"), Path.absolute, "run_dir")
        except ConfigError as e:
            raise ValueError(str(e)) from None

    @field_validator("envs", mode="after")
    @classmethod
    def _named(cls, envs: dict[str, NamedEnv]) -> dict[str, NamedEnv]:
        for name in envs:
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"envs.{name!r} is no name of an environment. Use letters, digits, - and _, at most 64."
                )
        return envs

    @property
    def environments(self) -> dict[str, Environment]:
        """Every environment by name; see environments.py. ConfigError where settings contradict one another."""
        return resolve(self)

    @property
    def held_out(self) -> Data:
        """The section that describes eval.dataset, which is read as data.prompt_dataset is."""
        e = self.eval
        return self.data.model_copy(
            update={"prompt_dataset": e.dataset, "prompt_split": e.split, "max_samples": e.max_samples}
        )

    @property
    def max_running(self) -> int:
        """Requests that an actor hands to its engine at once: where a push keeps the KV cache, none that would wait
        there and take the canary's place."""
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
        """Return True if the learner computes a prompt once for the responses that follow it in one micro batch.

        Sequence parallelism cuts a row between any two tokens; the balance of a mixture's experts would count a shared
        prompt once; reentrant checkpoints give layers other position ids than those whose layout is declared.
        """
        ds = self.ds
        left_out = ds.ring_attn_size > 1 or self.actor.aux_loss_coef or self.actor.gradient_checkpointing_reentrant
        return ds.packing_samples and ds.share_prompts and not left_out

    @property
    def updates_per_batch(self) -> int:
        """k: versions that the learner moves on by with each rollout batch."""
        return self.minibatches * self.train.max_epochs

    @property
    def batches_ahead(self) -> int:
        """W: a group whose first token was sampled when i batches were trained is trained in batch i + W at the latest
        (counted from 0).

        The last of its k updates is then made at version (i + W) k + k - 1 of the learner: (W + 1) k - 1 updates after
        the token. So S updates allow W = (S + 1) // k - 1, which is S where k = 1, and -1 (nothing could ever be
        trained) where S < k - 1."""
        p = self.pipeline
        if p.max_staleness is None or p.mode in ("sync", "one_step"):
            return p.S
        return (p.S + 1) // self.updates_per_batch - 1

    @property
    def max_staleness(self) -> int:
        """S, in updates: learner version - token version <= S, always."""
        p, from_batches = self.pipeline, (self.batches_ahead + 1) * self.updates_per_batch - 1
        return from_batches if p.max_staleness is None else max(p.S, from_batches)

    @property
    def pi_old(self) -> Literal["engine", "learner"]:
        """Whose log-probs are in the denominator of the ratio (learner/objective.py)."""
        return self.actor.pi_old or ("engine" if self.algo.advantage.is_correction_level == "off" else "learner")

    @property
    def recomputes_old(self) -> bool:
        """Whether a pass over the batch before its first update computes pi_old's log-probs; with one update they are
        those at hand."""
        return self.pi_old == "learner" and self.updates_per_batch > 1

    @property
    def needs_reference(self) -> bool:
        """Return True if the policy that the run started from is loaded beside the learner's."""
        return self.algo.kl.init_coef > 0 or self.filter.max_base_ppl is not None

    @property
    def loss_by_token(self) -> bool:
        """Whether the policy's loss is a mean over tokens (or sequences times a constant), not over sequences."""
        return self.actor.loss_agg_mode != "seq-mean-token-mean" and self.actor.policy_loss_type != "gspo"

    @property
    def loss_sum_norm(self) -> float | None:
        """The constant of actor.loss_agg_mode = 'seq-mean-token-sum-norm'; None in other modes."""
        wanted = self.actor.loss_agg_mode == "seq-mean-token-sum-norm"
        return (self.actor.loss_agg_constant or float(self.rollout.max_new_tokens)) if wanted else None

    @property
    def canary_tolerance(self) -> float | None:
        """Mean difference in nats that is accepted after each push; None: it follows the pushes accepted before."""
        fp32 = self.ds.param_dtype == "fp32" and self.vllm.dtype in ("auto", "float32")
        return self.vllm.canary_tolerance or (1e-4 if fp32 else None)

    @property
    def engines_beside_ranks(self) -> bool:
        """True if learner rank i and engine i are on one GPU, in turns or at the same time."""
        return self.train.colocate_all or self.train.share_gpus

    @property
    def push_backend(self) -> str:
        """The transport of weight pushes, vllm.sync_backend with 'auto' resolved: file, ipc, gloo or nccl."""
        if self.vllm.sync_backend != "auto":
            return self.vllm.sync_backend
        return "ipc" if self.train.share_gpus and not self.vllm.sync_delta else "file"

    @property
    def by_agent(self) -> bool:
        """Do agents write the responses, in place of our turns: programs from outside, or OpenRLHF's agent file?"""
        return self.rollout.agent == "external" or self.train.agent_func_path is not None

    @property
    def stall_timeout_s(self) -> float:
        """The watchdog's patience: longer than a group may take, and where all wait for a turn of the GPUs, than an
        engine that starts in it."""
        starting = self.timeouts.start_s if self.train.colocate_all else 0
        return self.pipeline.stall_timeout_s or self.rollout.group_deadline_s + starting + 600

    @model_validator(mode="after")
    def _sections_fit_together(self, info: ValidationInfo) -> Config:
        if info.context is not WITHOUT_RULES and (violations := [*rules.violations(self)]):
            raise ValueError("\n".join(violations))
        return self
