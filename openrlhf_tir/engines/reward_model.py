"""A reward model: scores prompt and response with a Hugging Face sequence classifier of one label.

The score is the head's output at the last token. The token ids are those of the policy, so both models must have the
same vocabulary. Responses that arrive while a batch is computed are scored together in the next batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..config import Config
from ..errors import ConfigError
from ..learner.attention.choice import leave_out_cudnn
from ..memory.bounds import REWARD_BATCH_TOKENS


class RewardModel:
    """A loaded reward model. Belongs to one event loop."""

    def __init__(self, cfg: Config) -> None:
        """Load reward.model_name_or_path.

        Raises:
            ConfigError: It is not a reward model, or has another vocabulary than the policy.
        """
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        name = cfg.reward.model_name_or_path
        prefix = cfg.ds.value_head_prefix
        assert name is not None, "there is no reward model without a name"
        leave_out_cudnn()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[cfg.ds.param_dtype]
        loading = {"dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = AutoModelForSequenceClassification.from_pretrained(name, num_labels=1, **loading)
        missing = [*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])]
        head: torch.nn.Module | None = getattr(model, prefix, None)
        if missing or head is None:
            raise ConfigError(
                f"reward.model_name_or_path = {name!r} has no scalar head: {', '.join(map(str, missing)) or prefix} is"
                " not among its weights, or of more than one label. Give a sequence classifier of one label, as"
                " openrlhf's train_rm makes them; ds.value_head_prefix names its head."
            )
        policy_vocabulary, vocabulary = (
            AutoTokenizer.from_pretrained(path).get_vocab() for path in (cfg.actor.model_name_or_path, name)
        )
        if policy_vocabulary != vocabulary:
            raise ConfigError(
                f"reward.model_name_or_path = {name!r} has another vocabulary ({len(vocabulary)} tokens) than the"
                f" policy ({len(policy_vocabulary)}), and it is given the policy's tokens. Choose a reward model of the"
                " policy's family."
            )
        self.mean, self.std = normalisation(
            cfg, getattr(model.config, "mean", None), getattr(model.config, "std", None)
        )
        self.body, self.head = model.base_model.eval(), head
        self.body.to(self.device)
        self.head.to(self.device)
        self._waiting: list[tuple[np.ndarray, asyncio.Future[float]]] = []
        self._working: asyncio.Task[None] | None = None

    async def score(self, token_ids: np.ndarray) -> float:
        """Return the score of one sequence.

        Args:
            token_ids: [L] int: prompt and response.
        """
        score: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append((token_ids, score))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="reward model")
        return await score

    async def _work(self) -> None:
        """Score everything that waits, and what arrives meanwhile."""
        while self._waiting:
            self._waiting.sort(key=lambda w: len(w[0]))
            # From the shortest on, as many as fit when all are padded to the longest of them.
            batch = self._waiting[:1]
            while (
                len(batch) < len(self._waiting)
                and (len(batch) + 1) * len(self._waiting[len(batch)][0]) <= REWARD_BATCH_TOKENS
            ):
                batch.append(self._waiting[len(batch)])
            del self._waiting[: len(batch)]
            try:
                scores = await asyncio.to_thread(self.forward, [ids for ids, _ in batch])
            except Exception as raised:
                scores = None
                error = raised
            for i, (_, score) in enumerate(batch):
                if score.done():  # its caller has gone
                    continue
                if scores is None:
                    score.set_exception(error)
                else:
                    score.set_result(scores[i])

    def forward(self, sequences: Sequence[np.ndarray]) -> list[float]:
        """Return the normalised scores of one batch, which is padded on the right."""
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


def normalisation(cfg: Config, mean: Any, std: Any) -> tuple[float, float]:
    """Return (mean, standard deviation) by which scores are normalised.

    Without reward.normalize_enable they are (0, 1).

    Args:
        cfg: The run's configuration.
        mean: What openrlhf's train_rm wrote to the model's config.json; None if it wrote nothing.
        std: The same.

    Raises:
        ConfigError: The model has none.
    """
    if not cfg.reward.normalize_enable:
        return 0.0, 1.0
    if not (isinstance(mean, int | float) and isinstance(std, int | float) and std):
        raise ConfigError(
            f"reward.normalize_enable needs mean and std in the config.json of {cfg.reward.model_name_or_path}, where"
            f" openrlhf's train_rm leaves them, and they are {mean} and {std}. Write them there, or leave it out."
        )
    return float(mean), float(std)
