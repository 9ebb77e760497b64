"""OpenEnvEnv: an episode on an OpenEnv server. Its reward and its `done` are the step's; without a reward there is
none.

action        the text of the one field that the server's actions have (`Shape.field`), else a JSON object of its
              fields, or the call of the tool `step` with them, as a messages protocol sends it
observation   the text of the one field that its observations have (`Shape.shown`), else all fields as JSON

OpenEnv knows no end that is a cut: an observation that is `done` and has a field `truncated` which is true, as those of
ours have that are served by `serve`, is truncated.

What the server refuses as an action is told to the model and trained (model_error, signals.error_type "bad_action").
What it says of a failure of its own code, or of objects of its own that are not valid, is env_error: it may well be the
model's doing, but nothing tells that apart from a server that is broken.
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
"""Many environments hand the seed to generators that take 32 bits."""
COMMON = ("metadata", "done", "reward")
"""Fields of OpenEnv's base classes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`field`: takes an action's text; `shown`: holds an observation's text. None: JSON."""

    field: str | None
    shown: str | None
    tool: dict[str, Any]

    @classmethod
    def of(cls, schema: Schema, field: str | None, shown: str | None) -> Shape:
        """`field`, `shown`: as asked for; "": JSON, None: by the schemas. ValueError for a field that is not there."""
        for asked, of in ((field, schema.action), (shown, schema.observation)):
            if asked and asked not in of.get("properties", {}):
                raise ValueError(f"{asked!r}: the server's fields are {', '.join(_own(of))}.")
        description = str(schema.action.get("description", "")).strip() or "Acts in the environment."
        parameters = {
            **schema.action,
            "properties": {n: p for n, p in schema.action.get("properties", {}).items() if n != "metadata"},
        }
        tool = {"type": "function", "function": {"name": "step", "description": description, "parameters": parameters}}
        return cls(
            _only_text(schema.action) if field is None else field or None,
            _only_text(schema.observation) if shown is None else shown or None,
            tool,
        )


def _own(schema: dict[str, Any]) -> list[str]:
    return [name for name in schema.get("properties", {}) if name not in COMMON]


def _only_text(schema: dict[str, Any]) -> str | None:
    own = _own(schema)
    return own[0] if len(own) == 1 and schema["properties"][own[0]].get("type") == "string" else None


class OpenEnvEnv(Env):
    def __init__(self, http: Callable[[], aiohttp.ClientSession], url: str, shape: Shape) -> None:
        self._http = http
        self._url = url
        self._shape = shape
        self._steps = 0
        self._errors = 0

    async def reset(self, task: dict[str, Any], seed: int) -> str:
        """`task["reset"]`: what its own reset takes besides the seed. Raises ValueError, and as OpenEnvLink.reset."""
        options = task.get("reset", {})
        if not isinstance(options, dict):
            raise ValueError(
                f"task.reset is {type(options).__name__}, not an object of what the environment's reset takes."
            )
        self._link = OpenEnvLink(self._http(), self._url, self._shape.tool["function"]["parameters"]["properties"])
        return self._text(await self._link.reset(**{"seed": seed % SEEDS, **options}))

    async def step(self, action: str, deadline_s: float) -> Step:
        self._steps += 1
        try:
            reply = await self._link.step(self._fields(action))
        except BadAction as e:
            self._errors += 1
            return Step(str(e), outcome="model_error", signals=self._signals("bad_action"))
        cut = reply.done and reply.observation.get("truncated") is True
        return Step(
            self._text(reply),
            reward=reply.reward,
            done=reply.done and not cut,
            truncated=cut,
            signals=self._signals(None),
        )

    def _fields(self, action: str) -> dict[str, Any]:
        """Raises BadAction."""
        if self._shape.field:
            return {self._shape.field: action}
        try:
            said = read_json(action)
        except BadAction as e:
            raise BadAction(f"{e} Send one object with the action's fields.") from None
        if isinstance(said, list) and len(said) == 1 and isinstance(said[0], dict) and said[0].get("name") == "step":
            said = said[0].get("arguments")
        if not isinstance(said, dict):
            raise BadAction("This is no JSON object. Send one with the action's fields.")
        return said

    def _text(self, reply: Reply) -> str:
        if self._shape.shown is None:
            return json.dumps(reply.observation, ensure_ascii=False)
        if self._shape.shown not in reply.observation:
            raise OpenEnvMismatch(
                f"An observation of the OpenEnv server at {self._url} lacks {self._shape.shown!r}, which its schema had"
                f" when this server started; it has {', '.join(reply.observation) or 'nothing'}. Start this server"
                " again, or choose another field with --show."
            )
        text = reply.observation[self._shape.shown]
        return text if isinstance(text, str) else "" if text is None else json.dumps(text, ensure_ascii=False)

    def _signals(self, error: str | None) -> dict[str, Any]:
        return {"steps": self._steps, "errors": self._errors, "error_type": error}

    async def close(self) -> None:
        if hasattr(self, "_link"):
            await self._link.close()
