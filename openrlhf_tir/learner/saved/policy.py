"""Put the policy of a checkpoint together in one process, and export it as its run would have.

No engine of DeepSpeed is started. The model is loaded as for training; then every parameter gets its saved value in the
dtype that it has in training:

    ZeRO-3    from the parts of all ranks (shards.py); the weights are the rounded master weights
    ZeRO-2    from rank 0's file, which has them whole
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from ...config import Config
from ...config.sections.output import OF_AVERAGE
from ...errors import ConfigError
from ..ema import averages_of
from ..export import export_policy
from ..openrlhf_adapter import PolicyModel, ZeroStrategy
from .checkpoint import POLICY
from .shards import Shards

WHOLE = "mp_rank_00_model_states.pt"
"""ZeRO-2's file of the whole model."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""What ds.param_dtype means."""
PLAIN = {
    "zero_stage": 2,
    "attn_implementation": "eager",
    "packing_samples": False,
    "ring_attn_size": 1,
    "use_liger_kernel": False,
}
"""Settings of ds with which a machine of any kind loads the model. None of them changes a weight."""


class SavedPolicy:
    """The policy in a checkpoint's directory `learner`. The process group must be this process alone.

    It has no average with ZeRO-2, which pads each parameter group as only its optimizer knows.
    """

    def __init__(self, cfg: Config, directory: Path) -> None:
        """Load the model that the run started from. Of the checkpoint nothing but the number of ranks is read yet."""
        assert cfg.ds.zero_stage == 3 or not cfg.train.ema_beta
        self.cfg = cfg
        self.directory = directory
        self.ranks = json.loads((directory / "learner.json").read_text())["world_size"]
        plain = cfg.model_copy(update={"ds": cfg.ds.model_copy(update=PLAIN)})
        self.policy = PolicyModel(plain, ZeroStrategy(plain))

    async def export(self, directory: Path) -> None:
        """Write the model, and beside it the average of its weights (train.ema_beta).

        Raises:
            CheckpointDamaged: The file of a rank is missing.
            ConfigError: The checkpoint is of another model than the run's.
            OSError: The disk is full or fails.
        """
        self._export(directory, None)
        if self.cfg.train.ema_beta:
            # A checkpoint from before the setting has no average: a resume would begin it at the weights.
            average = averages_of(self.directory, self.ranks)
            self._export(directory.with_name(directory.name + OF_AVERAGE), average)

    def _export(self, directory: Path, average: list[list[torch.Tensor]] | None) -> None:
        self._fill(dict(self._values(average)))
        export_policy(
            self.policy.model,
            self.policy.hf_config,
            self.cfg.actor.model_name_or_path,
            directory,
            rank=0,
        )

    def _values(self, average: list[list[torch.Tensor]] | None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield all parameters and buffers by name: the weights, or in their place the average, which needs ZeRO-3."""
        directory = self.directory / POLICY
        if self.cfg.ds.zero_stage != 3:
            yield from torch.load(directory / WHOLE, map_location="cpu", mmap=True, weights_only=False)[
                "module"
            ].items()
            return
        shards = Shards(directory, self.ranks, 0, 1)
        for name in shards.places:
            value = shards.master(name) if average is None else shards.own_part(average, name)
            yield name, value.to(DTYPES[self.cfg.ds.param_dtype])
        yield from shards.frozen()
        for name in shards.model.get("buffer_names") or ():
            yield name, shards.model["module"][name]

    @torch.no_grad()
    def _fill(self, values: dict[str, torch.Tensor]) -> None:
        model = self.policy.model
        parameters = dict(model.named_parameters())
        if wrong := [name for name, p in parameters.items() if name not in values or values[name].numel() != p.numel()]:
            raise ConfigError(
                f"{self.directory} does not fit {self.cfg.actor.model_name_or_path}: {wrong[0]} is missing or has"
                f" another size ({len(wrong)} of {len(parameters)} parameters). Put back the model that the run"
                " started from.",
                code="resume",
                setting="actor.model_name_or_path",
            )
        for name, parameter in parameters.items():
            parameter.data = values[name].view(parameter.shape)
        for name, buffer in model.named_buffers():
            if name in values:
                buffer.copy_(values[name])
