"""EngineModel: a continuous-batching engine that computes nothing. Token counts in, the moments of completion out, on
any clock.

    submit -> waiting (FIFO) -- a place and KV for its context --> running -> on_done
                 ^                                                    |
                 +------- preempted: KV full, the youngest goes ------+

Processor sharing: n running sequences decode r(n) tokens/s together (EngineSpec.decode_rate), r(n)/n each. So all of
them advance alike, and one number, the *service* that each has received, stands for all: a sequence that joins at
service s with k tokens to write ends at s + k, whatever n is meanwhile. A heap on that number makes every event O(log
n); between events nothing is computed. Prefill comes before decoding, as work of the whole engine. KV in use is the
running contexts, prompt and tokens so far.

The simulator drives it on a virtual clock with callbacks, the emulated engine of the wall-clock benchmark on the real
one with `generate`. Not modelled: CUDA graphs, block fragmentation, eviction of a cached prefix (the caller knows)."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from .workload import EngineSpec

EPSILON = 1e-6
"""Tokens; what rounding of the clock may leave."""
WATERMARK = 0.01
"""Share of the KV cache that stays free when a sequence is admitted, so that what was just preempted does not come
straight back (as in vLLM)."""


class Timer(Protocol):
    def cancel(self) -> object: ...


class Clock(Protocol):
    """Seconds of the model. An asyncio event loop is one; ScaledClock makes it slower or faster."""

    def time(self) -> float: ...
    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer: ...


class ScaledClock:
    """Emulated seconds of `scale` wall-clock seconds each."""

    def __init__(self, loop: Clock, scale: float) -> None:
        self.loop, self.scale = loop, scale

    def time(self) -> float:
        return self.loop.time() / self.scale

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Timer:
        return self.loop.call_at(when * self.scale, callback, *args)


class Sequence:
    """One request. `context` tokens hold KV from admission on, `left` are still to be written, `cached` need no
    prefill.

    `order` numbers admissions; 0 while it is not running. A heap entry of another number is of an earlier one, void."""

    __slots__ = ("asked", "cached", "context", "joined", "left", "on_done", "order")

    def __init__(self, context: int, left: float, cached: int, on_done: Callable[[bool], object]) -> None:
        self.context, self.asked, self.left, self.cached, self.on_done = context, left, left, cached, on_done
        self.joined, self.order = 0.0, 0


class EngineModel:
    """One engine. Totals: `tokens` written, `busy_s` with something running, `preemptions`, `prefill_tokens`."""

    def __init__(self, spec: EngineSpec, clock: Clock) -> None:
        self.spec, self.clock = spec, clock
        self._each = [0.0, *(spec.decode_rate(n) / n for n in range(1, spec.max_running + 1))]
        self.speed = 1.0
        self.tokens = self.busy_s = self.prefill_tokens = 0.0
        self.preemptions = self.n = 0
        self.paused = False
        self._waiting: deque[Sequence] = deque()
        self._heap: list[tuple[float, int, Sequence]] = []
        self._service = self._prefill_s = self._kv_base = 0.0
        self._orders = 0
        self._then = clock.time()
        self._timer: Timer | None = None
        self._fires_at = math.inf

    # --- callers

    def submit(
        self, prompt_tokens: int, new_tokens: int, on_done: Callable[[bool], object], *, cached_tokens: int = 0
    ) -> Sequence:
        """Write `new_tokens` after `prompt_tokens`. `on_done(True)` when they are written, `on_done(False)` if the
        engine fails first.

        Raises ValueError for a sequence that the whole KV cache cannot hold.
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
        # A joiner slows the others down, so the timer set for them is early enough,
        # unless it ends first or the cache fills before.
        if self._timer is None or not self._heap or self._heap[0][2] is sequence or self._full_at < self._heap[0][0]:
            self._schedule()
        return sequence

    async def generate(self, prompt_tokens: int, new_tokens: int, *, cached_tokens: int = 0) -> bool:
        """`submit`, awaited; False when the engine failed first. A caller that is cancelled takes its sequence back."""
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
        """Forget it; `on_done` is not called. Nothing happens if it has ended."""
        self._advance()
        if sequence.order:
            self._leave(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
        self._admit()
        self._schedule()

    def pause(self) -> None:
        """Stop all sequences until `resume`; the timer of a weight push."""
        self._advance()
        self.paused = True
        self._schedule()

    def resume(self, *, recompute: bool = True) -> None:
        """Go on. `recompute`: the weights are new, so the running prefixes are computed again before decoding."""
        self._advance()
        self.paused = False
        if recompute:
            self._prefill(self.kv_used)
        self._admit()
        self._schedule()

    def set_speed(self, factor: float) -> None:
        """A slow node decodes at `factor` of its rate."""
        self._advance()
        self.speed = factor
        self._schedule()

    def fail(self) -> None:
        """The engine dies: everything it holds ends with `on_done(False)`. It can be used again afterwards, empty."""
        lost = sorted(self.running_sequences(), key=lambda s: s.order) + list(self._waiting)
        for s in lost:
            s.order = 0
        self._heap.clear()
        self._waiting.clear()
        self.n, self._kv_base, self._prefill_s = 0, 0.0, 0.0
        self._schedule()
        for s in lost:
            s.on_done(False)

    # --- facts

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def kv_used(self) -> float:
        """Tokens of all running contexts, as of the last event."""
        return self._kv_base + self.n * self._service

    def running_sequences(self) -> Iterator[Sequence]:
        self._advance()
        return (s for _, order, s in self._heap if s.order == order)

    def in_flight(self) -> list[tuple[Sequence, float]]:
        """Every sequence that is running or waiting, and the tokens it has written: all, where the timer of its end is
        late on a wall clock."""
        running = [(s, min(s.asked, s.asked - s.left + self._service - s.joined)) for s in self.running_sequences()]
        return running + [(s, s.asked - s.left) for s in self._waiting]

    def written(self, sequence: Sequence) -> float:
        """Tokens of it so far."""
        self._advance()
        now = self._service - sequence.joined if sequence.order else 0.0
        return min(sequence.asked, sequence.asked - sequence.left + now)

    def stats(self) -> dict[str, float]:
        """Load now and totals: running, waiting [sequences], kv_used [0, 1], preemptions, tokens, busy_s."""
        self._advance()
        return {
            "running": float(self.n),
            "waiting": float(self.waiting),
            "kv_used": self.kv_used / self.spec.kv_tokens,
            "preemptions": float(self.preemptions),
            "tokens": self.tokens,
            "busy_s": self.busy_s,
        }

    # --- the model

    def _advance(self) -> None:
        """Bring the state to now: prefill first, then every running sequence gets the same service."""
        now = self.clock.time()
        seconds, self._then = now - self._then, now
        if seconds <= 0 or not self.n or self.paused:
            return
        self.busy_s += seconds
        if self._prefill_s > 0:
            used = min(self._prefill_s, seconds)
            self._prefill_s -= used
            seconds -= used
        served = seconds * self._each[self.n] * self.speed
        self._service += served
        self.tokens += served * self.n

    def _prefill(self, tokens: float) -> None:
        self.prefill_tokens += tokens
        self._prefill_s += tokens / self.spec.prefill_tokens_per_s

    def _admit(self) -> None:
        waiting, spec = self._waiting, self.spec
        if not waiting or self.paused:
            return
        room = spec.kv_tokens * (1 - WATERMARK)
        while waiting and self.n < spec.max_running:
            s = waiting[0]
            if self.kv_used + s.context > room:
                return
            waiting.popleft()
            if s.context > s.cached:
                self._prefill(s.context - s.cached)
            s.cached = 0
            self._orders += 1
            s.joined, s.order = self._service, self._orders
            self.n += 1
            self._kv_base += s.context - self._service
            heappush(self._heap, (self._service + s.left, s.order, s))

    def _leave(self, s: Sequence) -> None:
        """Give back place and KV. Its entry stays in the heap until it surfaces."""
        s.order = 0
        self.n -= 1
        self._kv_base -= s.context - s.joined
        if not self.n:
            self._kv_base = 0.0
        if len(self._heap) > 4 * self.n + 64:
            self._heap = [e for e in self._heap if e[2].order == e[1]]
            heapify(self._heap)

    def _preempt(self) -> None:
        """The youngest waits again, first in line; what it wrote is computed again as context."""
        s = max(self.running_sequences(), key=lambda s: s.order)
        written = self._service - s.joined
        self._leave(s)
        s.context += round(written)
        s.left -= written
        self._waiting.appendleft(s)
        self.preemptions += 1

    @property
    def _full_at(self) -> float:
        """The service at which the running contexts fill the cache."""
        return (self.spec.kv_tokens - self._kv_base) / self.n

    def _schedule(self) -> None:
        """Arm the timer for the next completion or KV overflow. One that fires too early is re-armed, which is cheaper
        than moving it each time."""
        heap, n = self._heap, self.n
        while heap and heap[0][2].order != heap[0][1]:
            heappop(heap)
        if not heap or self.paused:
            return
        target, service = heap[0][0], self._service
        if n > 1 and (full_at := self._full_at) < target:
            target = full_at
        when = self._then + self._prefill_s
        if target > service:
            when += (target - service) / (self._each[n] * self.speed)
        if when < self._fires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._fires_at = when
            self._timer = self.clock.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer, self._fires_at = None, math.inf
        self._advance()
        done: list[Sequence] = []
        until = self._service + EPSILON
        while self._heap and self._heap[0][0] <= until and not self.paused:
            _, order, s = heappop(self._heap)
            if s.order == order:
                self._leave(s)
                done.append(s)
        full = self.spec.kv_tokens - EPSILON
        while self.n > 1 and self._kv_base + self.n * self._service > full:
            self._preempt()
        if self._waiting:
            self._admit()
        self._schedule()
        for s in done:
            s.on_done(True)
