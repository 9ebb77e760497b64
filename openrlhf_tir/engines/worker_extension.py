"""What vLLM adds to its worker class in our engines. vLLM imports this module in the worker's process, by its name."""

from __future__ import annotations

import torch

from ..weights import file_backend
from . import cpu_sampler


class WorkerExtension(file_backend.WorkerExtension):
    """Weight pushes, and sampling on a CPU. In the methods `self` is the worker."""

    def compute_with(self, threads: int) -> int:
        """Compute with so many threads from now on, and return how many they are. The process was started with one, so
        that it could be forked."""
        torch._C.set_num_threads(threads)  # vLLM replaces torch.set_num_threads by a function that does nothing
        return torch.get_num_threads()

    def draw_on_cpu(self) -> None:
        """Sample with one random number a token from now on."""
        cpu_sampler.install(self.model_runner.sampler)  # type: ignore[attr-defined]
