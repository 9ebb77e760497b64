"""Withhold what an engine sampled with weights that are not proved yet.

    push with a canary -> expect(v)      the engine samples with v, but completions with tokens of v wait here
    canary agrees      -> proved(v)      they are released
    another push       -> void()         v was not proved, and is pushed again or replaced: they raise WeightsUnverified
    canary disagrees   -> refuse(why)    they raise WeightsUnverified, and so do all later ones

So no group reaches the buffer, and no traced session its reward, before the verdict on each of its tokens.
"""

from __future__ import annotations

import asyncio

import numpy as np

from ..errors import WeightsUnverified


class ProofGate:
    """Withholds the completions of one engine until the push that sampled them is proved."""

    def __init__(self) -> None:
        self.unproved: int | None = None
        self.refused: str | None = None
        self._attempt = 0
        """Number of pushes that another one replaced before they were proved."""
        self._decided = asyncio.Event()

    def expect(self, version: int) -> None:
        """Withhold completions with tokens of `version` from now on."""
        self.unproved = version
        self._decided.clear()

    def void(self) -> None:
        """Fail the completions that wait: another push replaces the one that sampled them."""
        self.unproved = None
        self._attempt += 1
        self._decided.set()
        self._decided = asyncio.Event()

    def proved(self, version: int) -> None:
        """Release completions of `version`. A late verdict on an older version is ignored."""
        if version == self.unproved:
            self.unproved = None
            self._decided.set()

    def refuse(self, why: str) -> None:
        """Refuse all completions from now on. The engine's weights are unknown, so it will be replaced."""
        self.refused = why
        self._decided.set()

    async def passed(self, versions_T: np.ndarray) -> None:
        """Wait until tokens of these versions may be used.

        Args:
            versions_T: [T] int: the version that sampled each token of a completion.

        Raises:
            WeightsUnverified: They may never be used.
        """
        attempt = self._attempt
        while self.refused is None and self.unproved is not None and (versions_T == self.unproved).any():
            await self._decided.wait()
            if attempt != self._attempt:
                raise WeightsUnverified("The push that sampled this was not proved, and another one followed.")
        if self.refused is not None:
            raise WeightsUnverified(self.refused)
