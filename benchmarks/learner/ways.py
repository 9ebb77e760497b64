"""Ways to train one batch, side by side on the same ranks: each is made once per rank, told a batch, and stepped in its
turn.

packed     ours: rows without padding, as many as max_tokens_per_gpu holds, each rank's share as the controller spreads
           it
bucketed   ours, without packing: rows sorted by length, so that those of like length share a pass; padding counts in
           max_tokens_per_gpu
padded     rows in the order in which they came, ROWS at a time, padded to the longest
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openrlhf_tir.config import Config
from openrlhf_tir.learner.packing import MicroBatch, Row
from openrlhf_tir.types import Group, TrainBatch

from .workload import MAX_TOKENS

ROWS = 8
"""Sequences of a padded pass: the default of train.micro_batch_size."""


def config(model: str, ranks: int, *, packed: bool = True) -> Config:
    return Config.model_validate(
        {
            "actor": {"model_name_or_path": model, "num_gpus_per_node": ranks, "learning_rate": 1e-6},
            "ds": {"param_dtype": "fp32", "attn_implementation": "sdpa", "packing_samples": packed},
            "train": {"max_tokens_per_gpu": MAX_TOKENS, "micro_batch_size": ROWS if packed else 10**6},
        }
    )


class Ours:
    """Zero3Rank as a run has it."""

    def __init__(self, model: str, rank: int, ranks: int, port: int, *, packed: bool = True) -> None:
        from openrlhf_tir.learner.zero3 import Zero3Rank

        self.learner = Zero3Rank(config(model, ranks, packed=packed), rank, ranks, "127.0.0.1", port)

    def prepare(self, batch: TrainBatch, groups: Sequence[Group]) -> None:
        self.given = batch, groups

    def step(self) -> float:
        return self.learner.step(*self.given)["grad_norm"]


class Padded(Ours):
    """The same learner, but for which rows share a pass."""

    def __init__(self, model: str, rank: int, ranks: int, port: int) -> None:
        super().__init__(model, rank, ranks, port, packed=False)
        self.learner.runner.micro_batches = self._in_order  # type: ignore[method-assign]  # the whole difference

    def _in_order(
        self, model: Any, rows: Sequence[Row], names: Mapping[str, type], *, scoring: bool = False
    ) -> Iterator[tuple[list[int], MicroBatch]]:
        import torch
        import torch.distributed as dist

        from openrlhf_tir.learner.packing import collate

        planned: list[list[int]] = [list(range(i, min(i + ROWS, len(rows)))) for i in range(0, len(rows), ROWS)]
        most = torch.tensor(len(planned))
        dist.all_reduce(most, dist.ReduceOp.MAX)
        for indices in planned + [[]] * (int(most) - len(planned)):
            yield indices, collate([rows[i] for i in indices], names, "cpu")


def ways(model: str, rank: int, ranks: int, port: int) -> dict[str, Any]:
    """name -> object with `prepare`, `step`. All load the same weights and train in float32 with torch's AdamW."""
    from .bare import Bare
    from .openrlhf_step import OpenRlhf

    packed = Ours(model, rank, ranks, port)  # the first joins the process group, which the others use
    return {
        "packed": packed,
        "bucketed": Ours(model, rank, ranks, port, packed=False),
        "padded": Padded(model, rank, ranks, port),
        "bare": Bare(packed.learner),
        "openrlhf": OpenRlhf(packed.learner, attention="sdpa"),
        "openrlhf_same_attention": OpenRlhf(packed.learner, attention="sdpa_packed"),
    }
