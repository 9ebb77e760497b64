"""Run groups for HTTP clients: a task comes in, its trajectories go out, polled or streamed.

A client that disconnects from a stream cancels its group.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from ...errors import InfraError
from ...http_guard.slots import Slots
from ...types import Trajectory

log = logging.getLogger(__name__)
MIN_TEMPERATURE = 0.01
"""Smallest temperature other than 0; below it the logits would overflow."""


def _not_nearly_zero(temperature: float) -> float:
    if 0 < temperature < MIN_TEMPERATURE:
        raise ValueError(
            f"{temperature} divides the logits beyond what floats hold. Use 0 for greedy, or {MIN_TEMPERATURE} and"
            " more."
        )
    return temperature


Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), AfterValidator(_not_nearly_zero)]


class GroupRequest(BaseModel):
    """One task, to be sampled n times in its environment."""

    model_config = ConfigDict(extra="forbid")
    prompt: str = Field(min_length=1, description="rendered prompt text")
    label: str = Field("", description="what the reward compares with")
    env: str | None = Field(None, description="environment; unset: the actor's own")
    meta: dict[str, Any] = Field(default_factory=dict)
    n: int | None = Field(None, ge=1, le=1024, description="samples; unset: rollout.n_samples_per_prompt")
    temperature: Temperature | None = Field(None, description="unset: rollout.temperature")


class GroupId(BaseModel):
    """The answer to POST /v1/groups."""

    id: str = Field(description="for GET /v1/groups/{id}")


class GroupStatus(BaseModel):
    """State of a posted group."""

    id: str
    status: str = Field(description="running | done | failed")
    trajectories: list[dict[str, Any]] = Field(
        description="those finished so far; segments hold source, token_ids, logprobs, versions, text"
    )
    error: str | None = None


class GroupService(Protocol):
    """The work behind these routes."""

    def admit(self, request: GroupRequest) -> None:
        """Check that a group can be run.

        Raises:
            QueueFull: The queue has no room for its samples.
            ConfigError: Its environment is unknown.
        """

    def run_group(self, request: GroupRequest) -> AsyncGenerator[Trajectory, None]:
        """Yield trajectories as they finish. Closing the generator early cancels the group."""


@dataclass(slots=True)
class _Group:
    """A posted group."""

    task: asyncio.Task[None] | None = None
    status: str = "running"
    trajectories: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None


def group_routes(service: GroupService, slots: Slots, kept: int) -> APIRouter:
    """Return the routes.

    Args:
        service: The work behind them.
        slots: Limits the groups that run at once.
        kept: Number of finished groups that can still be fetched.
    """
    router = APIRouter(tags=["groups"])
    groups: OrderedDict[str, _Group] = OrderedDict()

    @router.post(
        "/v1/groups",
        status_code=202,
        response_model=GroupId,
        responses={429: {"description": "too many groups; see Retry-After"}},
    )
    async def post_group(body: GroupRequest, stream: bool = False):
        """Run a group here. `stream=true`: NDJSON, a trajectory per line as it finishes, then a line with `done`."""
        service.admit(body)
        slots.take()
        if stream:
            return _GroupStream(_ndjson(service, body), slots)
        group_id = uuid.uuid4().hex
        group = _Group()
        group.task = asyncio.create_task(_collect(service, body, group, slots), name=f"group {group_id}")
        groups[group_id] = group
        finished = [known for known, other in groups.items() if other.status != "running"]
        for old in finished[: max(0, len(groups) - slots.limit - kept)]:
            del groups[old]
        return JSONResponse({"id": group_id}, status_code=202)

    @router.get("/v1/groups/{group_id}", response_model=GroupStatus)
    async def get_group(group_id: str) -> Response:
        """Return a posted group, with the trajectories that have finished."""
        group = groups.get(group_id)
        if group is None:
            raise HTTPException(404, f"No group {group_id!r}: never posted here, or forgotten after {kept} newer ones.")
        status = {"id": group_id, "status": group.status, "trajectories": group.trajectories, "error": group.error}
        return Response(_json(status), media_type="application/json")

    return router


def trajectory_json(trajectory: Trajectory) -> dict[str, Any]:
    """Return a trajectory as JSON. Its segments have what a trainer needs: source, ids, log-probs, versions."""
    return {
        "index": trajectory.index,
        "prompt_ids": trajectory.prompt_ids.tolist(),
        "segments": [
            {
                "source": segment.source,
                "token_ids": segment.token_ids.tolist(),
                "logprobs": segment.logprobs.tolist(),
                "versions": segment.versions.tolist(),
                "text": segment.text,
            }
            for segment in trajectory.segments
        ],
        "calls": [asdict(call) for call in trajectory.calls],
        "finish_reason": trajectory.finish_reason,
        "stop_reason": trajectory.stop_reason,
        "failed": trajectory.failed,
        "reward": trajectory.reward,
        "parts": trajectory.parts,
        "branches": [
            {name: branch[name] for name in ("prompt_ids", "segments", "finish_reason")}
            for branch in map(trajectory_json, trajectory.branches)
        ],
    }


def _json(value: dict[str, Any]) -> bytes:
    """Encode JSON. Values that are not finite (the log-prob of a token that could not be sampled) become null."""
    return to_json(value, inf_nan_mode="null")


def _fault(error: Exception) -> tuple[str, str]:
    """Return code and detail of what ended a group. Of a bug the client reads its type, and the log has the rest."""
    if isinstance(error, InfraError):
        return error.reason, str(error)
    log.error("a group that was requested by HTTP failed", exc_info=error)
    return "internal", type(error).__name__


async def _collect(service: GroupService, body: GroupRequest, group: _Group, slots: Slots) -> None:
    """Run a posted group and keep its trajectories."""
    try:
        async for trajectory in service.run_group(body):
            group.trajectories.append(trajectory_json(trajectory))
        group.status = "done"
    except Exception as e:
        group.status = "failed"
        group.error = ": ".join(_fault(e))
    except asyncio.CancelledError:
        group.status = "failed"
        group.error = "cancelled"
        raise
    finally:
        slots.give_back()


async def _ndjson(service: GroupService, body: GroupRequest) -> AsyncIterator[bytes]:
    """Yield the lines of a streamed group.

    The status line was sent long before a group can fail, so the last line says how the group ended.
    """
    count = 0
    try:
        async with aclosing(service.run_group(body)) as trajectories:
            async for trajectory in trajectories:
                count += 1
                yield _json(trajectory_json(trajectory)) + b"\n"
        yield _json({"done": True, "trajectories": count}) + b"\n"
    except Exception as e:
        code, detail = _fault(e)
        yield _json({"done": False, "trajectories": count, "error": code, "detail": detail}) + b"\n"


class _GroupStream(StreamingResponse):
    """A response that cancels the group when the client disconnects, and gives back its slot however it ends."""

    def __init__(self, lines: AsyncIterator[bytes], slots: Slots) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self.slots = slots

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # From ASGI 2.4 on starlette notices that the client has left only when the next send fails. For a group that is
        # minutes later.
        older = {**scope, "asgi": {**scope["asgi"], "spec_version": "2.3"}}
        try:
            await super().__call__(older, receive, send)
        finally:
            self.slots.give_back()
