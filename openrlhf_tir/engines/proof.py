"""Proof: nothing that unproved weights sampled leaves the engine.

    push with a canary -> expect(v)      v samples, but completions with tokens of v wait here
    canary agrees      -> proved()       they go on
    canary disagrees   -> void()         another push of v follows: they raise WeightsUnverified, what comes after waits
                          refuse(why)    they raise WeightsUnverified, and so does everything after

So a group cannot reach the replay buffer, nor a traced session its reward, before the verdict on every token in it."""

from __future__ import annotations

import asyncio

import numpy as np

from ..errors import WeightsUnverified


class Proof:
    def __init__(self) -> None:
        self.unproved: int | None = None
        self.refused: str | None = None
        self._attempt = 0
        """Counts the pushes whose proof failed and that were made again."""
        self._decided = asyncio.Event()

    def expect(self, version: int) -> None:
        self.unproved = version
        self._decided.clear()

    def void(self) -> None:
        """What waits for the verdict never gets it: the version is pushed again, and the proof starts anew."""
        self._attempt += 1
        self._decided.set()
        self._decided = asyncio.Event()

    def proved(self, version: int) -> None:
        """The verdict on `version`; one on an older push says nothing about what samples now."""
        if version == self.unproved:
            self.unproved = None
            self._decided.set()

    def refuse(self, why: str) -> None:
        """Refuse everything for good: an engine that holds unknown weights is started anew."""
        self.refused = why
        self._decided.set()

    async def passed(self, versions_T: np.ndarray) -> None:
        """Return once tokens of these versions may be used. Raises WeightsUnverified when they never may."""
        attempt = self._attempt
        while self.refused is None and self.unproved is not None and (versions_T == self.unproved).any():
            await self._decided.wait()
            if attempt != self._attempt:
                raise WeightsUnverified("The push that sampled this was not proved; the same version was pushed again.")
        if self.refused is not None:
            raise WeightsUnverified(self.refused)
