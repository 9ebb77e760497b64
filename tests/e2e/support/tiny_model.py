"""A tiny Qwen2 with a tokenizer, made on the spot: what the tests of the real engine load. Nothing is downloaded.

167k parameters, vocabulary 99: PAD, EOS, newline, the printable ASCII characters, and one token of two characters
("ab"), so that a stop string can end inside a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

PAD, EOS = 0, 1
WORD = "ab"
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}<eos>{% endfor %}{% if"
    " add_generation_prompt %}assistant:{% endif %}"
)


def make_tokenizer():
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    specials = ["<pad>", "<eos>"]
    vocab = {t: i for i, t in enumerate([*specials, "\n", *map(chr, range(32, 127)), WORD])}
    tokenizer = Tokenizer(models.BPE(vocab, merges=[("a", "b")]))
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in specials])
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", chat_template=CHAT_TEMPLATE
    )


def make_model(seed: int = 0, *, scale: float = 1.0):
    """`scale` widens the initialisation: log-probs of different seeds then differ by whole nats."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=99,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        rope_theta=1e4,
        tie_word_embeddings=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        bos_token_id=None,
        initializer_range=0.02 * scale,
    )
    return Qwen2ForCausalLM(config).float().eval()


def save_tiny(directory: Path, seed: int = 0, *, scale: float = 8.0) -> Path:
    make_model(seed, scale=scale).save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


class HfLearner:
    """A Learner as far as pushes go: plain transformers weights that a test replaces at will."""

    def __init__(self, seed: int, scale: float = 8.0) -> None:
        self.scale, self.version, self.leave_out = scale, 0, None
        self.reset(seed)

    def reset(self, seed: int) -> None:
        self.model = make_model(seed, scale=self.scale)

    async def publish(self, path: Path) -> str:
        from safetensors.torch import save_file

        from openrlhf_tir.weights.digest import tensors_digest

        tensors = self._weights()
        save_file(tensors, path)
        self.last = {name: t.clone() for name, t in tensors.items()}
        return tensors_digest(tensors.items())

    async def publish_changes(self, path: Path, base_version: int):
        import torch

        from openrlhf_tir.pushes import DeltaDigest
        from openrlhf_tir.weights.delta import take_over
        from openrlhf_tir.weights.delta_file import DeltaWriter
        from openrlhf_tir.weights.digest import tensors_digest

        tensors = self._weights()
        with path.open("wb") as out:
            writer = DeltaWriter(out, tensors_digest(self.last.items()), base_version)
            for name, new in tensors.items():
                before, after = (t.flatten().view(torch.int32).numpy() for t in (self.last[name], new))
                if piece := take_over(before.copy(), after):
                    writer.add(name, [(0, piece)])
            changes: DeltaDigest = writer.end(tensors_digest(tensors.items()))
        self.last = {name: t.clone() for name, t in tensors.items()}
        return changes

    def nudge(self, names: Sequence[str], by: float) -> None:
        """Every tenth weight of the tensors whose names end so."""
        for name, tensor in self._weights().items():
            if name.endswith(tuple(names)):
                tensor.flatten()[::10] += by

    def _weights(self):
        skip = {"lm_head.weight", self.leave_out}
        return {name: t for name, t in self.model.state_dict().items() if name not in skip}

    def buckets(self, most_bytes: int):
        """Return the weights in buckets as a push makes them: their Items, and [(name, tensor), ...] of each."""
        from openrlhf_tir.pushes import Item
        from openrlhf_tir.weights.broadcast.stream import TORCH

        names = {dtype: name for name, dtype in TORCH.items()}
        parts, size = [[]], 0
        for name, tensor in self._weights().items():
            if parts[-1] and size + tensor.nbytes > most_bytes:
                parts.append([])
                size = 0
            parts[-1].append((name, tensor))
            size += tensor.nbytes
        return [[Item(name, names[t.dtype], tuple(t.shape)) for name, t in part] for part in parts], parts

    async def score(self, sequences: list[list[int]]) -> list[np.ndarray]:
        return [self.logprobs(ids[:1], ids[1:]) for ids in sequences]

    def logprobs_after(self, other: HfLearner, prompt, response, read: int) -> np.ndarray:
        """[T - read] log-probs of the response from its token `read` on, where `other` has read the prompt and the
        `read` - 1 tokens before, whose keys and values stay."""
        import torch

        ids = torch.tensor([[*map(int, prompt), *map(int, response)]])
        cut = len(prompt) + read - 1
        with torch.no_grad():
            kept = other.model(ids[:, :cut], use_cache=True).past_key_values
            logprobs_TV = self.model(ids[:, cut:], past_key_values=kept).logits[0, :-1].log_softmax(-1)
        return logprobs_TV.gather(1, ids[0, cut + 1 :, None])[:, 0].numpy()

    def logprobs(self, prompt, response) -> np.ndarray:
        """[T] log-probs of the response's tokens."""
        import torch

        ids = torch.tensor([[*map(int, prompt), *map(int, response)]])
        with torch.no_grad():
            logprobs_TV = self.model(ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        return logprobs_TV.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()

    def next_logits(self, prompt) -> np.ndarray:
        import torch

        with torch.no_grad():
            return self.model(torch.tensor([list(prompt)])).logits[0, -1].numpy()
