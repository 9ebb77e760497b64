"""Compare an answer with the gold answer: strings and exact arithmetic at once, computer algebra in worker processes.

The checks are those of `openrlhf_tir.rewards`, so service and trainer always agree; its checking modules are
torch-free.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from openrlhf_tir.rewards.checking import answer_check, symbolic
from openrlhf_tir.rewards.workers import CpuSpent, Workers

HANDED_OVER = 2
"""Checks per worker that the pool holds. A check in the pool can only be cancelled by killing its worker; one that
waits here is simply dropped."""


class Verdict(NamedTuple):
    """Result of a comparison.

    Attributes:
        equal: True if the answers are equal.
        how: "exact" (strings, arithmetic), "symbolic" (math-verify), or "timeout": the check used up its CPU, so the
            answers are not equal.
        seconds: Duration of the comparison.
    """

    equal: bool
    how: str
    seconds: float


class Verifier:
    """Compares answers, with a pool of worker processes."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._slots = asyncio.Semaphore(workers.count * HANDED_OVER)

    def at_once(self, answer: str, gold: str) -> Verdict | None:
        """Compare strings and exact arithmetic, in microseconds. Return None if computer algebra must decide."""
        start = time.monotonic()
        equal = answer_check.quick_equal(answer, gold)
        return None if equal is None else Verdict(equal, "exact", round(time.monotonic() - start, 6))

    async def check(self, answer: str, gold: str) -> Verdict:
        """Compare by all means. Raises VerifierError if the checker or a starved machine, not the answer, is at
        fault."""
        if verdict := self.at_once(answer, gold):
            return verdict
        start = time.monotonic()
        try:
            async with self._slots:
                equal = await self._workers.run(symbolic.equal, answer_check.clean(answer), answer_check.clean(gold))
                how = "symbolic"
        except CpuSpent:
            equal = False
            how = "timeout"
        return Verdict(equal, how, round(time.monotonic() - start, 6))
