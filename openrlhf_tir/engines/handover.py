"""Move a running response from a rollout actor's engine to another actor's engine, between any two of its tokens.

    generate ──> here ──abort──> tokens so far ──> there: prompt + these tokens ──> joined into one Completion
                                                     the engine stops ──> here again, with what it has sampled
                                                     the engine fails ──> here again, without what it has sampled

The trajectory, its environment session, its turn protocol and its stop state stay at their actor; only sampling moves.
Token ids go to the other engine, and ids with log-probs and versions come back, so nothing is decoded and encoded
again. Later turns are sampled there too, because their prefix is in that engine's cache.

A stop string may lie across the move. While the text ends with the beginning of a stop string, the other engine is
asked for single tokens, and the joined text is searched here, because no engine sees the whole string.

What another engine samples has a seed that depends on the request and on the position. The request's own seed would
draw the same random numbers again. Without a seed, tokens that are lost with an engine would be sampled differently the
second time. As losses hit long continuations more often than short ones, the surviving responses would then be shorter
than the model's. With the seed, the second attempt samples what the first one did.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from ..errors import InfraError, RequestRefused
from ..ports import Engine
from ..types import Completion, Sampling

TextOf = Callable[[Sequence[int], Sequence[int]], str]
"""Maps (prompt ids, sampled ids) to the text of the sampled ids, without special tokens."""


@runtime_checkable
class Abortable(Protocol):
    """What an engine must be able to do so that its requests can be moved."""

    async def abort(self, request_id: str) -> None:
        """End a request: it returns what was sampled so far, with finish_reason "abort".

        Does nothing if the request has ended or is unknown.
        """

    def progress(self) -> dict[str, int]:
        """Return the number of tokens sampled so far, by request id."""


class Elsewhere(Engine, Protocol):
    """Another actor's engine: cluster/lanes.py."""

    async def abort(self, request_id: str) -> None: ...


@dataclass(slots=True)
class Path:
    """Where a trajectory is being sampled."""

    at: str = ""
    """Name of the other engine; "" for this actor's."""
    moves: int = 0
    """How often it was moved."""
    tokens: int = 0
    """Number of tokens in its finished segments and in the finished parts of the current one."""
    request: str = ""
    """Id of the request that is running; "" while the environment works."""


class Handover:
    """Moves the responses of one actor. Belongs to one event loop."""

    def __init__(self, engine: Abortable, text_of: TextOf) -> None:
        self.engine, self.text_of = engine, text_of
        self._there: dict[str, Elsewhere] = {}
        self.paths: dict[str, Path] = {}
        """The actor's running trajectories, by the part of their request ids before the turn."""

    @contextmanager
    def writing(self, trajectory: str) -> Iterator[None]:
        """Register a trajectory inside the block, so that it can be moved."""
        self.paths[trajectory] = Path()
        try:
            yield
        finally:
            del self.paths[trajectory]

    def under_way(self) -> list[tuple[str, Path]]:
        """Return the running trajectories and where they are. `progress` of that engine says how far a request is."""
        return list(self.paths.items())

    def around(self, here: Engine) -> Moving:
        """Return an engine for the episodes of a group, from which their requests can be moved.

        Args:
            here: This actor's engine, as the group uses it.
        """
        return Moving(self, here)

    async def move(self, trajectory: str, name: str, there: Elsewhere | None) -> bool:
        """Move a trajectory, with the request that is running.

        Args:
            trajectory: The part of its request ids before the turn.
            name: Name of the other engine.
            there: The other engine; None: move back to this actor's.

        Returns:
            False if the trajectory has ended, or is there already.
        """
        path, at = self.paths.get(trajectory), "" if there is None else name
        if path is None or path.at == at:
            return False
        running, request = self._there.get(path.at, self.engine), path.request
        if there is not None:
            self._there[name] = there
        path.at, path.moves = at, path.moves + 1
        if request:
            await running.abort(request)
        return True

    async def generate(self, here: Engine, token_ids: Sequence[int], sampling: Sampling, request_id: str) -> Completion:
        path = self.paths.get(request_id.rpartition("/")[0]) or Path()
        prompt, before, parts = list(token_ids), path.tokens, 0
        whole: Completion | None = None
        while True:
            written = 0 if whole is None else len(whole.token_ids)
            at = path.at
            asked = _rest(sampling, whole, request_id) if at or parts else sampling
            path.request = f"{request_id}~{parts}" if parts else request_id
            ids = prompt if whole is None else prompt + whole.token_ids.tolist()
            try:
                part = await (self._there[at] if at else here).generate(ids, asked, request_id=path.request)
            except RequestRefused:
                raise
            except InfraError:
                if not at:
                    raise
                path.at, parts = "", parts + 1  # what the failed engine sampled is lost; it is sampled again here
                continue
            finally:
                path.request = ""
            if part.finish_reason == "abort" and at and path.at == at:
                path.at = ""  # nobody moved it: the other engine stops, and what it has sampled is valid
            whole, parts = part if whole is None else self._joined(prompt, whole, part, sampling), parts + 1
            path.tokens = before + len(whole.token_ids)
            moved = whole.finish_reason == "abort" and path.at != at
            one_of_several = whole.finish_reason == "length" and asked.max_tokens < sampling.max_tokens - written
            if not (moved or one_of_several):
                return whole
            if len(whole.token_ids) >= sampling.max_tokens:
                return replace(whole, finish_reason="length")

    def _joined(self, prompt: Sequence[int], first: Completion, then: Completion, sampling: Sampling) -> Completion:
        ids, logprobs, versions = (
            np.concatenate([getattr(first, f), getattr(then, f)]) for f in ("token_ids", "logprobs", "versions")
        )
        text = self.text_of(prompt, ids.tolist())
        if stop := _stop_after(text, len(first.text), sampling.stop):
            word, end = stop
            return Completion(ids, logprobs, versions, text[:end], "stop", word)
        return Completion(ids, logprobs, versions, text, then.finish_reason, then.stop_reason)


@dataclass(frozen=True, slots=True)
class Moving:
    """The Engine that Handover.around returns."""

    handover: Handover
    here: Engine

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        return await self.handover.generate(self.here, token_ids, sampling, request_id)


def _rest(sampling: Sampling, whole: Completion | None, request_id: str) -> Sampling:
    """Return the sampling settings for what is still missing, with its seed.

    That is one token while a stop string may have begun, otherwise all the rest.
    """
    written, text = (0, "") if whole is None else (len(whole.token_ids), whole.text)
    seed = sampling.seed
    if written or seed is None:
        seed = _another(request_id if seed is None else seed, written)
    since = whole.began if whole is not None and sampling.since is None else sampling.since
    return replace(
        sampling,
        max_tokens=1 if _may_stop(text, sampling.stop) else sampling.max_tokens - written,
        seed=seed,
        since=since,
    )


def _may_stop(text: str, stops: Sequence[str]) -> bool:
    """Return True if the text ends with the beginning of a stop string."""
    return any(text.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)))


def _stop_after(text: str, known: int, stops: Sequence[str]) -> tuple[str, int] | None:
    """Return the first stop string, in the order of `stops`, that ends after the first `known` characters, and its end.

    Returns None if there is none.
    """
    for stop in stops:
        at = text.find(stop, max(0, known - len(stop) + 1))
        if at >= 0:
            return stop, at + len(stop)
    return None


def _another(of: int | str, written: int) -> int:
    """Return a seed of 63 bits for a continuation after `written` tokens."""
    return int.from_bytes(hashlib.blake2b(f"{of}/{written}".encode(), digest_size=8).digest(), "big") >> 1
