"""Track the requests that an engine is answering, and the version of the weights that sampled each token.

vLLM does not report which weights sampled a token. But a paused engine samples nothing, so the length of each running
request at the moment when the weights are switched is the point at which the version of its tokens changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableSequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import numpy as np

from ..types import Completion
from .busy import BusyMeter


@dataclass(slots=True, eq=False, weakref_slot=True)
class Live:
    """One request that is being answered, either streamed (`extend`) or read as a whole at its end (`follow`)."""

    request_id: str
    switches: list[tuple[int, int]]
    """(number of tokens sampled before a switch, version of the weights after it). The first entry is at 0 tokens."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: MutableSequence[float] = field(default_factory=list)
    text: str = ""
    void: bool = False
    """True if some of its tokens were sampled with weights that another push replaced before they were proved."""
    experts: np.ndarray | None = None
    """See Completion.experts."""
    count: Callable[[], int] | None = None
    """Returns the number of sampled tokens if vLLM keeps them until the end; None: they are in `token_ids`."""

    @property
    def sampled(self) -> int:
        """Number of tokens sampled so far."""
        return self.count() if self.count else len(self.token_ids)

    def follow(self, collector: Any, states: Mapping[str, Any]) -> None:
        """Count the tokens of a FINAL_ONLY request where vLLM keeps them, so that no token costs anything here.

        Args:
            collector: vLLM's RequestOutputCollector of the request.
            states: vLLM's request states by internal request id (`OutputProcessor.request_states`).
        """

        def count() -> int:
            state = states.get(collector.request_id)
            if state is not None:
                return state.detokenizer.num_output_tokens()
            # Finished: the output waits in the collector until the request's own task takes it.
            output = collector.output
            return 0 if output is None or isinstance(output, Exception) else len(output.outputs[0].token_ids)

        self.count = count

    def finish(self, output: Any, packed: MutableSequence[float] | None = None) -> None:
        """Take the final output of a FINAL_ONLY request.

        Args:
            output: A CompletionOutput with flat log-probs.
            packed: [T] log-probs if they arrived packed (packed_logprobs.py); None: `output` has them.
        """
        self.count = None
        self.token_ids = output.token_ids
        self.logprobs = sampled_logprobs(output.logprobs) if packed is None else packed
        self.text = output.text
        self.experts = getattr(output, "routed_experts", None)

    def extend(self, delta: Any) -> None:
        """Add what vLLM sampled since the last call (a CompletionOutput of kind DELTA, with log-probs)."""
        if not delta.token_ids:  # the last output of an aborted request
            return
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(at[token].logprob for at, token in zip(delta.logprobs, delta.token_ids, strict=True))
        self.text += delta.text

    def completion(self, last: Any) -> Completion:
        """Return everything that was sampled so far. `last` is vLLM's output with the finish reason."""
        versions_T = np.empty(len(self.token_ids), np.int32)
        for sampled, version in self.switches:
            versions_T[sampled:] = version
        return Completion(
            token_ids=np.asarray(self.token_ids, np.int32),
            logprobs=np.asarray(self.logprobs, np.float32),
            versions=versions_T,
            text=self.text,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            experts=self.experts,
        )


def sampled_logprobs(flat: Any) -> list[float]:
    """Return the log-prob of each sampled token of vLLM's FlatLogprobs, which holds the sampled token first."""
    if len(flat.start_indices) == len(flat.logprobs):  # nothing but the sampled tokens
        return flat.logprobs
    return [flat.logprobs[start] for start in flat.start_indices]


def no_number(completion: Completion, request_id: str) -> str | None:
    """Return an error message if a log-prob of a completion is not finite; None if all are finite.

    Such a completion was not sampled from a distribution, and no loss can be computed with it.
    """
    found = np.flatnonzero(~np.isfinite(completion.logprobs))
    if not len(found):
        return None
    at = found[0]
    return (
        f"token {at + 1} of request {request_id} has log-prob {completion.logprobs[at]} by the weights of version"
        f" {completion.versions[at]}: the model's outputs are not finite. Where engines end so again and again, go back"
        " to an earlier checkpoint (train.resume_from), or sample in float32 (vllm.dtype)"
    )


class InFlight:
    """The requests of one engine, from all senders."""

    def __init__(self, version: int) -> None:
        self.version = version
        """Version of the current weights."""
        self._era = 0
        """Number of switches to a version that was not newer. After one, a version number can mean other weights."""
        self.busy = BusyMeter()
        self._live: set[Live] = set()
        self._ended: WeakSet[Live] = WeakSet()
        """Requests that have ended and that somebody keeps, as an agent's session does."""
        self._finished_tokens = 0

    @contextmanager
    def track(self, request_id: str) -> Iterator[Live]:
        """Count a request as running inside the block."""
        live = Live(request_id, [(0, self.version)])
        self._live.add(live)
        self.busy.enter()
        try:
            yield live
        finally:
            self._live.discard(live)
            self._ended.add(live)
            self.busy.leave()
            self._finished_tokens += live.sampled

    def switch(self, version: int) -> None:
        """Attribute tokens to `version` from now on. Call it in a pause, after the last tokens have arrived."""
        self._era += version <= self.version
        self.version = version
        for live in self._live:
            live.switches.append((live.sampled, version))

    def void(self, version: int) -> None:
        """Mark the requests that have tokens of `version`, which was not proved before another push.

        Call it in a pause, before `switch`.
        """
        for live in (*self._live, *self._ended):
            begun = next((sampled for sampled, of in live.switches if of == version), None)
            if begun is not None and live.sampled > begun:
                live.void = True

    def weights(self, first_version: int | None) -> str:
        """Return a string that identifies the weights with which this engine sampled at version `first_version`.

        Two different weights never have the same string, even if their version number is the same. A version that the
        engine does not have yet (a new engine may be ahead of it) counts as the current one, and so does None.
        """
        return f"{self._era}/{self.version if first_version is None else min(first_version, self.version)}"

    @property
    def request_ids(self) -> list[str]:
        """Ids of the running requests."""
        return [live.request_id for live in self._live]

    def progress(self) -> dict[str, int]:
        """Return the number of tokens sampled so far by request id."""
        return {live.request_id: live.sampled for live in self._live}

    @property
    def tokens(self) -> int:
        """Number of tokens sampled since the engine started."""
        return self._finished_tokens + sum(live.sampled for live in self._live)

    def __len__(self) -> int:
        return len(self._live)
