"""Handover: a rollout actor's engine, from which a response can go on at another actor's, in the middle of a sentence.

    generate ──> here ──abort──> what it has written so far ──> there: prompt + that ──> joined into one Completion
                                                                  ends  ──> here again, from what it wrote
                                                                  fails ──> here again, from what is known

The trajectory, its environment session, its turn protocol and its stop state stay where they are; only the tokens that
it samples next come from elsewhere: prefix ids go out, ids with log-probs and versions come back, so nothing is decoded
and encoded again. From then on its later turns are sampled there too, where their prefix is cached.

A stop string may lie across the cut: while the text so far ends in the beginning of one, single tokens are asked for
and the joined text is looked at, since no engine sees it whole.

What another engine samples has a seed, which follows from the request and from where it begins. Not the request's own:
a continuation would draw the same numbers again. Not none: what is lost with an engine would be drawn anew, and since a
long rest is hit more often than a short one, what is kept would be shorter than what the model says. With it the second
try draws what the first one did.
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
"""(prompt ids, sampled ids) -> the text of the sampled ones, special tokens left out."""


@runtime_checkable
class Abortable(Protocol):
    """What an engine needs for its requests to be handed over."""

    async def abort(self, request_id: str) -> None:
        """The request is answered with what it has, finish_reason "abort". Nothing if it ended or is not known."""

    def progress(self) -> dict[str, int]:
        """Request -> tokens sampled so far, of those that it is answering."""


class Elsewhere(Engine, Protocol):
    """Another actor's engine: cluster/lanes.py."""

    async def abort(self, request_id: str) -> None: ...


@dataclass(slots=True)
class Path:
    """Where a trajectory is sampled. `tokens`: of its segments and parts that are whole; `request`: the one under way,
    "" at a tool."""

    at: str = ""
    """Name of the other engine; "" here."""
    moves: int = 0
    tokens: int = 0
    request: str = ""


class Handover:
    """One per actor. Belongs to one event loop."""

    def __init__(self, engine: Abortable, text_of: TextOf) -> None:
        self.engine, self.text_of = engine, text_of
        self._there: dict[str, Elsewhere] = {}
        self.paths: dict[str, Path] = {}
        """Trajectories that this actor is writing, by the part of their requests' ids before the turn."""

    @contextmanager
    def writing(self, trajectory: str) -> Iterator[None]:
        """Held while it is under way: it may be moved."""
        self.paths[trajectory] = Path()
        try:
            yield
        finally:
            del self.paths[trajectory]

    def under_way(self) -> list[tuple[str, Path]]:
        """Trajectories, and where they are; how far a request is knows the engine that has it (`progress`)."""
        return list(self.paths.items())

    def around(self, here: Engine) -> Moving:
        """The engine as the episodes of a group see it. `here`: this actor's, for that group."""
        return Moving(self, here)

    async def move(self, trajectory: str, name: str, there: Elsewhere | None) -> bool:
        """Sample what comes next at `there`, which is called `name`; None: here. False when the trajectory has ended,
        or is there."""
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
                path.at, parts = "", parts + 1  # what it sampled since is lost with it, and sampled again here
                continue
            finally:
                path.request = ""
            if part.finish_reason == "abort" and at and path.at == at:
                path.at = ""  # nobody moved it: the other engine is ending, and what it wrote is whole
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
    """An Engine: see Handover.around."""

    handover: Handover
    here: Engine

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        return await self.handover.generate(self.here, token_ids, sampling, request_id)


def _rest(sampling: Sampling, whole: Completion | None, request_id: str) -> Sampling:
    """What is still to be sampled, with its seed: one token while a stop string may have begun, else all."""
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
    """Whether the text ends in the beginning of a stop string."""
    return any(text.endswith(stop[:n]) for stop in stops for n in range(1, len(stop)))


def _stop_after(text: str, known: int, stops: Sequence[str]) -> tuple[str, int] | None:
    """-> (stop string, its end), the first in the order of `stops` that ends beyond the first `known` characters."""
    for stop in stops:
        at = text.find(stop, max(0, known - len(stop) + 1))
        if at >= 0:
            return stop, at + len(stop)
    return None


def _another(of: int | str, written: int) -> int:
    """A seed of 63 bits."""
    return int.from_bytes(hashlib.blake2b(f"{of}/{written}".encode(), digest_size=8).digest(), "big") >> 1
