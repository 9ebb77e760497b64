"""A learner for the benchmark: one torch process, bf16 or fp32 weights, fp32 master copy, AdamW, policy gradient.

It is what a push needs of a learner (publish, score, version) and takes real optimizer steps, in 3 GB instead of the
trainer's 7. Log-probs are computed as the trainer computes them: a forward pass in the parameters' precision,
log-softmax in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


class PlainLearner:
    """Satisfies `ports.Learner` as far as pushes go."""

    def __init__(self, model: str, dtype: str, lr: float) -> None:
        import torch
        import transformers

        self.torch = torch
        precision = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=precision, attn_implementation="sdpa"
        )
        self.model.config.use_cache = False
        self.version = 0
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.master = [p.detach().float().clone().requires_grad_(True) for p in self.parameters]
        self.optimizer = torch.optim.AdamW(self.master, lr=lr, betas=(0.9, 0.95), weight_decay=0.0, foreach=False)
        self.directory = Path(model)

    def tensors(self) -> dict[str, Any]:
        """Return the weights under their checkpoint names; a tied head has none of its own."""
        tied = self.model.config.tie_word_embeddings
        return {k: v for k, v in self.model.state_dict().items() if not (tied and k == "lm_head.weight")}

    async def publish(self, path: Path) -> str:
        from safetensors.torch import save_file

        from openrlhf_tir.weights.digest import tensors_digest

        tensors = self.tensors()
        save_file(tensors, path)
        return tensors_digest(tensors.items())

    async def score(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the log-prob of every token but the first of each sequence, [T-1] float32. One pass, as the trainer's.

        The sequences are padded at their ends, which no token before sees.
        """
        torch = self.torch
        rows = torch.nn.utils.rnn.pad_sequence([torch.tensor(list(ids)) for ids in sequences], batch_first=True)
        targets = rows[:, 1:]
        is_token = torch.arange(targets.shape[1]) < torch.tensor([[len(ids) - 1] for ids in sequences])
        with torch.no_grad():
            hidden = self.model.get_decoder()(rows).last_hidden_state[:, :-1]
            logits = self.model.get_output_embeddings()(hidden[is_token]).float()
            logprobs = logits.gather(1, targets[is_token][:, None])[:, 0] - logits.logsumexp(-1)
        return [part.numpy() for part in logprobs.split([len(ids) - 1 for ids in sequences])]

    def _logprobs(self, ids: Sequence[int]) -> Any:
        row = self.torch.tensor([list(ids)])
        logits = self.model(row).logits[0, :-1].float()
        return logits.log_softmax(-1).gather(1, row[0, 1:, None])[:, 0]

    def step(self, rows: Sequence[tuple[list[int], int, float]]) -> float:
        """Take one policy-gradient step on (token ids, length of the prompt, advantage); return the gradient's norm."""
        for ids, prompt, advantage in rows:
            logprobs = self._logprobs(ids)[prompt - 1 :]
            (-advantage * logprobs.mean() / len(rows)).backward()
        squares = 0.0
        for parameter, master in zip(self.parameters, self.master, strict=True):
            master.grad = parameter.grad.float()
            parameter.grad = None
            squares += float(master.grad.square().sum())
        norm = squares**0.5
        for master in self.master:
            master.grad.mul_(min(1.0, 1.0 / max(norm, 1e-12)))
        self.optimizer.step()
        with self.torch.no_grad():
            for parameter, master in zip(self.parameters, self.master, strict=True):
                parameter.copy_(master)
                master.grad = None
        self.version += 1
        return norm
