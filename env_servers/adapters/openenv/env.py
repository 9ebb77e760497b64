"""An episode on an OpenEnv server. Its reward and its `done` are the step's; without a reward there is none.

action        the text of the one field that the server's actions have (`Shape.field`); otherwise a JSON object of its
              fields, or the call of the tool `step` with them, as a messages protocol sends it
observation   the text of the one field that its observations have (`Shape.shown_field`); otherwise all fields as JSON

OpenEnv has no truncated episodes: an observation that is `done` and has a field `truncated` which is true, as those of
our servers behind `serve` have, is truncated.

An action that the server refuses is an observation and is trained (model_error, signals.error_type "bad_action"). A
failure of the server's own code, or an invalid object of its own, is env_error: the model may have caused it, but
nothing distinguishes that from a broken server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp

from env_servers.actions import BadAction, read_json
from env_servers.env import Env, Step

from .link import OpenEnvLink, OpenEnvMismatch, Reply, Schema

SEEDS = 1 << 31
"""Number of seeds: many environments hand the seed to generators that take 32 bits."""
COMMON = ("metadata", "done", "reward")
"""Fields of OpenEnv's base classes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How actions and observations are converted.

    Attributes:
        field: Field that takes an action's text; None: the action is JSON.
        shown_field: Field that holds an observation's text; None: the observation is shown as JSON.
        tool: Schema of the tool `step`.
    """

    field: str | None
    shown_field: str | None
    tool: dict[str, Any]

    @classmethod
    def of(cls, schema: Schema, field: str | None, shown_field: str | None) -> Shape:
        """Return the shape for a server's schemas.

        Args:
            schema: The schemas.
            field: Requested field of actions; "": JSON; None: by the schemas.
            shown_field: The same for observations.

        Raises:
            ValueError: There is no such field.
        """
        for requested, part in ((field, schema.action), (shown_field, schema.observation)):
            if requested and requested not in part.get("properties", {}):
                raise ValueError(f"{requested!r}: the server's fields are {', '.join(_specific_fields(part))}.")
        description = str(schema.action.get("description", "")).strip() or "Acts in the environment."
        properties = {name: value for name, value in schema.action.get("properties", {}).items() if name != "metadata"}
        function = {
            "name": "step",
            "description": description,
            "parameters": {**schema.action, "properties": properties},
        }
        return cls(
            _only_text(schema.action) if field is None else field or None,
            _only_text(schema.observation) if shown_field is None else shown_field or None,
            {"type": "function", "function": function},
        )


def _specific_fields(schema: dict[str, Any]) -> list[str]:
    """Return the fields that the environment adds to OpenEnv's base classes."""
    return [name for name in schema.get("properties", {}) if name not in COMMON]


def _only_text(schema: dict[str, Any]) -> str | None:
    """Return the field of a schema if it has only one and that is text."""
    fields = _specific_fields(schema)
    if len(fields) != 1:
        return None
    is_text = schema["properties"][fields[0]].get("type") == "string"
    return fields[0] if is_text else None


class OpenEnvEnv(Env):
    """An episode on an OpenEnv server."""

    def __init__(self, http: Callable[[], aiohttp.ClientSession], url: str, shape: Shape) -> None:
        self._http = http
        self._url = url
        self._shape = shape
        self._steps = 0
        self._errors = 0

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """Connect and reset. `task["reset"]` has the arguments of its own reset besides the seed.

        Raises:
            ValueError: The task is malformed.
            OpenEnvFailed: As OpenEnvLink.reset.
            CapacityFull: The server is full.
        """
        options = task.get("reset", {})
        if not isinstance(options, dict):
            raise ValueError(
                f"task.reset is {type(options).__name__}, not an object of what the environment's reset takes."
            )
        self._link = OpenEnvLink(self._http(), self._url, self._shape.tool["function"]["parameters"]["properties"])
        return self._text(await self._link.reset(**{"seed": seed % SEEDS, **options}))

    async def step(self, action: str, deadline_s: float) -> Step:
        """Take one step."""
        self._steps += 1
        try:
            reply = await self._link.step(self._fields(action))
        except BadAction as e:
            self._errors += 1
            return Step(str(e), outcome="model_error", signals=self._signals("bad_action"))
        truncated = reply.done and reply.observation.get("truncated") is True
        return Step(
            self._text(reply),
            reward=reply.reward,
            done=reply.done and not truncated,
            truncated=truncated,
            signals=self._signals(None),
        )

    def _fields(self, action: str) -> dict[str, Any]:
        """Return the fields of an action. Raises BadAction."""
        if self._shape.field:
            return {self._shape.field: action}
        fields = read_json(action, "one object with the action's fields")
        if (
            isinstance(fields, list)
            and len(fields) == 1
            and isinstance(fields[0], dict)
            and fields[0].get("name") == "step"
        ):
            fields = fields[0].get("arguments")
        if not isinstance(fields, dict):
            raise BadAction("This is no JSON object. Send one with the action's fields.")
        return fields

    def _text(self, reply: Reply) -> str:
        """Return an observation as text. Raises OpenEnvMismatch if the shown field is missing."""
        if self._shape.shown_field is None:
            return json.dumps(reply.observation, ensure_ascii=False)
        if self._shape.shown_field not in reply.observation:
            raise OpenEnvMismatch(
                f"An observation of the OpenEnv server at {self._url} lacks {self._shape.shown_field!r}, which its"
                f" schema had when this server started; it has {', '.join(reply.observation) or 'nothing'}. Start this"
                " server again, or choose another field with --show."
            )
        text = reply.observation[self._shape.shown_field]
        if text is None:
            return ""
        return text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)

    def _signals(self, error: str | None) -> dict[str, Any]:
        return {"steps": self._steps, "errors": self._errors, "error_type": error}

    async def close(self) -> None:
        if hasattr(self, "_link"):
            await self._link.close()
