"""Verifier: (answer, gold) -> Verdict. Strings and exact arithmetic here and now, computer algebra in worker processes.

`openrlhf_tir.rewards` owns the check, so service and trainer never disagree; its checking modules are torch-free."""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from openrlhf_tir.rewards.checking import answer_check, symbolic
from openrlhf_tir.rewards.workers import CpuSpent, Workers

HANDED_OVER = 2
"""Checks per worker that the pool holds. What it holds is taken back only by killing a worker; the rest is dropped."""


class Verdict(NamedTuple):
    equal: bool
    how: str
    """exact (strings, arithmetic), symbolic (math-verify), or timeout: the check used up its CPU and says not equal."""
    seconds: float


class Verifier:
    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._places = asyncio.Semaphore(workers.count * HANDED_OVER)

    def at_once(self, answer: str, gold: str) -> Verdict | None:
        """The verdict of strings and exact arithmetic, in microseconds; None where computer algebra must decide."""
        start = time.monotonic()
        equal = answer_check.quick_equal(answer, gold)
        return None if equal is None else Verdict(equal, "exact", round(time.monotonic() - start, 6))

    async def check(self, answer: str, gold: str) -> Verdict:
        """Raises VerifierError when the checker or a starved machine, not the answer, is at fault."""
        if verdict := self.at_once(answer, gold):
            return verdict
        start = time.monotonic()
        try:
            async with self._places:
                equal = await self._workers.run(symbolic.equal, answer_check.clean(answer), answer_check.clean(gold))
                how = "symbolic"
        except CpuSpent:
            equal = False
            how = "timeout"
        return Verdict(equal, how, round(time.monotonic() - start, 6))
