"""The environment."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from .base import Option, Section


def _tool(value: Any) -> Any:
    """A schema as a table, or, on the command line, as JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as e:
        raise ValueError(f"a tool's schema is JSON, and this is not: {e}") from None


Tool = Annotated[dict[str, Any], BeforeValidator(_tool)]


class Env(Section):
    """Where tools run."""

    name: str = Field("python_tir", description="which environment the tasks use, when a row does not say")
    url: str | None = Field(
        None, description="base URL of a running server; unset: the launcher starts one on loopback"
    )
    server: str | None = Field(
        None,
        description=(
            "which environment its server is, if not what its name says: python_tir, search, math, functions, swe,"
            " puzzles, echo, mcp, openenv, verl_tool, gem, bfcl, tau (the run starts these), or what /schema of the"
            " server at the URL says"
        ),
    )
    server_options: dict[str, Option] = Field(
        default_factory=dict,
        description=(
            'command-line flags of a server started by us, without the dashes, e.g. { corpus = "wiki.jsonl", topk = 5 }'
            " for search; with env.file also keyword arguments of the class"
        ),
    )
    token_env: str = Field(
        "TIR_ENV_TOKEN", description="environment variable that holds the bearer token of the environment servers"
    )
    file: str | None = Field(
        None,
        description=(
            "environment class of one's own, 'path/file.py:Class', 'path/file.py' (of one class) or"
            " 'package.module:Class': the run starts its server (docs/environments.md)"
        ),
    )
    protocol: str = Field(
        "zerotir",
        description=(
            "turn or messages protocol: which text means a call and how its output is shown; registered, or one's own"
        ),
    )
    options: dict[str, Option] = Field(
        default_factory=dict, description="keyword arguments of the turn protocol besides max_calls and budget_message"
    )
    tools: list[Tool] = Field(
        default_factory=list,
        description=(
            "schemas of the tools, as OpenAI's, for the chat template of a messages protocol; unset: what the"
            " environment says of itself (/schema)"
        ),
    )
    template_rewrites: Literal["keep", "refuse"] = Field(
        "keep",
        description=(
            "of a messages protocol, when the chat template shows earlier turns otherwise than they were sampled (Qwen3"
            " leaves thinking out): 'keep' what was sampled, and say so; or 'refuse' to run"
        ),
    )
    max_calls: int = Field(2, ge=0, description="N: tool calls per response")
    step_timeout_s: float = Field(
        20.0, gt=0, description="deadline of one call; missed by server or network: the trajectory is failed"
    )
    code_timeout_s: float = Field(
        5.0, gt=0, description="the snippet's own limit; exceeding it is the model's error, an observation"
    )
    output_max_tokens: int = Field(
        256, ge=1, description="longer tool output is replaced by a message (zerotir) or cut (other protocols)"
    )
    budget_message: bool = Field(
        False, description="tell the model when its calls are used up (the paper says so, its code does not)"
    )
    reset_timeout_s: float = Field(60.0, gt=0, description="deadline of opening a session")
    capacity_timeout_s: float = Field(
        300.0,
        gt=0,
        description="how long one call may wait for room on full servers; then the trajectory is failed(capacity)",
    )
    outage_timeout_s: float = Field(
        120.0, gt=0, description="how long a new session waits when every server of its environment is down"
    )
    max_retries: int = Field(3, ge=0, description="of a call whose connection broke; idempotent by step_id")
    max_concurrency: int = Field(
        256, ge=1, description="calls in flight per rollout actor and server; the server owns the real capacity"
    )
    batch_wait_ms: float = Field(
        100.0,
        ge=0,
        description=(
            "how long a step waits for others that go to the same server in one streamed request; only where its"
            " /schema prefers batches; up to what a batch takes there, waiting saves more than it costs (`python -m"
            " benchmarks.rollout --only waiting`)"
        ),
    )
    max_batch: int = Field(64, ge=1, le=1024, description="with batch_wait_ms: go as soon as this many steps wait")
    workers: int = Field(2, ge=1, description="executions at once of a server started by us")
    stateful: bool = Field(
        False, description="a server started by us keeps a trajectory's Python state from call to call (python_tir)"
    )
