"""Rollout actors and their engines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ..engine_args import checked, pipeline_stages
from .base import Option, Section


class Rollout(Section):
    """How responses are sampled."""

    batch_size: int = Field(128, ge=1, description="B: prompt groups per learner step")
    n_samples_per_prompt: int = Field(16, ge=1, description="n: responses per prompt")
    engine: Literal["vllm", "torch"] = Field(
        "vllm",
        description=(
            "'torch': plain transformers on CPU, one sequence at a time;"
            " the same bits whatever runs beside it, for tests of equality"
        ),
    )
    max_new_tokens: int = Field(8192, ge=1, description="response budget, model and environment tokens together")
    temperature: float = Field(
        1.0,
        ge=0.01,
        description=(
            "of the softmax that samples; with this and the next three the policy"
            " that is trained is the one that samples"
        ),
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description=(
            "sample from the most likely tokens that together have this probability; learner and engine cut alike"
        ),
    )
    top_k: int = Field(0, ge=0, description="sample from so many most likely tokens; 0: all")
    min_p: float = Field(
        0.0, ge=0, lt=1, description="sample from tokens at least so likely as the most likely one times this"
    )
    vllm_generate_batch_size: int | None = Field(
        None,
        ge=1,
        description=(
            "prompts that are sampled at once, at most, however many more pipeline.depth would admit; unset: those"
        ),
    )
    micro_batch_size: int | None = Field(
        None,
        ge=1,
        description=(
            "of the learner's passes without gradients (pi_old's and the reference's log-probs, values): sequences per"
            " forward; unset: train.micro_batch_size"
        ),
    )
    max_tokens_per_gpu: int | None = Field(
        None,
        ge=1,
        description=(
            "of the same passes: tokens per forward, which may be more, as nothing is kept for a backward;"
            " unset: train.max_tokens_per_gpu"
        ),
    )
    min_valid: int = Field(
        2,
        ge=1,
        description="a group with fewer trajectories that survived infrastructure faults is failed, not trained",
    )
    group_deadline_s: float = Field(
        3600.0, gt=0, description="a trajectory not finished by then is failed(deadline); the group goes on without it"
    )
    early_stop: bool = Field(
        False,
        description=(
            "give a group up as soon as filter.accuracy_range is sure to drop it; training is not changed, but what is"
            " measured of dropped groups is: their slowest samples are missing"
        ),
    )
    drift_check: float = Field(
        0.01,
        ge=0,
        le=1,
        description=(
            "share of trajectories whose tokens are decoded and compared with their text;"
            " one that differs is failed(token_drift)"
        ),
    )
    max_wait_ms: float = Field(
        0.0,
        ge=0,
        description=(
            "how long a ready trajectory waits for others of its environment before they go to the engine together; 0:"
            " not at all, which is best before an engine with continuous batching, where waiting only adds its own"
            " delay (`python -m benchmarks.rollout --only waiting`)"
        ),
    )
    max_batch: int = Field(256, ge=1, description="with max_wait_ms: go as soon as this many of one environment wait")
    heartbeat_s: float = Field(
        10.0,
        gt=0,
        description="how often an actor is asked for a sign of life; after three without one it gets no groups",
    )
    unresponsive_s: float = Field(
        300.0, gt=0, description="an actor silent for so long is replaced and its groups are issued again"
    )
    agent: Literal["turns", "external"] = Field(
        "turns",
        description=(
            "who writes a response: 'turns' (env.protocol in the environment), or 'external': programs that take tasks"
            " from the actors' endpoints and talk to the model with an OpenAI client (docs/rollout.md)"
        ),
    )
    agent_idle_s: float = Field(
        600.0,
        gt=0,
        description=(
            "an external agent, or a train.agent_func_path, not heard of for so long is lost:"
            " its trajectory is failed(agent_lost)"
        ),
    )
    agent_workers: int = Field(
        1, ge=1, description="processes per actor that execute train.agent_func_path; each runs many samples at once"
    )
    agent_overflow: Literal["fail", "cut"] = Field(
        "fail",
        description=(
            "an external agent that fails since its conversation is longer than the model's context: 'fail' leaves the"
            " trajectory out, 'cut' trains it as one that reached its limit, judged by the run's own reward"
        ),
    )
    token_env: str = Field(
        "TIR_ROLLOUT_TOKEN",
        description=(
            "environment variable with the bearer token of the actors' endpoints, another than env.token_env's; unset,"
            " and environments have a token: one is made, in run_dir/endpoints/token"
        ),
    )
    port: int = Field(
        0, ge=0, le=65535, description="port of the first actor's endpoint, actor i has port + i; 0: any free one"
    )
    per_request_seeds: bool = Field(
        False,
        description=(
            "seed every request from (train.seed, prompt, sample, turn): same responses whatever the batching; slower"
        ),
    )

    routing_replay: bool = Field(
        False,
        description=(
            "mixtures of experts: the engine returns the experts of each token, and the learner computes the token with"
            " the same ones; the gate's weights are still the learner's own. Without it rounding sends some tokens to"
            " other experts than those that sampled them"
        ),
    )

    @property
    def plain(self) -> bool:
        """Whether what samples is the model's softmax itself."""
        return (self.temperature, self.top_p, self.top_k, self.min_p) == (1.0, 1.0, 0, 0.0)


class Vllm(Section):
    """The rollout engines."""

    num_engines: int = Field(1, ge=1)
    tensor_parallel_size: int = Field(
        1, ge=1, description="GPUs that hold one engine's weights together; on CPU: processes"
    )
    enforce_eager: bool = Field(False, description="no CUDA graphs; needed on CPU")
    enable_prefix_caching: bool = True
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    max_num_seqs: int = Field(512, ge=1, description="sequences decoded together")
    max_model_len: int | None = Field(
        None,
        ge=1,
        description="tokens of prompt and response that the engine takes, at least data.max_len, the default",
    )
    kv_cache_mib: int | None = Field(
        None,
        ge=16,
        description=(
            "MiB of an engine's KV cache; unset: 256 on CPU, on a GPU what vllm.gpu_memory_utilization leaves beside"
            " the weights. Set it where a learner is on the same GPU (train.share_gpus)"
        ),
    )
    packed_logprobs: bool = Field(
        True,
        description=(
            "the engine's process holds sampled tokens and sends them together, their log-probs as one array, which"
            " costs a fraction of vLLM's own way; false: vLLM's own way. Not used with a vllm.engine_args.scheduler_cls"
            " of one's own"
        ),
    )
    tool_call_parser: str | None = Field(
        None,
        description=(
            "vLLM's parser that turns the model's text into tool_calls on the OpenAI endpoint, e.g. hermes; unset: none"
        ),
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto", description="auto: the learner's ds.param_dtype"
    )
    sync_backend: Literal["auto", "file", "ipc", "gloo", "nccl"] = Field(
        "auto",
        description=(
            "transport of weight pushes. 'auto': 'ipc' with train.share_gpus, else 'file'. 'file': shared memory on one"
            " node, else the run directory. 'ipc': CUDA IPC, for an engine on the learner's GPU; where it does not work"
            " the run says so once and pushes by file. The others broadcast to all engines at once and need no file"
            " system: 'gloo' over TCP by way of the hosts' memory, slow between GPUs; 'nccl' between GPUs, not tried on"
            " any yet"
        ),
    )
    sync_bucket_mib: int = Field(
        512,
        ge=1,
        description=(
            "ipc, gloo and nccl: weights gathered and sent at a time. With gloo and nccl the learner's first rank and"
            " every worker of an engine hold two such buffers; with ipc every learner rank keeps two, or as much as"
            " the weights need"
        ),
    )
    sync_delta: bool = Field(
        False,
        description=(
            "a push holds only the weights that changed since the last one, exactly; for bf16 and engines on several"
            " nodes: some 1/20 of the bytes. Learner rank 0 and every node of"
            " engines keep a copy of the weights in memory"
        ),
    )
    canary_tolerance: float | None = Field(
        None,
        gt=0,
        description=(
            "largest mean of |log-prob difference| / (1 - p) of engine and learner accepted after a push, over the"
            " uncertain tokens of the canary; default: 1e-4 in fp32, else twice the median of the last accepted pushes"
        ),
    )
    canary_ceiling: float = Field(
        0.5,
        gt=0,
        description=(
            "the default of vllm.canary_tolerance never exceeds it, no single token's log-prob may differ by ten times"
            " as many nats, and engine and learner whose mean differs by more at the start do not have the same model"
        ),
    )
    engine_args: Annotated[dict[str, Option], AfterValidator(checked)] = Field(
        default_factory=dict,
        description=(
            "more of vLLM's engine arguments by their names, e.g. pipeline_parallel_size, max_num_batched_tokens,"
            " kv_cache_dtype, hf_overrides; refused: what has a setting of its own, and what versions, log-probs or"
            " pushes depend on"
        ),
    )

    @property
    def world_size(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel_size * pipeline_stages(self.engine_args)
