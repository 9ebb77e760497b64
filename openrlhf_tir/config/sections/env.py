"""The environment."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from ...protocol import MAX_DEADLINE_S
from ..servers import OTHER, SERVERS
from ..setting import ALLOWED, Condition, setting
from .base import Option, Section
from .conditions import TURN_LOOP

if TYPE_CHECKING:
    from ..schema import Config


def _tool(value: Any) -> Any:
    """Return a tool's schema as a table; on the command line it is JSON text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as e:
        raise ValueError(f"a tool's schema is JSON, and this is not: {e}. Write a JSON object.") from None


RESET_PER_STEP = 3
"""Deadline of a reset over that of a step."""
Tool = Annotated[dict[str, Any], BeforeValidator(_tool)]


def _may_be_python_tir(c: Config) -> bool:
    """Return True for python_tir, and for a server at a URL, which may be one."""
    server = SERVERS.get(c.env.server or c.env.name, OTHER)
    return c.env.url is not None or (c.env.file is None and server.takes_code_timeout)


ONE_ENVIRONMENT = Condition(
    "without [envs.NAME], since each of these sections has its own",
    lambda c: not c.envs,
    of_run=True,
)
OWN_SERVER = Condition("with env.url unset, for a server that the run starts", lambda c: c.env.url is None)
NO_AGENT_FILE = Condition(
    "without train.agent_func_path, whose file is the environment", lambda c: c.train.agent_func_path is None
)
MAY_BE_PYTHON_TIR = Condition(
    "with the environment python_tir (env.name, env.server); others have env.server_options",
    _may_be_python_tir,
)


class Env(Section):
    """Where tools run."""

    name: str = setting(
        "python_tir",
        description="Environment of the tasks whose row names none.",
        short="the environment; see `openrlhf-tir envs`",
        active_when=ONE_ENVIRONMENT,
    )
    url: str | None = setting(
        None,
        description=(
            "Base URL of a running server; several, separated by commas, share the load. Unset: the run starts one on"
            " loopback."
        ),
        active_when=(NO_AGENT_FILE, ONE_ENVIRONMENT),
        resume=ALLOWED,
    )
    server: str | None = setting(
        None,
        description=(
            f"Environment that the server is, if its section has another name: {', '.join(SERVERS)} (the run starts"
            " these), or what /schema of the server at env.url says."
        ),
        active_when=ONE_ENVIRONMENT,
    )
    server_options: dict[str, Option] = setting(
        default_factory=dict,
        description=(
            "Command-line flags of a server that the run starts, without the dashes, e.g."
            ' { corpus = "wiki.jsonl", topk = 5 } for search, { stateful = true } for python_tir, whose sessions then'
            " keep their Python state from call to call; with env.file also keyword arguments of the class."
        ),
        active_when=(OWN_SERVER, ONE_ENVIRONMENT),
    )
    file: str | None = setting(
        None,
        description=(
            "Your own environment class: 'path/file.py:Class', 'path/file.py' with one class in it, or"
            " 'package.module:Class'. The run starts its server (docs/environments.md)."
        ),
        short="your own environment: path/file.py:Class",
        active_when=(NO_AGENT_FILE, ONE_ENVIRONMENT),
        names="user_code",
    )
    protocol: str = setting(
        "zerotir",
        description=(
            "Turn or messages protocol: which text is a call, and how its output is shown. A registered name or your"
            " own class."
        ),
        short="what a call is: a turn protocol",
        active_when=TURN_LOOP,
        names="user_code",
    )
    options: dict[str, Option] = setting(
        default_factory=dict,
        description=(
            "Keyword arguments of the turn protocol besides max_calls, e.g. budget_message = true: tell the model when"
            " its calls are used up."
        ),
        active_when=TURN_LOOP,
    )
    tools: list[Tool] = setting(
        default_factory=list,
        description=(
            "OpenAI schemas of the tools for the chat template of a messages protocol. Unset: those that the"
            " environment reports at /schema."
        ),
    )
    max_calls: int = setting(
        2, ge=0, description="Tool calls of a response at most; 0: no tool.", unit="calls", active_when=TURN_LOOP
    )
    step_timeout_s: float = setting(
        20.0,
        gt=0,
        le=MAX_DEADLINE_S,
        description=(
            "Deadline of one call; opening a session has three times as long. If server or network miss it, the"
            " trajectory has failed."
        ),
        unit="seconds",
    )
    code_timeout_s: float = setting(
        5.0,
        gt=0,
        le=MAX_DEADLINE_S,
        description=(
            "Time limit of a code snippet. Exceeding it is the model's error, and it sees a message, unless the"
            " machine had no core for the snippet in most of that time. A server at env.url must have been started"
            " with this --code-timeout."
        ),
        unit="seconds",
        active_when=MAY_BE_PYTHON_TIR,
    )
    output_max_tokens: int = setting(
        256,
        ge=1,
        description="Longer tool output is replaced by a message (protocol zerotir) or cut (other protocols).",
        unit="tokens",
        active_when=TURN_LOOP,
    )
    max_concurrency: int = setting(
        256,
        ge=1,
        description="Calls that one rollout actor has under way at one server. The server's own capacity decides.",
        unit="calls",
    )
    workers: int = setting(
        2,
        ge=1,
        description="Steps that a server executes at a time.",
        active_when=(
            NO_AGENT_FILE,
            OWN_SERVER,
            Condition(
                "without env.file, since the server of an environment class runs eight calls at a time",
                lambda c: c.env.file is None,
            ),
        ),
        resume=ALLOWED,
    )

    @property
    def reset_timeout_s(self) -> float:
        """Seconds to open a session, which may start a process or a container where a step only uses it."""
        return RESET_PER_STEP * self.step_timeout_s
