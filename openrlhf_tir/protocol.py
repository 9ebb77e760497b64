"""Wire types of environments: what trainer and environment server say to each other. pydantic only.

    POST /reset       ResetRequest  -> ResetReply
    POST /step        StepRequest   -> StepReply        (429 + Retry-After when full, 401 without the token)
    POST /step_batch  [StepRequest] -> NDJSON of StepReply, each as it finishes
    DELETE /session/{id}            -> {"closed": bool}  (optional: "signals" with CODE_DEFECT, if closing it failed)
    DELETE /sessions/{owner}        -> {"closed": int}  (optional: every session whose id begins with "{owner}.")
    GET  /health                    -> Health
    GET  /schema                    -> EnvSchema

Outcomes, and what the trainer makes of them:

    ok           the action ran                                     observation, trained
    model_error  the action was wrong (syntax, exception, its own    observation, trained
                 time limit: signals["error_type"] == "time_limit")
    env_error    the environment broke                              trajectory failed, never a reward
                 with signals["code_defect"] = "file:line": its      the group is failed, and not tried again; before
                 author's code is wrong                              the first update the run ends
                 with signals["no_session"], in a batch: the         as 404 of a single step: the session is lost
                 server does not know the session
    timeout      server or network missed `deadline_s`              trajectory failed, never a reward
    capacity     the server is full (HTTP 429)                      tried again, no failure
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Outcome = Literal["ok", "model_error", "env_error", "timeout", "capacity"]
MAX_REPLY_BYTES = 1 << 20
"""What a trainer reads of one reply. A server cuts a longer observation; a longer reply is nonsense to a trainer."""
MAX_DEADLINE_S = 3600
"""Longest deadline of a step, in seconds."""
TRAINABLE_OUTCOMES: frozenset[str] = frozenset({"ok", "model_error"})
CODE_DEFECT = "code_defect"
"""Signal of a reply whose environment's code is wrong; its value is "file:line"."""
NO_SESSION = "no_session"
"""Signal of an item of a batch whose session the server does not know. A single step is answered with HTTP 404."""


PYTHON_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Runs Python source code and returns what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "the source code"}},
            "required": ["code"],
        },
    },
}
"""python_tir's, in the form of OpenAI's; its action is the argument `code`."""


NOT_NEEDED = "not_needed"
"""Isolation of a server that runs no code of the model."""
UNISOLATED = "none"
"""Isolation of a server that runs the model's code, and nothing confines it."""
UNKNOWN = "unknown"
"""Isolation of a server that hands actions on to another program, which may run code."""


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ResetRequest(_Wire):
    task: dict[str, Any] = Field(default_factory=dict, description="what the environment needs to know of the problem")
    seed: int = Field(default=0, ge=-(1 << 63), lt=1 << 64)
    session_id: str | None = Field(
        default=None, max_length=128, description="chosen by the client, so that a retry is idempotent"
    )


class ResetReply(_Wire):
    session_id: str
    observation: str = ""
    server: str | None = Field(
        default=None, description="base URL of the process that holds the session; send its steps there"
    )


class StepRequest(_Wire):
    session_id: str = Field(max_length=128)
    step_id: int = Field(
        ge=0, lt=1 << 53, description="counts up within a session; the same id again returns the cached reply"
    )
    action: str
    deadline_s: float = Field(gt=0, le=MAX_DEADLINE_S, description="seconds until the caller gives up, from receipt")


class StepReply(_Wire):
    session_id: str
    step_id: int
    observation: str = ""
    reward: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="what this action earned; the trainer's reward 'env' adds them up",
    )
    done: bool = Field(
        default=False, description="the episode is over: this observation is appended, and nothing is sampled after it"
    )
    truncated: bool = Field(default=False, description="the episode is cut here, as if it had run out of tokens")
    outcome: Outcome = "ok"
    signals: dict[str, Any] = Field(default_factory=dict, description="raw facts; the trainer's reward weighs them")


class Health(_Wire):
    status: Literal["ok", "draining", "degraded"] = "ok"
    env: str
    isolation: str = Field(
        default=UNKNOWN,
        description=(
            "what confines the model's code: a level by name; none: nothing does; not_needed:"
            " it runs no code; unknown: it is not said"
        ),
    )
    sessions: int = 0
    capacity: int = 0
    running: int = 0


class EnvSchema(_Wire):
    env: str
    action: str = Field(description="what an action is, e.g. 'python source code'")
    capacity: int = Field(description="executions the server runs at once; more wait or get 429")
    prefers_batches: bool = False
    stateful: bool = False
    languages: list[str] = Field(default_factory=list, description="what its /run_code runs, where it has one")
    code_timeout_s: float | None = Field(
        default=None, description="wall-clock limit of one action that is code; null: it runs none, or does not say"
    )
    tools: list[dict[str, Any]] = Field(
        default_factory=list, description="schemas of its tools, as OpenAI's, for the model's chat template"
    )
