"""In flight: which requests an engine is answering, and which weights sampled each of their tokens.

vLLM does not say which weights sampled a token, but a paused engine samples none: each running request's length at the
moment of the switch is where its tokens change version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..types import Completion
from .busy import BusyMeter


@dataclass(slots=True, eq=False)
class Live:
    """One request that is being answered, either streamed (`extend`) or read as a whole at its end (`follow`)."""

    request_id: str
    switches: list[tuple[int, int]]
    """(tokens sampled before the switch, version of the weights that sample after it), the first at 0 tokens."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    text: str = ""
    void: bool = False
    """Some of its tokens were sampled by weights that were not proved and are gone."""
    count: Callable[[], int] | None = None
    """Reads the number of sampled tokens where they stay inside vLLM until the end; None: they are in `token_ids`."""

    @property
    def sampled(self) -> int:
        """Tokens sampled so far."""
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

    def finish(self, output: Any) -> None:
        """Take the final output of a FINAL_ONLY request (a CompletionOutput with flat log-probs)."""
        self.count = None
        self.token_ids = output.token_ids
        self.logprobs = sampled_logprobs(output.logprobs)
        self.text = output.text

    def extend(self, delta: Any) -> None:
        """Add what vLLM sampled since the last call (a CompletionOutput of kind DELTA, with log-probs)."""
        if not delta.token_ids:  # the end of one that was aborted
            return
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(at[token].logprob for at, token in zip(delta.logprobs, delta.token_ids, strict=True))
        self.text += delta.text

    def completion(self, last: Any) -> Completion:
        """Everything so far; `last` is the output that carries the finish reason."""
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
        )


def sampled_logprobs(flat: Any) -> list[float]:
    """Return the log-prob of each sampled token of vLLM's FlatLogprobs, which holds the sampled token first."""
    if len(flat.start_indices) == len(flat.logprobs):  # nothing but the sampled tokens
        return flat.logprobs
    return [flat.logprobs[start] for start in flat.start_indices]


def no_number(completion: Completion, request_id: str) -> str | None:
    """What is to be said of a completion with a log-prob that is no finite number: nothing was sampled from such
    outputs, and a loss with it would be none."""
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
    """The requests of one engine, whoever sent them."""

    def __init__(self, version: int) -> None:
        self.version = version
        """The version of the weights that sample now."""
        self._era = 0
        """Counts the versions that were not newer than the one before: a number may stand for other weights since."""
        self.busy = BusyMeter()
        self._live: set[Live] = set()
        self._finished_tokens = 0

    @contextmanager
    def track(self, request_id: str) -> Iterator[Live]:
        live = Live(request_id, [(0, self.version)])
        self._live.add(live)
        self.busy.enter()
        try:
            yield live
        finally:
            self._live.discard(live)
            self.busy.leave()
            self._finished_tokens += live.sampled

    def switch(self, version: int) -> None:
        """Tokens that come from now on are `version`'s. Only in a pause, when its last tokens have arrived."""
        self._era += version <= self.version
        self.version = version
        for live in self._live:
            live.switches.append((live.sampled, version))

    def void(self, version: int) -> None:
        """Mark the requests that have tokens of `version`: their push was not proved, and the version is pushed again.
        Call in a pause, before `switch`."""
        for live in self._live:
            begun = next((sampled for sampled, of in live.switches if of == version), None)
            if begun is not None and live.sampled > begun:
                live.void = True

    def weights(self, since: int | None) -> str:
        """What tells this engine's weights of version `since` from all others that it had; of one that it has not got
        yet, where a newcomer was ahead: from now on. None: those that sample now."""
        return f"{self._era}/{self.version if since is None else min(since, self.version)}"

    @property
    def request_ids(self) -> list[str]:
        return [live.request_id for live in self._live]

    def progress(self) -> dict[str, int]:
        """Request -> tokens sampled so far."""
        return {live.request_id: live.sampled for live in self._live}

    @property
    def tokens(self) -> int:
        """Sampled since the engine started."""
        return self._finished_tokens + sum(live.sampled for live in self._live)

    def __len__(self) -> int:
        return len(self._live)
