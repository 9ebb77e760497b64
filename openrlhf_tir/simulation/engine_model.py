"""Model an engine with continuous batching that computes nothing: from token counts it tells when requests end.

    submit ──> waiting (FIFO) ── a slot and KV for its context ──> running ──> on_done
                  ^                                                   │
                  └───── preempted: the KV cache is full, and ────────┘
                         the youngest sequence has to wait

Sequences share the processor. n running sequences decode r(n) tokens/s together (EngineSpec.decode_rate), r(n)/n each.
All of them advance alike, so one number, the *service* that each has received in tokens, describes all: a sequence that
joins at service s with k tokens to write ends at service s + k, whatever n is meanwhile. A heap of these numbers makes
every event O(log n), and nothing is computed between events. Prefill comes before decoding and is work of the whole
engine. The KV cache holds the running contexts: prompts and the tokens so far.

The simulator drives the model on a virtual clock with callbacks. The emulated engine of the wall-clock benchmark drives
it on the real clock with `generate`. Not modelled: CUDA graphs, fragmentation of blocks, eviction of cached prefixes
(the caller says what is cached).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from .workload import EngineSpec

EPSILON = 1e-6
"""Tokens that rounding of the clock may leave unwritten."""
WATERMARK = 0.01
"""Share of the KV cache that stays free when a sequence is admitted, so that a sequence that was just preempted does
not come straight back (as in vLLM)."""


class Timer(Protocol):
    """A callback that is set for some time."""

    def cancel(self) -> object:
        """Do not call it any more."""


class Clock(Protocol):
    """Time of the model in seconds. An asyncio event loop is a clock."""

    def time(self) -> float:
        """Return the time in seconds."""

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        """Call `callback` with `args` at the time `when`."""


class Sequence:
    """One request.

    Attributes:
        context: Tokens that hold KV from its admission on.
        requested: Tokens to write in all.
        remaining: Tokens that are still to be written, as of its last admission.
        cached: Tokens of the context that need no prefill.
        on_done: Called with True when all tokens are written, with False if the engine fails.
        joined: The service at which it was admitted.
        order: Number of its admission; 0 while it is not running. An entry of the heap that has another number belongs
            to an earlier admission and is void.
    """

    __slots__ = ("cached", "context", "joined", "on_done", "order", "remaining", "requested")

    def __init__(self, context: int, requested: float, cached: int, on_done: Callable[[bool], object]) -> None:
        self.context = context
        self.requested = requested
        self.remaining = requested
        self.cached = cached
        self.on_done = on_done
        self.joined = 0.0
        self.order = 0


class EngineModel:
    """One engine.

    Attributes:
        running: Number of running sequences.
        paused: True while a weight push stops all sequences.
        speed: Share of the decode rate that the engine has; less than 1 on a slow node.
        tokens: Tokens written so far.
        busy_s: Seconds in which something was running.
        preemptions: Number of preemptions so far.
    """

    def __init__(self, spec: EngineSpec, clock: Clock) -> None:
        """Create an idle engine."""
        self.spec = spec
        self.clock = clock
        self.running = 0
        self.paused = False
        self.speed = 1.0
        self.tokens = 0.0
        self.busy_s = 0.0
        self.preemptions = 0
        self._rate_of_each = [0.0, *(spec.decode_rate(n) / n for n in range(1, spec.max_running + 1))]
        """[max_running + 1] tokens/s of each of n running sequences, by n."""
        self._waiting: deque[Sequence] = deque()
        self._heap: list[tuple[float, int, Sequence]] = []
        """(service at which a sequence ends, number of its admission, sequence)."""
        self._service = 0.0
        self._prefill_s = 0.0
        """Seconds of prefill that are to be done before decoding goes on."""
        self._kv_base = 0.0
        """Tokens in the KV cache less `_service` for each running sequence: constant while sequences decode."""
        self._admissions = 0
        self._updated_at = clock.time()
        self._timer: Timer | None = None
        self._fires_at = math.inf

    # --- callers

    def submit(
        self, prompt_tokens: int, new_tokens: int, on_done: Callable[[bool], object], *, cached_tokens: int = 0
    ) -> Sequence:
        """Begin a request.

        Args:
            prompt_tokens: Tokens of the prompt.
            new_tokens: Tokens to write.
            on_done: Called with True when they are written, with False if the engine fails before.
            cached_tokens: Tokens of the prompt that need no prefill.

        Raises:
            ValueError: The whole KV cache cannot hold the sequence.
        """
        if (prompt_tokens + new_tokens) > self.spec.kv_tokens * (1 - WATERMARK):
            raise ValueError(
                f"{prompt_tokens} + {new_tokens} tokens can never fit into kv_tokens = {self.spec.kv_tokens}."
                " Make the cache larger."
            )
        sequence = Sequence(prompt_tokens, float(new_tokens), cached_tokens, on_done)
        self._advance()
        self._waiting.append(sequence)
        self._admit()
        # A sequence that joins slows the others down, so the timer that is set for them is early enough,
        # unless the new one ends first or the cache fills before.
        if self._timer is None or not self._heap or self._heap[0][2] is sequence or self._full_at < self._heap[0][0]:
            self._schedule()
        return sequence

    async def generate(self, prompt_tokens: int, new_tokens: int, *, cached_tokens: int = 0) -> bool:
        """Submit a request and wait for its end. Return False if the engine failed before.

        A caller that is cancelled takes its sequence back.
        """
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def ended(ok: bool) -> None:
            if not done.done():
                done.set_result(ok)

        sequence = self.submit(prompt_tokens, new_tokens, ended, cached_tokens=cached_tokens)
        try:
            return await done
        finally:
            if not done.done() or done.cancelled():
                self.cancel(sequence)

    def cancel(self, sequence: Sequence) -> None:
        """Drop a request without calling `on_done`. Do nothing if it has ended."""
        self._advance()
        if sequence.order:
            self._leave(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self._admit()
        self._schedule()

    def pause(self) -> None:
        """Stop all sequences until `resume`, as a weight push does."""
        self._advance()
        self.paused = True
        self._schedule()

    def resume(self, *, recompute: bool = True) -> None:
        """End a pause.

        Args:
            recompute: True if the running prefixes have to be computed again, because the weights are new.
        """
        self._advance()
        self.paused = False
        if recompute:
            self._prefill(self.kv_used)
        self._admit()
        self._schedule()

    def set_speed(self, factor: float) -> None:
        """Make the engine decode at `factor` of its rate."""
        self._advance()
        self.speed = factor
        self._schedule()

    def fail(self) -> None:
        """Let the engine die: every request ends with `on_done(False)`. The engine is empty then and can be used."""
        lost = sorted(self.running_sequences(), key=lambda sequence: sequence.order) + list(self._waiting)
        for sequence in lost:
            sequence.order = 0
        self._heap.clear()
        self._waiting.clear()
        self.running = 0
        self._kv_base = 0.0
        self._prefill_s = 0.0
        self._schedule()
        for sequence in lost:
            sequence.on_done(False)

    # --- state

    @property
    def waiting(self) -> int:
        """Number of waiting sequences."""
        return len(self._waiting)

    @property
    def kv_used(self) -> float:
        """Tokens of all running contexts, as of the last event."""
        return self._kv_base + self.running * self._service

    def running_sequences(self) -> Iterator[Sequence]:
        """Return the running sequences, in no order."""
        self._advance()
        return (sequence for _, order, sequence in self._heap if sequence.order == order)

    def in_flight(self) -> list[tuple[Sequence, float]]:
        """Return every running or waiting sequence with the number of tokens that it has written."""
        running = [(sequence, self._written(sequence)) for sequence in self.running_sequences()]
        return running + [(sequence, self._written(sequence)) for sequence in self._waiting]

    def written(self, sequence: Sequence) -> float:
        """Return the number of tokens that a sequence has written."""
        self._advance()
        return self._written(sequence)

    def _written(self, sequence: Sequence) -> float:
        """Return the number of tokens that a sequence had written at the last event.

        On a wall clock the timer of its end may be late, so that it would have more than it was asked for.
        """
        since_joined = self._service - sequence.joined if sequence.order else 0.0
        return min(sequence.requested, sequence.requested - sequence.remaining + since_joined)

    def stats(self) -> dict[str, float]:
        """Return the load and totals: running and waiting sequences, kv_used in [0, 1], preemptions, tokens, busy_s."""
        self._advance()
        return {
            "running": float(self.running),
            "waiting": float(self.waiting),
            "kv_used": self.kv_used / self.spec.kv_tokens,
            "preemptions": float(self.preemptions),
            "tokens": self.tokens,
            "busy_s": self.busy_s,
        }

    # --- the model

    def _advance(self) -> None:
        """Bring the state to now: prefill comes first, then every running sequence gets the same service."""
        now = self.clock.time()
        seconds = now - self._updated_at
        self._updated_at = now
        if seconds <= 0 or not self.running or self.paused:
            return
        self.busy_s += seconds
        if self._prefill_s > 0:
            used = min(self._prefill_s, seconds)
            self._prefill_s -= used
            seconds -= used
        served = seconds * self._rate_of_each[self.running] * self.speed
        self._service += served
        self.tokens += served * self.running

    def _prefill(self, tokens: float) -> None:
        """Add the work of computing `tokens` of context."""
        self._prefill_s += tokens / self.spec.prefill_tokens_per_s

    def _admit(self) -> None:
        """Let waiting sequences run while there are slots and KV for them."""
        waiting = self._waiting
        spec = self.spec
        if not waiting or self.paused:
            return
        room = spec.kv_tokens * (1 - WATERMARK)
        while waiting and self.running < spec.max_running:
            sequence = waiting[0]
            if self.kv_used + sequence.context > room:
                return
            waiting.popleft()
            if sequence.context > sequence.cached:
                self._prefill(sequence.context - sequence.cached)
            sequence.cached = 0
            self._admissions += 1
            sequence.joined = self._service
            sequence.order = self._admissions
            self.running += 1
            self._kv_base += sequence.context - self._service
            heappush(self._heap, (self._service + sequence.remaining, sequence.order, sequence))

    def _leave(self, sequence: Sequence) -> None:
        """Give back the slot and the KV of a running sequence. Its entry stays in the heap until it is at the top."""
        sequence.order = 0
        self.running -= 1
        self._kv_base -= sequence.context - sequence.joined
        if not self.running:
            self._kv_base = 0.0  # rounding errors would add up otherwise
        if len(self._heap) > 4 * self.running + 64:
            self._heap = [entry for entry in self._heap if entry[2].order == entry[1]]
            heapify(self._heap)

    def _preempt(self) -> None:
        """Make the youngest sequence wait again, first in line. What it wrote is computed again as context."""
        sequence = max(self.running_sequences(), key=lambda candidate: candidate.order)
        written = self._service - sequence.joined
        self._leave(sequence)
        sequence.context += round(written)
        sequence.remaining -= written
        self._waiting.appendleft(sequence)
        self.preemptions += 1

    @property
    def _full_at(self) -> float:
        """The service at which the running contexts fill the cache."""
        return (self.spec.kv_tokens - self._kv_base) / self.running

    def _schedule(self) -> None:
        """Set the timer for the next end of a sequence or the moment at which the KV cache is full.

        A timer that fires too early is set again, which is cheaper than moving it at each event.
        """
        heap = self._heap
        while heap and heap[0][2].order != heap[0][1]:
            heappop(heap)
        if not heap or self.paused:
            return
        target = heap[0][0]
        if self.running > 1 and (full_at := self._full_at) < target:
            target = full_at
        when = self._updated_at + self._prefill_s
        if target > self._service:
            when += (target - self._service) / (self._rate_of_each[self.running] * self.speed)
        if when < self._fires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._fires_at = when
            self._timer = self.clock.call_at(when, self._fire)

    def _fire(self) -> None:
        """End the sequences that have written everything, and preempt if the KV cache is full."""
        self._timer = None
        self._fires_at = math.inf
        self._advance()
        done: list[Sequence] = []
        until = self._service + EPSILON
        while self._heap and self._heap[0][0] <= until and not self.paused:
            _, order, sequence = heappop(self._heap)
            if sequence.order == order:
                self._leave(sequence)
                done.append(sequence)
        full = self.spec.kv_tokens - EPSILON
        while self.running > 1 and self.kv_used > full:
            self._preempt()
        if self._waiting:
            self._admit()
        self._schedule()
        for sequence in done:
            sequence.on_done(True)
