"""The training loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from ..setting import ALLOWED, About, Condition, Fault, Resume, refused, rule, setting
from . import colocation
from .base import Section

if TYPE_CHECKING:
    from ..schema import Config

TRAINED_TOKENS = refused("which tokens are trained at which update follows from it")

NEWEST_WHOLE = "newest_whole"
"""Value of train.resume_from: the newest checkpoint that is complete and undamaged."""
CLOSE_BEFORE_LIMIT_S = 10.0
"""Seconds that closing usually takes. They are kept free between train.stop_grace_s and train.save_before_s."""
SAME_UPDATES = Resume("reported", "if the updates per batch stay the same; refused otherwise")


class Train(Section):
    """The training loop, its restarts and its end."""

    max_steps: int = setting(
        400,
        ge=1,
        description="Learner updates. eval.steps, ckpt.save_steps and the learning rate's schedule count them too.",
        unit="updates",
    )
    num_episodes: int = setting(
        1,
        ge=1,
        description="Passes over the prompts. The run ends at max_steps or here, whichever is first.",
        unit="passes",
        openrlhf=True,
    )
    batch_size: int | None = setting(
        None,
        ge=1,
        description=(
            "Samples per update. Unset, or rollout.batch_size * n_samples_per_prompt: one update per batch. Fewer: the"
            " batch is cut at random into mini-batches of this size, one update each, with advantages and pi_old of the"
            " whole batch."
        ),
        unit="samples",
        resume=SAME_UPDATES,
        openrlhf=True,
    )
    max_epochs: int = setting(
        1,
        ge=1,
        description="Passes over each batch, its mini-batches cut anew each time. Each pass makes as many updates.",
        resume=SAME_UPDATES,
        openrlhf=True,
    )
    micro_batch_size: int = setting(
        8,
        ge=1,
        description=(
            "Sequences per forward pass; not used with ds.packing_samples. Changes speed and memory, not the gradient."
        ),
        unit="sequences",
        resume=ALLOWED,
        openrlhf=True,
        fine_tuning=True,
    )
    max_tokens_per_gpu: int = setting(
        16192,
        ge=1,
        description="Tokens per forward pass, with padding unless ds.packing_samples. This bounds the memory.",
        unit="tokens",
        resume=ALLOWED,
        openrlhf=True,
        fine_tuning=True,
    )
    ema_beta: float | None = setting(
        None,
        gt=0,
        lt=1,
        description=(
            "Keep an exponential moving average of the policy's weights, in fp32 in host memory: after each update"
            " average = ema_beta * average + (1 - ema_beta) * weights. It is in checkpoints and is exported to"
            " <output_dir>_ema. Unset: none; OpenRLHF's is 0.992."
        ),
        openrlhf=True,
        fine_tuning=True,
    )
    seed: int = setting(
        42,
        ge=0,
        lt=2**32,
        description="Seed of everything that is drawn at random, 32 bits.",
        resume=refused("the order of the prompts comes from it"),
        openrlhf=True,
        fine_tuning=True,
    )
    full_determinism_enable: bool = setting(
        False,
        description=(
            "Use deterministic kernels only in the learner, which is slower, and refuse an operation that has none when"
            " it runs. Every request is seeded by (train.seed, prompt, sample, turn): the same responses whatever the"
            " batching, at less speed."
        ),
        openrlhf=True,
        fine_tuning=True,
    )
    resume: bool = setting(
        False,
        description="Go on from the latest checkpoint in ckpt.path. Refused if there is none.",
        resume=ALLOWED,
        fine_tuning=True,
    )
    resume_from: str = setting(
        "latest",
        description=(
            "Checkpoint to resume from: 'latest', a name like step_000020 (what came after it is trained again), or"
            " 'newest_whole', the latest that is not damaged."
        ),
        active_when=Condition("with train.resume", lambda c: c.train.resume),
        resume=ALLOWED,
        fine_tuning=True,
    )
    new_ledger: bool = setting(
        False,
        description=(
            "Resume although the ledger is lost or damaged: it is set aside, and a new one begins with what was open at"
            " the checkpoint."
        ),
        active_when=Condition("with train.resume", lambda c: c.train.resume),
        resume=ALLOWED,
    )
    resume_or_start: bool = setting(
        False,
        description=(
            "Resume if a checkpoint was committed, else start anew and report that. For job scripts that are run again."
        ),
        resume=ALLOWED,
        fine_tuning=True,
    )
    overwrite: bool = setting(
        False,
        description=(
            "Start anew in a run_dir that holds an earlier run's checkpoints or model, and delete these. Only counts on"
            " the command line: a recipe cannot delete."
        ),
        resume=ALLOWED,
        fine_tuning=True,
    )
    max_restarts: int = setting(
        0,
        ge=0,
        description=(
            "Restarts in a row of a controller that died, with --train.resume. Each new checkpoint resets the count."
        ),
        resume=ALLOWED,
    )
    start_wait_s: float = setting(
        0.0,
        ge=0,
        description=(
            "How long a start waits for what is not there yet: environment servers, room in the cluster, the run"
            " directory's lock. 0: it does not wait. A restart by the launcher (train.max_restarts) waits 900."
        ),
        unit="seconds",
        resume=ALLOWED,
        fine_tuning=True,
    )
    colocate_all: bool = setting(
        False,
        description=(
            "Share each GPU between learner rank i and engine i in turns, in pipeline.mode = 'sync': engines sleep"
            " while the learner trains, and its optimiser and gradients are in host memory while they sample"
            " (docs/scaling.md). Never run on a GPU yet."
        ),
        resume=refused("the optimiser's state was saved as torch's AdamW, or with it as DeepSpeed's"),
        openrlhf=True,
    )
    share_gpus: bool = setting(
        False,
        description=(
            "Hold learner rank i and engine i in the memory of one GPU at the same time, in every pipeline.mode. The"
            " engine's KV cache then has a fixed size, vllm.kv_cache_mib (docs/scaling.md)."
        ),
        resume=ALLOWED,
    )
    agent_func_path: str | None = setting(
        None,
        description=(
            "OpenRLHF's agent file: a Python file with an AgentExecutor, which writes the responses in processes of its"
            " own, in place of environment and turn protocol (docs/openrlhf_files.md)."
        ),
        openrlhf=True,
        names="user_code",
    )
    env_mask_from: Annotated[int, Field(ge=0)] | Literal["never"] = setting(
        0,
        description=(
            "Train on tool output until this many updates are made, and mask it from then on. 0: it is never trained."
            " never: it is never masked (the seed work's 'world model' phase)."
        ),
        unit="updates",
        resume=TRAINED_TOKENS,
    )
    stop_grace_s: float = setting(
        20.0,
        gt=0,
        description=(
            "How long the running step and a checkpoint may take after SIGTERM, Ctrl-C or a closed terminal. Slurm and"
            " Kubernetes kill after 30 s."
        ),
        unit="seconds",
        resume=ALLOWED,
        fine_tuning=True,
    )
    save_before_s: float | None = setting(
        None,
        gt=0,
        description=(
            "Time limit of the job, from its start: stop in good order train.stop_grace_s and 10 s before it. Unset: no"
            " limit."
        ),
        unit="seconds",
        resume=ALLOWED,
        fine_tuning=True,
    )

    @model_validator(mode="after")
    def _resume_or_start_resumes(self) -> Train:
        """A job script that is run again sets one of the two."""
        if self.resume_or_start:
            self.__dict__["resume"] = True
        return self


@rule("train.batch_size")
def updates_share_a_batch(c: Config) -> Iterator[Fault]:
    prompts = c.rollout.batch_size
    per_prompt = c.rollout.n_samples_per_prompt
    samples = prompts * per_prompt
    size = c.train.batch_size
    per_batch = c.updates_per_batch
    steps = c.train.max_steps
    if size is not None and (samples % size or size < c.shards):
        reason = (
            f"less than the {c.shards} learner ranks that share an update"
            if size < c.shards
            else "not a divisor of the samples of a batch"
        )
        yield (
            f"train.batch_size = {size} is {reason}; rollout.batch_size * rollout.n_samples_per_prompt = {prompts} *"
            f" {per_prompt} = {samples}. Leave it unset for one update per batch, or use another divisor of that."
        )
    elif steps % per_batch:
        whole_batches = [n * per_batch for n in (steps // per_batch, steps // per_batch + 1) if n]
        yield About(
            "train.max_steps",
            f"train.max_steps = {steps} updates end in the middle of a batch, of which each makes {per_batch}"
            f" ({c.updates_per_batch_in_words}). Use {' or '.join(map(str, whole_batches))}.",
        )


rule("train.colocate_all")(colocation.rank_and_engine_take_turns)
rule("train.colocate_all", reads_estimator=True)(colocation.critic_can_be_moved)
rule("train.share_gpus")(colocation.rank_and_engine_share_a_gpu)


@rule("train.agent_func_path")
def one_agent_writes_the_responses(c: Config) -> Iterator[Fault]:
    if c.train.agent_func_path and c.rollout.agent == "external":
        yield (
            f"train.agent_func_path = {c.train.agent_func_path!r} writes the responses itself, and with rollout.agent ="
            " 'external' programs from outside do. Leave one of them out."
        )


@rule("train.save_before_s", commands=("train", "sft"))
def run_has_time_before_its_limit(c: Config) -> Iterator[Fault]:
    limit = c.train.save_before_s
    grace = c.train.stop_grace_s
    if limit is not None and limit <= grace + CLOSE_BEFORE_LIMIT_S:
        yield (
            f"train.save_before_s = {limit:g} is no longer than train.stop_grace_s = {grace:g} and the"
            f" {CLOSE_BEFORE_LIMIT_S:g} s that closing takes: the run would stop before it begins. Raise the first."
        )
