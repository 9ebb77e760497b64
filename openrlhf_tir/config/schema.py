"""The configuration tree: what a recipe (TOML) or a dotted flag can set. pydantic only, so `--help` stays instant.

Names are OpenRLHF 0.11's where the concept is OpenRLHF's. A field says what turning it does; defaults are the vetted setting;
consequences (batch sizes, admission bounds) are properties. Checks that need no other file live here as validators; checks
against registries, files and servers are in `commands/preflight.py`, which runs before Ray or a model is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from ..errors import ConfigError
from . import rules as rules
from .paths import asked, local_path

WITHOUT_RULES = {"rules": False}
"""Context of a validation that leaves out the rules across sections: settings tells all of them together with other mistakes."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_assignment=True, protected_namespaces=(), allow_inf_nan=False)


Option = bool | int | float | str | list[Any] | dict[str, Any]
"""What an option of a method's function may be: what TOML can say."""


class LoggerWandb(Section):
    key: str | None = Field(None, description="API key, or the string 'env' to use WANDB_API_KEY; unset: no wandb")
    org: str | None = None
    group: str | None = None
    project: str = "openrlhf_tir"
    run_name: str | None = None


class Lora(Section):
    rank: int = Field(0, ge=0, le=0, description="LoRA is not supported with weight pushes yet; must stay 0")


class Actor(Section):
    """The policy and its optimiser."""

    model_name_or_path: str = Field("", description="HF directory or name of the policy to start from")
    num_nodes: int = Field(1, ge=1)
    num_gpus_per_node: int = Field(8, ge=0, description="learner ranks per node; on a machine without GPUs: processes")
    learning_rate: float = Field(1e-6, gt=0, description="Adam step size at the end of warm-up")
    lr_scheduler: Literal["constant", "linear", "cosine"] = Field("constant", description="shape after warm-up, over train.max_steps")
    lr_warmup_ratio: float = Field(0.0, ge=0, lt=1)
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="final learning rate / learning_rate for linear and cosine")
    adam_betas: tuple[float, float] = (0.9, 0.95)
    l2: float = Field(0.0, ge=0, description="weight decay")
    max_norm: float = Field(1.0, gt=0, description="gradient clipping")
    eps_clip: float = Field(0.2, gt=0, description="PPO clip range, both sides, when eps_clip_low_high is unset")
    eps_clip_low_high: tuple[float, float] | None = Field((0.2, 0.28), description="clip-higher: the upper side is wider, so rare tokens can grow")
    dual_clip: float | None = Field(None, gt=1, description="bounds the loss of negative advantages at c * A")
    policy_loss_type: Literal["ppo", "gspo"] = "ppo"
    policy_loss: str | None = Field(None, description="policy loss of one's own in place of policy_loss_type, 'path/file.py:function' (docs/algorithms.md)")
    policy_loss_options: dict[str, Option] = Field(default_factory=dict, description="what that loss is told, as LossInputs.options")
    loss_agg_mode: Literal["token-mean", "seq-mean-token-mean"] = Field("token-mean", description="token-mean: over all trained tokens of the global batch")
    entropy_coef: float | None = Field(None, description="entropy bonus; 0 only logs it; unset: logged as well, never in the loss")
    gradient_checkpointing_enable: bool = False

    @property
    def clip(self) -> tuple[float, float]:
        return self.eps_clip_low_high or (self.eps_clip, self.eps_clip)

    @property
    def world_size(self) -> int:
        return self.num_nodes * max(1, self.num_gpus_per_node)


class Ds(Section):
    """DeepSpeed."""

    zero_stage: Literal[2, 3] = 3
    param_dtype: Literal["bf16", "fp16", "fp32"] = Field("bf16", description="fp32 only makes sense on CPU")
    attn_implementation: str = Field("flash_attention_2", description="'sdpa' on CPU; flash_attention_2 or _3 on GPU")
    adam_offload: bool = Field(False, description="optimiser states in host memory")
    packing_samples: bool = Field(False, description="several sequences in one row without padding; needs flash attention")
    overlap_comm: bool = False
    zpg: int = Field(1, ge=1)
    grad_accum_dtype: Literal["bf16", "fp16", "fp32"] | None = Field(
        None, description="dtype in which gradients add up over micro batches; default: fp32 (fp16 beside fp16 weights)"
    )
    use_liger_kernel: bool = False
    lora: Lora = Field(default_factory=Lora)


class Rollout(Section):
    """How responses are sampled."""

    batch_size: int = Field(128, ge=1, description="B: prompt groups per learner step")
    n_samples_per_prompt: int = Field(16, ge=1, description="n: responses per prompt")
    engine: Literal["vllm", "torch"] = Field(
        "vllm", description="'torch': plain transformers on CPU, one sequence at a time; the same bits whatever runs beside it, for tests of equality"
    )
    max_new_tokens: int = Field(8192, ge=1, description="response budget, model and environment tokens together")
    temperature: float = Field(1.0, gt=0, description="must be 1: the loss compares log-probs at temperature 1")
    top_p: float = Field(1.0, gt=0, le=1, description="must be 1: see temperature")
    min_valid: int = Field(2, ge=1, description="a group with fewer trajectories that survived infrastructure faults is failed, not trained")
    group_deadline_s: float = Field(3600.0, gt=0, description="a trajectory not finished by then is failed(deadline); the group goes on without it")
    oversample: int = Field(
        0,
        ge=0,
        le=256,
        description="k: samples dispatched beyond n, so that faults do not leave a short group; the n earliest dispatched valid ones are used, never "
        "the first finished, which are the short ones; costs up to k/n more decoding",
    )
    straggler_s: float | None = Field(
        None,
        gt=0,
        description="a group with min_valid valid samples closes after so long without its slowest, failed(straggler); biased towards short responses, "
        "so keep it above what an honest long response takes; unset: waits until group_deadline_s",
    )
    early_stop: bool = Field(
        False,
        description="give a group up as soon as filter.accuracy_range is sure to drop it; training is not changed, but what is measured of dropped "
        "groups is: their slowest samples are missing",
    )
    drift_check: float = Field(
        0.01, ge=0, le=1, description="share of trajectories whose tokens are decoded and compared with their text; one that differs is failed(token_drift)"
    )
    max_wait_ms: float = Field(
        0.0,
        ge=0,
        description="how long a ready trajectory waits for others of its environment before they go to the engine together; 0: not at all, which is "
        "best before an engine with continuous batching, where waiting only adds its own delay (`python -m benchmarks.rollout --only waiting`)",
    )
    max_batch: int = Field(256, ge=1, description="with max_wait_ms: go as soon as this many of one environment wait")
    max_running: int | None = Field(
        None,
        ge=1,
        description="requests handed to an engine at once; the rest wait in the actor's queue, where groups take turns; default: 1.25 vllm.max_num_seqs, "
        "so that a place that falls free is taken in the same engine step",
    )
    max_queue: int = Field(4096, ge=1, description="requests waiting in an actor's queue; HTTP callers beyond get 429 with Retry-After")
    heartbeat_s: float = Field(10.0, gt=0, description="how often an actor is asked for a sign of life; after three without one it gets no groups")
    unresponsive_s: float = Field(300.0, gt=0, description="an actor silent for so long is replaced and its groups are issued again")
    agent: Literal["turns", "external"] = Field(
        "turns",
        description="who writes a response: 'turns' (env.protocol in the environment), or 'external': programs that take tasks from the actors' "
        "endpoints and talk to the model with an OpenAI client (docs/rollout.md)",
    )
    agent_idle_s: float = Field(600.0, gt=0, description="an external agent not heard of for so long is lost: its trajectory is failed(agent_lost)")
    agent_overflow: Literal["fail", "cut"] = Field(
        "fail",
        description="an external agent that fails since its conversation is longer than the model's context: 'fail' leaves the trajectory out, "
        "'cut' trains it as one that reached its limit, judged by the run's own reward",
    )
    token_env: str = Field(
        "TIR_ROLLOUT_TOKEN",
        description="environment variable with the bearer token of the actors' endpoints, another than env.token_env's; unset, and environments have a "
        "token: one is made, in run_dir/endpoints/token",
    )
    port: int = Field(0, ge=0, le=65535, description="port of the first actor's endpoint, actor i has port + i; 0: any free one")
    per_request_seeds: bool = Field(
        False, description="seed every request from (train.seed, prompt, sample, turn): same responses whatever the batching; slower"
    )


class Vllm(Section):
    """The rollout engines."""

    num_engines: int = Field(1, ge=1)
    tensor_parallel_size: int = Field(1, ge=1)
    enforce_eager: bool = Field(False, description="no CUDA graphs; needed on CPU")
    enable_prefix_caching: bool = True
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    max_num_seqs: int = Field(256, ge=1, description="sequences decoded together")
    max_model_len: int | None = Field(None, description="default: data.max_len")
    kv_cache_mib: int | None = Field(None, ge=16, description="CPU only: memory of the KV cache")
    tool_call_parser: str | None = Field(
        None, description="vLLM's parser that turns the model's text into tool_calls on the OpenAI endpoint, e.g. hermes; unset: none"
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field("auto", description="auto: the learner's ds.param_dtype")
    sync_backend: Literal["file", "nccl", "ipc"] = Field(
        "file", description="transport of weight pushes; 'file' works everywhere (shared memory on one node); the others are not wired in yet"
    )
    canary_tolerance: float | None = Field(
        None,
        gt=0,
        description="largest |log-prob difference| of engine and learner accepted after a push; default: 1e-4 in fp32, "
        "else 4 times what they differ by on the weights that both loaded from disk",
    )
    canary_ceiling: float = Field(
        0.5,
        gt=0,
        description="nats; a calibrated tolerance never exceeds it, and engine and learner that differ by more at the start are not of the same model",
    )


class Timeouts(Section):
    """Deadlines of what crosses a process. One that is missed is a fault: an engine is replaced and its groups are issued again, learner ranks
    start again from the last checkpoint. Small calls to an actor have rollout.unresponsive_s."""

    placement_s: float = Field(60.0, gt=0, description="the cluster must have resources free for an actor or the learner ranks; missed: tried again")
    start_s: float = Field(1800.0, gt=0, description="an actor or a learner rank is up, its model loaded")
    push_s: float = Field(600.0, gt=0, description="an engine has loaded a weight push and sampled the canary")
    progress_s: float = Field(
        600.0, gt=0, description="an engine that has requests, is not paused and samples no token for so long is replaced; longer than the longest prefill"
    )
    learner_s: float = Field(3600.0, gt=0, description="one call of the learner is over: a step, the scores of a canary, writing weights or a checkpoint")


class Env(Section):
    """Where tools run."""

    name: str = Field("python_tir", description="which environment the tasks use, when a row does not say")
    url: str | None = Field(None, description="base URL of a running server; unset: the launcher starts one on loopback")
    token_env: str = Field("TIR_ENV_TOKEN", description="environment variable that holds the bearer token of the environment servers")
    file: str | None = Field(
        None, description="environment class of one's own, 'path/file.py:Class' or 'package.module:Class': the run starts its server (docs/environments.md)"
    )
    protocol: str = Field("zerotir", description="turn protocol: which text means a call and how its output is inserted; registered, or one's own")
    options: dict[str, Option] = Field(default_factory=dict, description="keyword arguments of the turn protocol besides max_calls and budget_message")
    max_calls: int = Field(2, ge=0, description="N: tool calls per response")
    step_timeout_s: float = Field(20.0, gt=0, description="deadline of one call; missed by server or network: the trajectory is failed")
    code_timeout_s: float = Field(5.0, gt=0, description="the snippet's own limit; exceeding it is the model's error, an observation")
    output_max_tokens: int = Field(256, ge=1, description="longer tool output is replaced by a message (zerotir) or cut (other protocols)")
    budget_message: bool = Field(False, description="tell the model when its calls are used up (the paper says so, its code does not)")
    reset_timeout_s: float = Field(60.0, gt=0, description="deadline of opening a session")
    capacity_timeout_s: float = Field(300.0, gt=0, description="how long one call may wait for room on full servers; then the trajectory is failed(capacity)")
    outage_timeout_s: float = Field(120.0, gt=0, description="how long a new session waits when every server of its environment is down")
    hedge_after_s: float | None = Field(None, gt=0, description="send a call a second time when it has had no answer for so long; the server runs an id once")
    max_retries: int = Field(3, ge=0, description="of a call whose connection broke; idempotent by step_id")
    max_concurrency: int = Field(256, ge=1, description="calls in flight per rollout actor and server; the server owns the real capacity")
    batch_wait_ms: float = Field(
        100.0,
        ge=0,
        description="how long a step waits for others that go to the same server in one streamed request; only where its /schema prefers batches; up to "
        "what a batch takes there, waiting saves more than it costs (`python -m benchmarks.rollout --only waiting`)",
    )
    max_batch: int = Field(64, ge=1, le=1024, description="with batch_wait_ms: go as soon as this many steps wait")
    workers: int = Field(2, ge=1, description="executions at once of a server started by us")
    stateful: bool = Field(False, description="a server started by us keeps a trajectory's Python state from call to call (python_tir)")


class Reward(Section):
    """What a response is worth. Functions: a registered name, 'package.module:function' or 'path/file.py:function' (docs/rewards.md)."""

    name: str = Field(
        "math",
        description="reward of one response: registered, or one's own; 'math' is 1.0 iff the boxed answer equals the label, in the required format, "
        "'env' what the environment gave",
    )
    weights: dict[str, float] = Field(
        default_factory=dict,
        description="a weighted sum of rewards instead of reward.name, e.g. env=1.0 format=0.1; the first decides what counts as correct",
    )
    group: str | None = Field(None, description="group reward: replaces the rewards of a prompt's trajectories after all of them are known; registered: otc")
    env_reduce: Literal["sum", "last", "max"] = Field("sum", description="how the rewards of an environment's replies become one (reward 'env')")
    verify_timeout_s: float = Field(
        5.0,
        gt=0,
        description="CPU seconds of one check, and of one call of a function of one's own; an answer whose symbolic check uses them up is not equal: data",
    )
    verify_deadline_s: float = Field(
        60.0, gt=0, description="what is not over by then, though it had CPU left to use, fails its sample (a starved host is no wrong answer)"
    )
    workers: int = Field(1, ge=1, description="processes that check answers and run functions of one's own, per rollout actor")
    format: Literal["think_answer", "answer", "boxed"] = Field(
        "answer", description="tags the response must have; 'think_answer' is ZeroTIR's, 'answer' its loose form"
    )
    options: dict[str, Option] = Field(
        default_factory=dict,
        description="what the reward can be told besides, e.g. zerotir's bonuses; with reward.weights a table per reward; registered ones refuse unknown keys",
    )
    group_options: dict[str, Option] = Field(default_factory=dict, description="what the group reward can be told")
    max_failed_groups: int = Field(
        3, ge=1, description="so many prompts one after the other whose groups failed by an error in reward, filter or protocol end the run, with the last one"
    )

    def options_of(self, name: str) -> dict[str, Option]:
        """The options of one reward: all of them, or with `weights` its own table."""
        if not self.weights:
            return self.options
        table = self.options.get(name, {})
        return table if isinstance(table, dict) else {}

    @model_validator(mode="after")
    def _weights_have_tables(self) -> Reward:
        if self.weights and (strange := sorted(set(self.options) - set(self.weights))):
            raise ValueError(
                f"reward.options.{strange[0]} belongs to no reward of reward.weights ({', '.join(self.weights)}). "
                f"With weights, options are a table per reward: [reward.options.{next(iter(self.weights))}]."
            )
        return self


class Filter(Section):
    """Which groups are worth training on. Each drop is counted by its reason."""

    names: list[str] | None = Field(
        None,
        description="filters in the order in which they are asked, registered or one's own; empty: none; unset: accuracy, and those that the settings below "
        "switch on. accuracy looks at what is correct, reward at rewards (filter.reward_range): with it, groups that are all right are kept",
    )
    sample: str | None = Field(None, description="which samples of a kept group are not trained, though their group counts them; registered: zerotir")
    options: dict[str, Option] = Field(default_factory=dict, description="what filters of one's own are told, as their second argument")
    reward_range: tuple[float, float] | None = Field(None, description="filter 'reward': keep iff lo < mean reward < hi, both strict, any numbers")
    max_verifier_failures: float = Field(0.4, ge=0, le=1, description="filter 'verifiers': drop groups of which a larger share has no verdict")
    accuracy_range: tuple[float, float] = Field((0.0, 1.0), description="filter 'accuracy': keep iff lo < mean accuracy < hi, both strict")
    zero_variance: bool = Field(True, description="drop groups whose rewards are all equal: their advantage is zero")
    max_length_gap: float | None = Field(None, gt=0, description="drop iff |mean length correct - mean length wrong| reaches it (tokens)")
    max_truncated: float = Field(1.0, ge=0, le=1, description="drop groups of which a larger share hit the length limit")

    @property
    def order(self) -> list[str]:
        """The filters that are asked. Unset, accuracy comes first: "all right" says more than "all equal"."""
        if self.names is not None:
            return self.names
        wanted = {"zero_variance": self.zero_variance, "length_gap": self.max_length_gap is not None, "truncated": self.max_truncated < 1}
        return ["accuracy", *(name for name, on in wanted.items() if on)]

    @model_validator(mode="after")
    def _named_filters_have_what_they_need(self) -> Filter:
        for name, setting in (("reward", "reward_range"), ("length_gap", "max_length_gap")):
            if name in self.order and getattr(self, setting) is None:
                raise ValueError(f"filter.names has {name!r}, which needs filter.{setting}, and that is unset. Set it, or leave {name!r} out.")
        if self.reward_range and not self.reward_range[0] < self.reward_range[1]:
            raise ValueError(f"filter.reward_range = {self.reward_range} is empty. Use lo < hi.")
        if len(set(self.order)) < len(self.order):
            raise ValueError(f"filter.names = {self.order} names a filter twice. Name each once.")
        return self


class Advantage(Section):
    estimator: str = Field(
        "reinforce_baseline",
        description="registered, or one's own; reinforce_baseline is REINFORCE++-baseline: reward minus group mean, whitened over the batch's trained tokens",
    )
    options: dict[str, Option] = Field(default_factory=dict, description="what an estimator of one's own is told, as AdvantageInputs.options")
    no_std_norm: bool = Field(False, description="keep the scale of the advantages: centre them only")
    gamma: float = Field(1.0, gt=0, le=1)
    is_correction_level: Literal["off", "token", "seq"] = "off"
    is_correction_mode: Literal["mask", "clip"] = "mask"
    is_correction_gating: Literal["ratio", "binary_kl", "tv"] = "ratio"
    is_correction_threshold: tuple[float, ...] = Field((0.5, 5.0), min_length=1, max_length=2, description="low and high bound; one value: high only")

    @model_validator(mode="after")
    def _correction_fits(self) -> Advantage:
        """OpenRLHF's PolicyLoss refuses the same, but in the first learner step."""
        if self.is_correction_level == "off":
            return self
        if self.is_correction_mode == "clip" and (self.is_correction_level == "seq" or self.is_correction_gating != "ratio"):
            raise ValueError(
                "algo.advantage.is_correction_mode = 'clip' clamps a per-token ratio: it needs is_correction_level = 'token' and "
                "is_correction_gating = 'ratio'. Use mode = 'mask' for the others."
            )
        if self.is_correction_gating != "ratio" and len(self.is_correction_threshold) == 2 and self.is_correction_threshold[0] > 0:
            raise ValueError(
                f"algo.advantage.is_correction_gating = '{self.is_correction_gating}' has an upper bound only, and the threshold is "
                f"{self.is_correction_threshold}. Give one value, e.g. 0.02."
            )
        return self


class Kl(Section):
    init_coef: float = Field(0.0, ge=0, le=0, description="KL to a reference model is off in all recipes; must stay 0 until the reference model is wired in")


class Algo(Section):
    advantage: Advantage = Field(default_factory=Advantage)
    kl: Kl = Field(default_factory=Kl)


class Train(Section):
    max_steps: int = Field(400, ge=1, description="learner updates")
    num_episodes: int = Field(1, ge=1, description="passes over the prompts; the run ends at max_steps or here")
    batch_size: int | None = Field(None, ge=1, description="samples per update; unset or rollout.batch_size * n_samples_per_prompt: one update per batch")
    micro_batch_size: int = Field(8, ge=1, description="sequences per forward, not counted with ds.packing_samples; changes speed and memory, not the gradient")
    max_tokens_per_gpu: int = Field(16192, ge=1, description="tokens per forward, padding included unless ds.packing_samples; what bounds memory")
    seed: int = Field(42, ge=0, lt=2**32, description="seed of everything that is drawn at random, 32 bits")
    resume: bool = Field(False, description="go on from ckpt.path's latest checkpoint; refused where there is none")
    resume_from: str = Field(
        "latest",
        description="with train.resume: which checkpoint, 'latest', a name like step_000020 (what came after it is trained again), or 'newest_whole': the "
        "latest that is not damaged",
    )
    new_ledger: bool = Field(
        False,
        description="with train.resume: go on though the ledger is lost or damaged; it is set aside, the new one begins with what was open at the checkpoint",
    )
    resume_or_start: bool = Field(
        False,
        description="with train.resume: start anew, and say so, where no checkpoint was committed yet; for job scripts that are run again",
    )
    overwrite: bool = Field(False, description="start anew in a run_dir that holds an earlier run's checkpoints; they are deleted")
    max_restarts: int = Field(
        0, ge=0, description="how often in a row a died controller is started again, with --train.resume; counted from 0 again after each new checkpoint"
    )
    start_wait_s: float = Field(
        0.0, ge=0, description="how long a start waits for what is not there yet: environment servers, room in the cluster, the run directory's lock; 0: refuse"
    )
    restart_wait_s: float = Field(900.0, ge=0, description="train.start_wait_s of the restarts by the launcher: what died may come back with us")
    max_learner_restarts: int = Field(
        3, ge=0, description="how often dead learner ranks are replaced, all of them from the last checkpoint, while the engines stay up"
    )
    env_mask: bool = Field(True, description="False trains on tool output as well (the seed work's 'world model' phase)")
    max_reissues: int = Field(5, ge=0, description="how often a group is issued again after its actor or environment failed")
    max_unused_batches: int = Field(
        8, ge=0, description="so many batches of groups in a row (at least 256 groups) all dropped or failed: say why, show one, and stop; 0: never"
    )
    max_nonfinite_steps: int = Field(3, ge=1, description="so many steps in a row whose gradient is not finite end the run; one alone is left out, and said")
    stop_grace_s: float = Field(
        20.0, gt=0, description="after SIGTERM or Ctrl-C: how long the running step and a checkpoint may take (Slurm and Kubernetes kill after 30 s)"
    )
    save_before_s: float | None = Field(
        None, gt=0, description="time limit of the job, in seconds from its start: stop in good order train.stop_grace_s and 10 s before; unset: none"
    )
    max_backoff_s: float = Field(
        60.0, gt=0, description="the longest pause before something that failed is tried again (a group, the controller); pauses begin at 1 s and double"
    )


class Pipeline(Section):
    mode: Literal["sync", "one_step", "pipeline", "pipeline_drain"] = Field(
        "pipeline", description="how rollout and training overlap; as a flag it undoes a recipe's max_staleness, depth and push_every for another mode"
    )
    max_staleness: int | None = Field(None, ge=0, description="S: learner version - token version <= S, always; default by mode: 0, 1, 4, 1")
    push_every: int = Field(
        1, ge=1, description="k: engines get new weights every k updates (and before an evaluation); between two pushes staleness grows, so k <= S + 1"
    )
    depth: int | Literal["auto"] | None = Field(
        None,
        description="a number: groups rolling + buffered at most, up to (S+1)*B, the default of pipeline_drain; auto, the default of pipeline: as many as keep "
        "learner and engines busy, from measured acceptance, latency and queues, so that tokens are seldom S old; above (S+1)*B when the filters reject most",
    )
    overadmit_risk: float = Field(
        0.01, gt=0, lt=0.5, description="depth = auto: probability that more groups are accepted than S has room for; the surplus prompts are queued again"
    )
    stall_timeout_s: float | None = Field(
        None, gt=0, description="no group and no step for so long: say which edge is blocked, and abort; default: rollout.group_deadline_s + 600"
    )

    @field_validator("depth", mode="before")
    @classmethod
    def _depth_is_a_number_or_auto(cls, v: Any) -> Any:
        """One sentence instead of pydantic's one per member of the union."""
        if v is None or v == "auto" or (str(v).isdecimal() and int(v) > 0):
            return v
        raise ValueError(f"pipeline.depth = {v!r} is neither a number of groups (1 or more) nor 'auto'. Use one of them, or leave it unset.")

    @property
    def S(self) -> int:
        default = {"sync": 0, "one_step": 1, "pipeline": 4, "pipeline_drain": 1}[self.mode]
        return default if self.max_staleness is None else self.max_staleness

    @property
    def drain(self) -> bool:
        """Whether running groups finish before a weight push (else: pause, push, resume in flight)."""
        return self.mode != "pipeline"

    @model_validator(mode="after")
    def _modes_are_presets(self) -> Pipeline:
        fixed = {"sync": 0, "one_step": 1}.get(self.mode)
        if fixed is not None and fixed != self.S:
            raise ValueError(
                f"pipeline.max_staleness = {self.S} does not go with pipeline.mode = '{self.mode}', which means {fixed}. "
                f"Leave it unset or set it to {fixed}, or use mode = 'pipeline'."
            )
        if fixed is None and self.S < 1:
            raise ValueError(
                f"pipeline.mode = '{self.mode}' overlaps rollout and training, which needs max_staleness >= 1 (it is {self.S}). "
                "Use mode = 'sync' for staleness 0."
            )
        if self.push_every > self.S + 1:
            raise ValueError(
                f"pipeline.push_every = {self.push_every}: the last update before a push would train tokens {self.push_every - 1} versions old, "
                f"and max_staleness is {self.S}. Use push_every <= {self.S + 1}, or raise max_staleness."
            )
        return self


class Data(Section):
    prompt_dataset: str = Field("", description="JSONL or parquet file, a directory of them, or a name for datasets.load_dataset")
    prompt_split: str = "train"
    input_key: str = "prompt"
    label_key: str = "label"
    env_key: str = Field("env", description="column that names the row's environment, if there is one")
    input_template: str | None = Field(None, description="text with {} where the input goes, or a template's name: zerotir, torl, user_assistant")
    apply_chat_template: bool = Field(False, description="render the input as a chat with the tokenizer's own template")
    max_samples: int = Field(100_000_000, ge=1)
    max_len: int = Field(10240, ge=2, description="prompt + response tokens; rows with longer prompts are dropped and counted")
    shuffle: bool = True


class Eval(Section):
    dataset: str | None = None
    split: str = "test"
    steps: int = Field(-1, description="evaluate every so many updates; -1: only before and after")
    n_samples_per_prompt: int = Field(4, ge=1)
    temperature: float = Field(1.0, ge=0, description="sampling temperature; 0 is greedy")
    max_samples: int = Field(256, ge=1)
    max_tries: int = Field(2, ge=1, description="how often an evaluation is tried before it is reported as failed; training goes on in any case")
    timeout_s: float = Field(14_400.0, gt=0, description="an evaluation that takes longer is given up")


class Ckpt(Section):
    path: str = Field("ckpt", description="directory of resumable checkpoints, relative to run_dir")
    save_steps: int = Field(20, ge=-1, description="every so many updates; -1: none but the last")
    max_num: int = Field(2, ge=1, description="how many are kept, the best by evaluation not counted")
    best_metric_key: str = Field(
        "eval/accuracy", description="the checkpoint with the highest value of this evaluation metric is kept and exported to <output_dir>_best; 'none': off"
    )
    output_dir: str = Field("model", description="directory of the final HF export, relative to run_dir")


class Logger(Section):
    logging_steps: int = Field(1, ge=1)
    tensorboard: bool = True
    trajectories: float = Field(
        0.0, ge=0, le=1, description="share of groups whose trajectories are kept in run_dir/trajectories, for `openrlhf-tir play RUN --step K`; 1: all"
    )
    worker_logs: bool = Field(False, description="print what actors and learner ranks log here as well; it is always in Ray's session directory")
    wandb: LoggerWandb = Field(default_factory=LoggerWandb)


class Config(Section):
    run_dir: Path = Path("runs/default")
    actor: Actor = Field(default_factory=Actor)
    ds: Ds = Field(default_factory=Ds)
    rollout: Rollout = Field(default_factory=Rollout)
    vllm: Vllm = Field(default_factory=Vllm)
    timeouts: Timeouts = Field(default_factory=Timeouts)
    env: Env = Field(default_factory=Env)
    reward: Reward = Field(default_factory=Reward)
    filter: Filter = Field(default_factory=Filter)
    algo: Algo = Field(default_factory=Algo)
    train: Train = Field(default_factory=Train)
    pipeline: Pipeline = Field(default_factory=Pipeline)
    data: Data = Field(default_factory=Data)
    eval: Eval = Field(default_factory=Eval)
    ckpt: Ckpt = Field(default_factory=Ckpt)
    logger: Logger = Field(default_factory=Logger)

    @field_validator("run_dir", mode="after")
    @classmethod
    def _absolute(cls, v: Path) -> Path:
        try:
            return asked(local_path(v, "run_dir"), Path.absolute, "run_dir")
        except ConfigError as e:
            raise ValueError(str(e)) from None

    @property
    def max_running(self) -> int:
        """Requests that an actor hands to its engine at once."""
        return self.rollout.max_running or self.vllm.max_num_seqs + (self.vllm.max_num_seqs + 3) // 4

    @property
    def canary_tolerance(self) -> float | None:
        """Of the canary after each push; None: to be calibrated."""
        fp32 = self.ds.param_dtype == "fp32" and self.vllm.dtype in ("auto", "float32")
        return self.vllm.canary_tolerance or (1e-4 if fp32 else None)

    @property
    def stall_timeout_s(self) -> float:
        """The watchdog's patience: longer than a group may take."""
        return self.pipeline.stall_timeout_s or self.rollout.group_deadline_s + 600

    @model_validator(mode="after")
    def _sections_fit_together(self, info: ValidationInfo) -> Config:
        if info.context is not WITHOUT_RULES and (violations := [*rules.violations(self)]):
            raise ValueError("\n".join(violations))
        return self
