"""Rollout actors and their engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator

from ..engine_args import checked, pipeline_stages
from ..setting import ALLOWED, Fault, refused, rule, setting
from .base import Option, Section
from .conditions import WITH_VLLM
from .reward import REMOTE

if TYPE_CHECKING:
    from ..schema import Config


class Rollout(Section):
    """How responses are sampled."""

    batch_size: int = setting(
        128,
        ge=1,
        description="Prompts of a batch, one group of responses each.",
        short="prompts of a batch",
        unit="groups",
        resume=refused("the accounting of groups was made for it"),
        openrlhf=True,
    )
    n_samples_per_prompt: int = setting(16, ge=1, description="Responses to each prompt.", openrlhf=True)
    engine: Literal["vllm", "torch"] = setting(
        "vllm",
        description=(
            "Engine that samples. 'torch' is plain transformers on CPU, one sequence at a time: its results do not"
            " depend on what runs beside it, which tests of equality need."
        ),
    )
    max_new_tokens: int = setting(
        8192,
        ge=1,
        description="Length of a response, model and environment tokens together.",
        short="tokens of a response",
        unit="tokens",
        openrlhf=True,
    )
    temperature: float = setting(
        1.0,
        ge=0.01,
        description=(
            "Sampling temperature. The policy that is trained is the one that samples, with this and the next three"
            " settings."
        ),
        openrlhf=True,
    )
    top_p: float = setting(
        1.0,
        gt=0,
        le=1,
        description=(
            "Top-p sampling: keep the most likely tokens that together have this probability. Learner and engine cut"
            " alike."
        ),
        openrlhf=True,
    )
    top_k: int = setting(0, ge=0, description="Top-k sampling: keep the k most likely tokens. 0: all.")
    min_p: float = setting(0.0, ge=0, lt=1, description="Min-p sampling: keep tokens with p >= min_p * p_max.")
    vllm_generate_batch_size: int | None = setting(
        None,
        ge=1,
        description="Prompts that are sampled at a time, if fewer than pipeline.depth allows. Unset: no such limit.",
        unit="prompts",
        resume=ALLOWED,
        openrlhf=True,
    )
    micro_batch_size: int | None = setting(
        None,
        ge=1,
        description=(
            "Sequences per forward pass in the learner's passes without gradients (log-probs of pi_old and the"
            " reference, values). Unset: train.micro_batch_size."
        ),
        unit="sequences",
        resume=ALLOWED,
        openrlhf=True,
    )
    max_tokens_per_gpu: int | None = setting(
        None,
        ge=1,
        description=(
            "Tokens per forward pass in the same passes. It may be larger than train.max_tokens_per_gpu, the default,"
            " as nothing is kept for a backward pass."
        ),
        unit="tokens",
        resume=ALLOWED,
        openrlhf=True,
    )
    min_valid: int = setting(
        2,
        ge=1,
        description="A group with fewer trajectories that survived infrastructure faults is failed, not trained.",
        unit="trajectories",
    )
    group_deadline_s: float = setting(
        3600.0,
        gt=0,
        description=(
            "A trajectory that is not finished by then has failed (deadline); its group goes on without it. An agent"
            " that is silent for a sixth of it is lost (agent_lost), but not before 600 s or env.step_timeout_s. The"
            " run is aborted, and says what it waits for, if no group and no step ends for as long and the longer of"
            " timeouts.push_s and timeouts.learner_s."
        ),
        unit="seconds",
    )
    early_stop: bool = setting(
        False,
        description=(
            "End a group as soon as filter.accuracy_range is sure to drop it. Training does not change, but statistics"
            " of dropped groups do: their slowest samples are missing."
        ),
    )
    drift_check: float = setting(
        0.01,
        ge=0,
        le=1,
        description=(
            "Share of trajectories whose tokens are decoded and compared with their text. One that differs has failed"
            " (token_drift)."
        ),
        unit="share",
    )
    max_wait_ms: float = setting(
        0.0,
        ge=0,
        description=(
            "How long a ready trajectory waits for others of its environment before they go to the engine together. 0"
            " is best for an engine with continuous batching, where waiting only adds its own delay"
            " (`python -m benchmarks.rollout --only waiting`)."
        ),
        unit="milliseconds",
    )
    agent: Literal["turns", "external"] = setting(
        "turns",
        description=(
            "Who writes a response. 'turns': the model and the environment, by env.protocol. 'external': programs that"
            " take tasks from the actors' endpoints and talk to the model with an OpenAI client (docs/rollout.md)."
        ),
    )
    port: int = setting(
        0,
        ge=0,
        le=65535,
        description="Port of the first actor's endpoint; actor i has port + i. 0: any free port.",
        short="port of the first engine; 0: any free one",
        resume=ALLOWED,
    )
    routing_replay: bool = setting(
        False,
        description=(
            "For mixtures of experts: the engine returns the experts of each token, and the learner computes the token"
            " with the same ones, weighted by its own gate. Without it rounding sends some tokens to other experts than"
            " those that sampled them."
        ),
    )

    @property
    def plain(self) -> bool:
        """True if the sampling distribution is the model's softmax itself."""
        return (self.temperature, self.top_p, self.top_k, self.min_p) == (1.0, 1.0, 0, 0.0)


FP32_TOLERANCE = 1e-3
"""vllm.canary_tolerance of a run that computes in fp32, in nats. torch's log_softmax on a CPU is wrong by up to
5e-5 over a large vocabulary, and the proof divides by 1 - p, at least 0.05 (docs/weights.md)."""


class Vllm(Section):
    """The rollout engines."""

    num_engines: int = setting(1, ge=1, description="Rollout engines.", resume=ALLOWED, openrlhf=True)
    tensor_parallel_size: int = setting(
        1,
        ge=1,
        description="GPUs that hold one engine's weights together; on CPU: processes.",
        short="GPUs of an engine",
        resume=ALLOWED,
        openrlhf=True,
    )
    enforce_eager: bool = setting(
        False,
        description="Use no CUDA graphs. Needed on CPU.",
        active_when=WITH_VLLM,
        resume=ALLOWED,
        openrlhf=True,
    )
    enable_prefix_caching: bool = setting(
        True,
        description="Compute a prefix that several requests share once.",
        active_when=WITH_VLLM,
        resume=ALLOWED,
        openrlhf=True,
    )
    gpu_memory_utilization: float = setting(
        0.9,
        gt=0,
        le=1,
        description="Share of a GPU's memory that an engine uses.",
        active_when=WITH_VLLM,
        resume=ALLOWED,
        openrlhf=True,
    )
    max_num_seqs: int = setting(
        512, ge=1, description="Sequences that an engine decodes together.", unit="sequences", resume=ALLOWED
    )
    kv_cache_mib: int | None = setting(
        None,
        ge=16,
        description=(
            "Size of an engine's KV cache. Unset: 256 on CPU; on a GPU what vllm.gpu_memory_utilization leaves beside"
            " the weights. Set it if a learner is on the same GPU (train.share_gpus)."
        ),
        unit="MiB",
        active_when=WITH_VLLM,
        resume=ALLOWED,
    )
    tool_call_parser: str | None = setting(
        None,
        description=(
            "vLLM's parser that turns the model's text into tool_calls on the OpenAI endpoint, such as hermes. Unset:"
            " none, and requests with tools are refused."
        ),
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto", description="Data type of the engine's weights. auto: the learner's ds.param_dtype."
    )
    sync_backend: Literal["auto", "file", "delta", "ipc", "gloo", "nccl"] = setting(
        "auto",
        description=(
            "Transport of weight pushes. auto: ipc with train.share_gpus, else file. file: shared memory on one node,"
            " else the run directory. delta: files of the weights that changed since the last push, exactly: for bf16"
            " and engines on several nodes, about 1/20 of the bytes; learner rank 0 and every node with engines keep a"
            " copy of the weights in memory. ipc: CUDA IPC, for an engine on the learner's GPU; where it does not work,"
            " the run reports that once and pushes by file. The others broadcast to all engines at once and need no"
            " file system: gloo over TCP by way of host memory, slow between GPUs; nccl between GPUs, not tried on any"
            " yet."
        ),
        openrlhf=True,
    )
    canary_tolerance: float | None = setting(
        None,
        gt=0,
        description=(
            "Largest mean of |log-prob difference| / (1 - p) between engine and learner that is accepted after a push,"
            f" over the uncertain tokens of the canary. Unset: {FP32_TOLERANCE:g} in fp32, else twice the median of the"
            " last accepted pushes, at most 0.5. Engine and learner that differ by more than 0.5 at the start do not"
            " have the same model, and no single token's log-prob may differ by 5."
        ),
        unit="nats",
    )
    engine_args: Annotated[dict[str, Option], AfterValidator(checked)] = setting(
        default_factory=dict,
        description=(
            "More of vLLM's engine arguments by their names, e.g. pipeline_parallel_size, max_num_batched_tokens,"
            " kv_cache_dtype, hf_overrides. Refused: arguments with a setting of their own, and those on which"
            " versions, log-probs or pushes depend."
        ),
        active_when=WITH_VLLM,
    )

    @property
    def pushes_changes(self) -> bool:
        """True if a push holds only what changed since the last one."""
        return self.sync_backend == "delta"

    @property
    def world_size(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel_size * pipeline_stages(self.engine_args)


def tensor_parallel_fault(size: int, heads: int, kv_heads: int) -> str | None:
    """Return why vLLM cannot spread a model's heads over `size` workers; None if it can.

    Every worker has as many attention heads, and as many key-value heads; of these, several workers may have a copy.
    """

    def shared_by(workers: int) -> bool:
        return heads % workers == 0 and (kv_heads % workers == 0 or workers % kv_heads == 0)

    if shared_by(size):
        return None
    sizes = ", ".join(str(workers) for workers in range(1, heads + 1) if shared_by(workers))
    return (
        f"vllm.tensor_parallel_size = {size}: the model's {heads} attention heads and {kv_heads} key-value heads cannot"
        f" be spread evenly over {size} workers. Use one of {sizes}."
    )


@rule("rollout.n_samples_per_prompt")
def samples_divide_over_the_ranks(c: Config) -> Iterator[Fault]:
    prompts = c.rollout.batch_size
    per_prompt = c.rollout.n_samples_per_prompt
    if prompts * per_prompt % c.shards:
        yield (
            f"{prompts} prompts * {per_prompt} samples = {prompts * per_prompt} trajectories do not divide over"
            f" {c.shards} learner ranks. Change rollout.batch_size or actor.num_gpus_per_node."
        )


@rule("rollout.min_valid")
def a_group_can_be_valid(c: Config) -> Iterator[Fault]:
    if c.rollout.n_samples_per_prompt < c.rollout.min_valid:
        yield (
            f"rollout.min_valid = {c.rollout.min_valid} exceeds rollout.n_samples_per_prompt ="
            f" {c.rollout.n_samples_per_prompt}: every group would fail. Lower min_valid."
        )


@rule("rollout.early_stop")
def early_stop_knows_the_rewards(c: Config) -> Iterator[Fault]:
    has_remote = any(REMOTE in environment.reward.used for environment in c.resolved_environments.values())
    if c.rollout.early_stop and (c.train.agent_func_path or has_remote):
        yield (
            "rollout.early_stop counts on rewards that are right or wrong, and an agent file or a remote reward may"
            " give any score. Switch it off."
        )


@rule("rollout.top_p")
def external_agents_sample_from_all_tokens(c: Config) -> Iterator[Fault]:
    rollout = c.rollout
    if rollout.agent == "external" and (rollout.top_p, rollout.top_k, rollout.min_p) != (1.0, 0, 0.0):
        yield (
            f"rollout.top_p = {rollout.top_p:g}, rollout.top_k = {rollout.top_k}, rollout.min_p = {rollout.min_p:g}"
            " with rollout.agent = 'external': programs that talk to the model sample from all tokens."
            " Leave the three unset; rollout.temperature is free."
        )


@rule("rollout.vllm_generate_batch_size")
def sync_samples_one_batch(c: Config) -> Iterator[Fault]:
    at_a_time = c.rollout.vllm_generate_batch_size
    if at_a_time is not None and at_a_time > c.rollout.batch_size and c.pipeline.plan.is_preset:
        yield (
            f"rollout.vllm_generate_batch_size = {at_a_time} is more than rollout.batch_size ="
            f" {c.rollout.batch_size}, and pipeline.mode = '{c.pipeline.mode}' samples one batch at a time. Lower it,"
            " or use --pipeline.mode pipeline."
        )


@rule("rollout.routing_replay")
def routing_replay_gets_the_experts_of_tokens(c: Config) -> Iterator[Fault]:
    if not c.rollout.routing_replay:
        return
    if c.rollout.engine != "vllm":
        yield (
            f"rollout.routing_replay needs rollout.engine = 'vllm'; '{c.rollout.engine}' does not report the experts of"
            " a token. Change one of them."
        )
    if c.by_agent:
        yield (
            "rollout.routing_replay does not work with agents (rollout.agent = 'external', train.agent_func_path):"
            " their requests come back without the experts of the tokens. Set rollout.routing_replay to false."
        )
    stages = pipeline_stages(c.vllm.engine_args)
    if stages > 1:
        yield (
            f"rollout.routing_replay does not work with vllm.engine_args.pipeline_parallel_size = {stages}: vLLM"
            " reports the experts of one stage only. Use vllm.tensor_parallel_size."
        )


@rule("vllm.sync_backend")
def ipc_needs_a_shared_gpu(c: Config) -> Iterator[Fault]:
    if c.vllm.sync_backend == "ipc" and not c.train.share_gpus:
        yield (
            "vllm.sync_backend = 'ipc' maps the learner's memory into an engine that is on the same GPU at the same"
            " time, which only train.share_gpus allows. Set that, or use 'nccl' or 'file'."
        )
