"""The training loop's own numbers."""

from __future__ import annotations

from pydantic import Field, model_validator

from .base import Section


class Train(Section):
    max_steps: int = Field(
        400,
        ge=1,
        description="learner updates; eval.steps, ckpt.save_steps and the learning rate's schedule count them too",
    )
    num_episodes: int = Field(1, ge=1, description="passes over the prompts; the run ends at max_steps or here")
    batch_size: int | None = Field(
        None,
        ge=1,
        description=(
            "samples per update; unset or rollout.batch_size * n_samples_per_prompt: one update per batch; fewer: the"
            " batch is cut at random into mini-batches of so many, one update each,"
            " with advantages and pi_old of the whole batch"
        ),
    )
    max_epochs: int = Field(
        1,
        ge=1,
        description=(
            "how often a batch is trained, its mini-batches cut anew each time; each pass makes as many updates"
        ),
    )
    micro_batch_size: int = Field(
        8,
        ge=1,
        description=(
            "sequences per forward, not counted with ds.packing_samples; changes speed and memory, not the gradient"
        ),
    )
    max_tokens_per_gpu: int = Field(
        16192, ge=1, description="tokens per forward, padding included unless ds.packing_samples; what bounds memory"
    )
    enable_ema: bool = Field(
        False,
        description=(
            "keep an exponential moving average of the policy's weights, in fp32 in host memory;"
            " in checkpoints, and exported to <output_dir>_ema"
        ),
    )
    ema_beta: float = Field(
        0.992, gt=0, lt=1, description="after each update: average = ema_beta * average + (1 - ema_beta) * weights"
    )
    seed: int = Field(42, ge=0, lt=2**32, description="seed of everything that is drawn at random, 32 bits")
    full_determinism_enable: bool = Field(
        False,
        description=(
            "the learner uses deterministic kernels only (slower; an operation that has none is refused when it runs),"
            " and every request is seeded as by rollout.per_request_seeds"
        ),
    )
    resume: bool = Field(False, description="go on from ckpt.path's latest checkpoint; refused where there is none")
    resume_from: str = Field(
        "latest",
        description=(
            "with train.resume: which checkpoint, 'latest', a name like step_000020 (what came after it is trained"
            " again), or 'newest_whole': the latest that is not damaged"
        ),
    )
    new_ledger: bool = Field(
        False,
        description=(
            "with train.resume: go on though the ledger is lost or damaged; it is set aside, the new one begins with"
            " what was open at the checkpoint"
        ),
    )
    resume_or_start: bool = Field(
        False,
        description=(
            "as train.resume, but start anew, and say so, where no checkpoint was committed yet;"
            " for job scripts that are run again"
        ),
    )
    overwrite: bool = Field(
        False,
        description=(
            "start anew in a run_dir that holds an earlier run's checkpoints or model; they are deleted. Counts on the"
            " command line only: a recipe cannot delete"
        ),
    )
    max_restarts: int = Field(
        0,
        ge=0,
        description=(
            "how often in a row a died controller is started again, with --train.resume;"
            " counted from 0 again after each new checkpoint"
        ),
    )
    start_wait_s: float = Field(
        0.0,
        ge=0,
        description=(
            "how long a start waits for what is not there yet: environment servers, room in the cluster, the run"
            " directory's lock; 0: refuse"
        ),
    )
    restart_wait_s: float = Field(
        900.0, ge=0, description="train.start_wait_s of the restarts by the launcher: what died may come back with us"
    )
    max_learner_restarts: int = Field(
        3,
        ge=0,
        description=(
            "how often dead learner ranks are replaced, all of them from the last checkpoint, while the engines stay up"
        ),
    )
    colocate_all: bool = Field(
        False,
        description=(
            "learner rank i and engine i share a GPU, in pipeline.mode = 'sync': engines sleep while the learner"
            " trains, its optimiser and gradients are in host memory while they sample (docs/scaling.md)."
            " Never run on a GPU yet"
        ),
    )
    share_gpus: bool = Field(
        False,
        description=(
            "learner rank i and engine i hold memory of one GPU at the same time, in every pipeline.mode; the engine's"
            " KV cache then has a fixed size, vllm.kv_cache_mib (docs/scaling.md)"
        ),
    )
    agent_func_path: str | None = Field(
        None,
        description=(
            "OpenRLHF's agent file, a Python file with an AgentExecutor: it writes the responses, in processes of its"
            " own, in place of environment and turn protocol (docs/openrlhf_files.md)"
        ),
    )
    env_mask: bool = Field(
        True, description="False trains on tool output as well (the seed work's 'world model' phase)"
    )
    env_mask_from: int = Field(
        0,
        ge=0,
        description=(
            "with env_mask: tool output is trained until so many updates are made, and masked from then on;"
            " a resume refuses another number"
        ),
    )
    env_coef: float = Field(
        1.0,
        gt=0,
        description=(
            "weight of a token of tool output where it is trained, in the loss and in what the loss is a mean over"
        ),
    )
    max_reissues: int = Field(
        5, ge=0, description="how often a group is issued again after its actor or environment failed"
    )
    max_unused_batches: int = Field(
        8,
        ge=0,
        description=(
            "so many batches of groups in a row (at least 256 groups) all dropped or failed:"
            " say why, show one, and stop; 0: never"
        ),
    )
    max_user_code_failures: int | None = Field(
        None,
        ge=1,
        description=(
            "end the run once so many groups have failed by an error in user code (reward, filter, protocol,"
            " environment class, agent file) since the first update; until then the first one ends it. Unset: only"
            " reward.max_failed_groups in a row"
        ),
    )
    max_nonfinite_steps: int = Field(
        3,
        ge=1,
        description="so many steps in a row whose gradient is not finite end the run; one alone is left out, and said",
    )
    stop_grace_s: float = Field(
        20.0,
        gt=0,
        description=(
            "after SIGTERM or Ctrl-C: how long the running step and a checkpoint may"
            " take (Slurm and Kubernetes kill after 30 s)"
        ),
    )
    save_before_s: float | None = Field(
        None,
        gt=0,
        description=(
            "time limit of the job, in seconds from its start:"
            " stop in good order train.stop_grace_s and 10 s before; unset: none"
        ),
    )

    @model_validator(mode="after")
    def _resumes(self) -> Train:
        """A job script that is run again says it once."""
        if self.resume_or_start:
            self.__dict__["resume"] = True
        return self
