"""Reward model: token ids of prompt and response -> one number, by a HF sequence classifier of one label.

The score is the head's output at the last token, as the model was trained to give it; tokens are those that the policy
read and wrote, so both must have the same vocabulary. What waits while a batch is computed goes together into the next
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..config import Config
from ..errors import ConfigError

BATCH_TOKENS = 16384
"""Tokens of a forward pass, padding included; memory is bounded by it, and by the longest response."""


class RewardModel:
    """Belongs to one event loop. Raises ConfigError for a model that is no reward model of this policy."""

    def __init__(self, cfg: Config) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        name, prefix = cfg.reward.model_name_or_path, cfg.ds.value_head_prefix
        assert name is not None, "there is no reward model without a name"
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[cfg.ds.param_dtype]
        loading = {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = AutoModelForSequenceClassification.from_pretrained(name, num_labels=1, **loading)
        absent = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]
        head: torch.nn.Module | None = getattr(model, prefix, None)
        if absent or head is None:
            raise ConfigError(
                f"reward.model_name_or_path = {name!r} has no scalar head: {', '.join(map(str, absent)) or prefix} is"
                " not among its weights, or of more than one label. Give a sequence classifier of one label, as"
                " openrlhf's train_rm makes them; ds.value_head_prefix names its head."
            )
        ours, its = (AutoTokenizer.from_pretrained(path).get_vocab() for path in (cfg.actor.model_name_or_path, name))
        if ours != its:
            raise ConfigError(
                f"reward.model_name_or_path = {name!r} has another vocabulary ({len(its)} tokens) than the policy"
                f" ({len(ours)}), and it is given the policy's tokens. Choose a reward model of the policy's family."
            )
        self.mean, self.std = normalisation(cfg, model.config)
        self.body, self.head = model.base_model.eval(), head
        self.offload = cfg.reward.offload
        self._move("cpu" if self.offload else self.device)
        self._waiting: list[tuple[np.ndarray, asyncio.Future[float]]] = []
        self._working: asyncio.Task[None] | None = None

    async def score(self, token_ids: np.ndarray) -> float:
        """token_ids [L] int."""
        found: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((token_ids, found))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="reward model")
        return await found

    async def _work(self) -> None:
        while self._waiting:  # asked again behind each move: what came meanwhile has nobody else to score it
            if self.offload and not await self._on_device():
                return
            try:
                await self._score_all()
            finally:
                if self.offload:
                    await asyncio.to_thread(self._move, "cpu")

    async def _on_device(self) -> bool:
        """Whether the weights have been moved there. If not, that is what everybody who waits is told."""
        try:
            await asyncio.to_thread(self._move, self.device)
            return True
        except Exception as e:
            waiting, self._waiting = self._waiting, []
            for _, found in waiting:
                if not found.done():
                    found.set_exception(e)
            return False

    async def _score_all(self) -> None:
        while self._waiting:
            self._waiting.sort(key=lambda w: len(w[0]))
            taken = self._waiting[:1]
            while (
                len(taken) < len(self._waiting) and (len(taken) + 1) * len(self._waiting[len(taken)][0]) <= BATCH_TOKENS
            ):
                taken.append(self._waiting[len(taken)])
            del self._waiting[: len(taken)]
            try:
                scores = await asyncio.to_thread(self.forward, [ids for ids, _ in taken])
            except Exception as e:
                scores, error = None, e
            for k, (_, found) in enumerate(taken):
                if found.done():  # its caller has gone
                    continue
                if scores is None:
                    found.set_exception(error)
                else:
                    found.set_result(scores[k])

    def _move(self, device: str) -> None:
        """The weights, to where they are needed or (reward.offload) wait."""
        self.body.to(device)
        self.head.to(device)

    def forward(self, sequences: Sequence[np.ndarray]) -> list[float]:
        """One batch, padded on the right."""
        import torch

        lengths = torch.tensor([len(ids) for ids in sequences], device=self.device)
        ids = torch.zeros((len(sequences), int(lengths.max())), dtype=torch.long)
        for row, sequence in zip(ids, sequences, strict=True):
            row[: len(sequence)] = torch.as_tensor(np.asarray(sequence, np.int64))
        mask = torch.arange(ids.shape[1], device=self.device)[None] < lengths[:, None]
        with torch.no_grad():
            hidden = self.body(ids.to(self.device), attention_mask=mask.long(), use_cache=False).last_hidden_state
            scores = self.head(hidden[torch.arange(len(sequences)), lengths - 1])[:, 0].float()
        return ((scores - self.mean) / self.std).tolist()


def normalisation(cfg: Config, model_config: Any) -> tuple[float, float]:
    """(mean, std) that scores are normalised with: those that openrlhf's train_rm left in the model's config.json, or
    (0, 1) unless asked for."""
    if not cfg.reward.normalize_enable:
        return 0.0, 1.0
    mean, std = getattr(model_config, "mean", None), getattr(model_config, "std", None)
    return checked_normalisation(cfg, mean, std)


def checked_normalisation(cfg: Config, mean: Any, std: Any) -> tuple[float, float]:
    """Return mean and std as numbers. Raises ConfigError where the model's config.json lacks one of them."""
    if not (isinstance(mean, int | float) and isinstance(std, int | float) and std):
        raise ConfigError(
            f"reward.normalize_enable needs mean and std in the config.json of {cfg.reward.model_name_or_path}, where"
            f" openrlhf's train_rm leaves them, and they are {mean} and {std}. Write them there, or leave it out."
        )
    return float(mean), float(std)
