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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np

from ..engines.codec import find_stop
from ..errors import InfraError, RequestRefused
from ..ports import Engine
from ..types import Completion, Sampling
from .seeds import seed_for

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


class OtherEngine(Engine, Protocol):
    """Another actor's engine: cluster/peer_engine.py."""

    async def abort(self, request_id: str) -> None:
        """See Abortable."""


@dataclass(slots=True)
class SamplingLocation:
    """Where a trajectory is being sampled."""

    at: str = ""
    """Name of the other engine; "" for this actor's."""
    moves: int = 0
    """How often it was moved."""
    tokens: int = 0
    """Number of tokens in its finished segments and in the finished parts of the current one."""
    request: str = ""
    """Id of the request that is running; "" while the environment works."""


class SequenceMigration:
    """Moves the responses of one actor. Belongs to one event loop."""

    def __init__(self, engine: Abortable, text_of: TextOf) -> None:
        self.engine = engine
        self.text_of = text_of
        self.others: dict[str, OtherEngine] = {}
        """Name -> engine of another actor."""
        self.locations: dict[str, SamplingLocation] = {}
        """The actor's running trajectories, by the part of their request ids before the turn."""

    @contextmanager
    def writing(self, trajectory: str) -> Iterator[None]:
        """Register a trajectory inside the block, so that it can be moved."""
        self.locations[trajectory] = SamplingLocation()
        try:
            yield
        finally:
            del self.locations[trajectory]

    def under_way(self) -> list[tuple[str, SamplingLocation]]:
        """Return the running trajectories and where they are. `progress` of that engine says how far a request is."""
        return list(self.locations.items())

    def around(self, own_engine: Engine) -> MigratingEngine:
        """Return this actor's engine wrapped for the episodes of a group, so that their requests can be moved.

        Args:
            own_engine: This actor's engine, as the group uses it.
        """
        return MigratingEngine(self, own_engine)

    async def move(self, trajectory: str, name: str, other: OtherEngine | None) -> bool:
        """Move a trajectory, with the request that is running.

        Args:
            trajectory: The part of its request ids before the turn.
            name: Name of the other engine.
            other: The other engine; None: move back to this actor's.

        Returns:
            False if the trajectory has ended, or is there already.
        """
        location = self.locations.get(trajectory)
        destination = "" if other is None else name
        if location is None or location.at == destination:
            return False
        previous_engine = self.others.get(location.at, self.engine)
        request = location.request
        if other is not None:
            self.others[name] = other
        location.at = destination
        location.moves += 1
        if request:
            # `generate` gets the tokens so far, sees that the location has changed, and continues there.
            await previous_engine.abort(request)
        return True


@dataclass(frozen=True, slots=True)
class MigratingEngine:
    """An actor's engine as the episodes of a group use it, so that their requests can be moved."""

    migration: SequenceMigration
    own_engine: Engine

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Sample one segment, in parts on as many engines as it is moved to, and return the parts as one completion.

        An error of the own engine is raised. If another engine fails, its part is sampled again here.
        """
        location = self.migration.locations.get(request_id.rpartition("/")[0]) or SamplingLocation()
        prompt = list(token_ids)
        tokens_before = location.tokens
        part_number = 0
        joined: Completion | None = None
        while True:
            written = 0 if joined is None else len(joined.token_ids)
            at = location.at
            part_sampling = _remaining_sampling(sampling, joined, request_id) if at or part_number else sampling
            location.request = f"{request_id}~{part_number}" if part_number else request_id
            ids = prompt if joined is None else prompt + joined.token_ids.tolist()
            engine = self.migration.others[at] if at else self.own_engine
            try:
                part = await engine.generate(ids, part_sampling, request_id=location.request)
            except RequestRefused:
                raise
            except InfraError:
                if not at:
                    raise
                # What the failed engine sampled is lost; it is sampled again here.
                location.at = ""
                part_number += 1
                continue
            finally:
                location.request = ""
            if part.finish_reason == "abort" and at and location.at == at:
                # Nobody moved it: the other engine stops, and what it has sampled is valid.
                location.at = ""
            joined = part if joined is None else self._join(prompt, joined, part, sampling)
            part_number += 1
            location.tokens = tokens_before + len(joined.token_ids)
            was_moved = joined.finish_reason == "abort" and location.at != at
            # It was asked for fewer tokens than are missing, because a stop string may have begun.
            asked_for_few = part_sampling.max_tokens < sampling.max_tokens - written
            is_incomplete = joined.finish_reason == "length" and asked_for_few
            if not (was_moved or is_incomplete):
                return joined
            if len(joined.token_ids) >= sampling.max_tokens:
                return replace(joined, finish_reason="length")

    def _join(self, prompt: Sequence[int], first: Completion, second: Completion, sampling: Sampling) -> Completion:
        """Return two parts as one completion, cut at a stop string that lies across them."""
        ids, logprobs, versions = (
            np.concatenate([getattr(first, name), getattr(second, name)])
            for name in ("token_ids", "logprobs", "versions")
        )
        experts = _joined_experts(first.experts, second.experts)
        text = self.migration.text_of(prompt, ids.tolist())
        stop = find_stop(text, len(first.text), sampling.stop)
        if stop is not None:
            stop_string, end = stop
            return Completion(ids, logprobs, versions, text[:end], "stop", stop_string, experts=experts)
        return Completion(ids, logprobs, versions, text, second.finish_reason, second.stop_reason, experts=experts)


def _remaining_sampling(sampling: Sampling, joined: Completion | None, request_id: str) -> Sampling:
    """Return the sampling settings for what is still missing, with its seed.

    That is one token while a stop string may have begun, otherwise all the rest.
    """
    written = 0 if joined is None else len(joined.token_ids)
    text = "" if joined is None else joined.text
    seed = sampling.seed
    if written or seed is None:
        seed = seed_for(request_id if seed is None else seed, written)
    first_version = sampling.first_version
    if first_version is None and joined is not None:
        first_version = joined.began
    return replace(
        sampling,
        max_tokens=1 if _may_stop(text, sampling.stop) else sampling.max_tokens - written,
        seed=seed,
        first_version=first_version,
        experts_known=sampling.experts_known + (0 if joined is None or joined.experts is None else len(joined.experts)),
    )


def _joined_experts(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    """Return the experts of two parts of a completion. The second part was asked for those that the first lacks."""
    if first is None or second is None:
        return second if first is None else first
    return np.concatenate([first, second])


def _may_stop(text: str, stops: Sequence[str]) -> bool:
    """Return True if the text ends with the beginning of a stop string."""
    return any(text.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)))
