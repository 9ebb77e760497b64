"""What most runs are: services whose engines and learner have GPUs of their own, for tests that make theirs."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any


class Apart(SimpleNamespace):
    """The part of cluster.services.Services that takes turns where GPUs are shared."""

    learning = sampling = staticmethod(nullcontext)

    @property
    def rollout(self) -> Any:
        return self.pool

    @staticmethod
    def publishing(publisher: Any, *phase: Any) -> Any:
        return publisher
