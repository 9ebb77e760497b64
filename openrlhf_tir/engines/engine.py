"""Engine: prompt token ids -> sampled token ids. What an episode, a test or the evaluator needs of a rollout engine.

Implementations: vllm_engine.py (real), torch_engine.py (deterministic, for tests), emulated_engine.py (sleeps like a cluster).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..types import Completion, Sampling


class Engine(Protocol):
    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        """Continue `token_ids`. Stop strings are included in the text; the log-probs are the sampler's, at temperature 1.

        Raises EngineError when the engine cannot answer. `Completion.versions` names, per token, the weights that sampled it.
        """


class Codec(Protocol):
    """Text <-> tokens. Special tokens in the text of tools are inert: `encode` never produces a special id, `encode_prompt` may."""

    def encode(self, text: str) -> list[int]: ...
    def encode_prompt(self, text: str) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...
