"""Checks that the files of a model's weights are there and undamaged. Headers are read, nothing is loaded.

Without them, a rank and an engine would each report the damage in a traceback, after Ray has started.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ...config.paths import shorten
from ...errors import ConfigError
from ...machine.sizes import size

LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""Start of the text that Git leaves in place of a file if git-lfs is missing or a pull was interrupted."""
MAX_POINTER_BYTES = 1024
SAFETENSORS = "model.safetensors"
PICKLED = "pytorch_model.bin"
INDEX = ".index.json"
FORMS = (SAFETENSORS, f"{SAFETENSORS}{INDEX}", PICKLED, f"{PICKLED}{INDEX}")
"""Files in which transformers looks for weights, the first that exists: all of them, or an index of several files."""
BESIDE_WEIGHTS = (".json", ".txt", ".model", ".tiktoken", ".jinja", ".py")
"""Suffixes of files that are read beside the weights: configurations, tokenizers, chat templates, a model's own
code."""
SHARD = re.compile(r"(model|pytorch_model)-\d+-of-\d+\.(safetensors|bin)")
ZIP = b"PK"
"""Start of the archives that torch.save writes since version 1.6. Their directory is at their end."""
AGAIN = "Download the model again, or copy it from where it is whole"


def check_weights(path: Path, setting: str) -> None:
    """Raise ConfigError, one line for each file of the model directory `path` that is missing or damaged.

    Args:
        path: A Hugging Face model directory.
        setting: The setting that names it, for the message.
    """
    _refuse(path, setting, [*_pointers(path), *_weight_faults(path)])


def tensors_of(path: Path, setting: str) -> dict[str, str]:
    """Return tensor -> file of a model whose weights were checked; {} if they are no safetensors.

    An index comes first, also where the weights are in one file.

    Raises:
        ConfigError: The index is damaged.
    """
    index = path / f"{SAFETENSORS}{INDEX}"
    if index.exists():
        _refuse(path, setting, _index_faults(index))
        return _weight_map(index)
    if not (path / SAFETENSORS).exists():
        return {}
    with safe_open(path / SAFETENSORS, "numpy") as weights:
        return dict.fromkeys(weights.keys(), SAFETENSORS)


def _refuse(path: Path, setting: str, faults: Iterable[str]) -> None:
    if lines := [f"{setting} = {str(path)!r}: {fault}" for fault in faults]:
        raise ConfigError("\n".join(lines))


def _pointers(path: Path) -> Iterator[str]:
    """Yield a fault if files of the directory that are read are pointers of Git LFS."""
    weights = _weights_read(path)
    pointers = sorted(
        file.name
        for file in path.iterdir()
        if (file.name in weights or (file.suffix in BESIDE_WEIGHTS and not file.name.endswith(INDEX)))
        and file.is_file()
        and _is_pointer(file)
    )
    if pointers:
        yield (
            f"{_listed(pointers)}: a pointer of Git LFS is there in the file's place, as git-lfs was missing or cut"
            f" off. Run `git lfs install && git lfs pull` in {path}, or download the model with `hf download`."
        )


def _form_of(path: Path) -> Path | None:
    """Return the one of FORMS in which a model has its weights; None if it has none of them."""
    return next((path / name for name in FORMS if os.path.lexists(path / name)), None)


def _weights_read(path: Path) -> set[str]:
    """Return the names of the files of weights that learner and engine read, and of the index that names them.

    Both take one format where a repository has several. With safetensors the engine looks for an index first; without
    one it reads all of that suffix. It reads Mistral's consolidated files wherever they are.
    """
    form = _form_of(path)
    if form is None:
        return {file.name for file in path.iterdir() if SHARD.fullmatch(file.name)}
    if form.name.startswith(PICKLED):
        return {form.name, *_shards_of(path / f"{PICKLED}{INDEX}")}
    index = path / f"{SAFETENSORS}{INDEX}"
    shards = _shards_of(index)
    others = path.glob("consolidated*.safetensors" if shards else "*.safetensors")
    return {form.name, index.name, *shards, *(file.name for file in others)}


def _weight_map(index: Path) -> dict[str, str]:
    """Return tensor -> file of an index. Raises ValueError, which says why it is none."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8-sig"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(shorten(repr(error))) from error
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ValueError("its weight_map does not give a file for each tensor")
    if not weight_map:
        raise ValueError("it names no weights")
    return weight_map


def _shards_of(index: Path) -> set[str]:
    """Return the names of the files that an index names; an empty set if it is none."""
    try:
        return set(_weight_map(index).values())
    except ValueError:
        return set()


def _is_pointer(file: Path) -> bool:
    try:
        if file.stat().st_size > MAX_POINTER_BYTES:
            return False
        with file.open("rb") as f:
            return f.read(len(LFS_POINTER)) == LFS_POINTER
    except OSError:  # The check that reads the file reports it.
        return False


def _weight_faults(path: Path) -> Iterator[str]:
    """Yield a sentence for each weight file that is missing or damaged."""
    form = _form_of(path)
    if form is None:
        yield _no_weights(path)
    elif form.name.endswith(INDEX):
        yield from _index_faults(form)
    else:
        yield from _file_faults(form)


def _no_weights(path: Path) -> str:
    shards = sorted(file.name for file in path.iterdir() if SHARD.fullmatch(file.name))
    found = (
        f"{len(shards)} shards are there ({shards[0]}, ...), but not the index that names them" if shards else "none"
    )
    return f"the model has no weights: it needs {' or '.join(FORMS)}, and there is {found}. {AGAIN}."


def _index_faults(index: Path) -> Iterator[str]:
    if _is_pointer(index):  # already reported
        return
    try:
        weight_map = _weight_map(index)
    except ValueError as error:
        yield f"{index.name} is not an index of weights: {error}. {AGAIN}."
        return
    tensors: dict[str, set[str]] = {}
    for tensor, shard in weight_map.items():
        tensors.setdefault(shard, set()).add(tensor)
    missing = sorted(shard for shard in tensors if not (index.parent / shard).exists())
    if missing:
        yield (
            f"{len(missing)} of the {len(tensors)} shards that {index.name} names are missing: {_listed(missing)}."
            f" {AGAIN}."
        )
    for shard in sorted(tensors.keys() - set(missing)):
        yield from _file_faults(index.parent / shard, tensors[shard])


def _file_faults(file: Path, tensors: set[str] | None = None) -> Iterator[str]:
    """Yield what is wrong with one file of weights; `tensors` are those that an index says it holds."""
    try:
        there = file.stat().st_size
    except OSError as error:
        yield f"{file.name} cannot be read: {error.strerror}. {AGAIN}."
        return
    if _is_pointer(file):  # already reported
        return
    fault = _safetensors_fault(file, tensors) if file.suffix == ".safetensors" else _pickled_fault(file)
    if fault:
        yield f"{file.name} ({size(there)}) is damaged: {fault}. {AGAIN}."


def _safetensors_fault(file: Path, tensors: set[str] | None) -> str | None:
    """Return what is wrong with a safetensors file. The library compares its header with the file's length."""
    try:
        with safe_open(file, framework="numpy") as weights:
            stored = set(weights.keys())
    except (OSError, SafetensorError, ValueError) as error:
        return shorten(str(error))
    if absent := sorted((tensors or set()) - stored):
        return f"it lacks {len(absent)} tensors that the index says it holds ({absent[0]}, ...)"
    return None if stored else "it holds no tensors"


def _pickled_fault(file: Path) -> str | None:
    """Return what is wrong with a pickled file. An archive that was cut off lacks its directory; older formats are
    not checked."""
    if file.stat().st_size == 0:
        return "it is empty"
    with file.open("rb") as weights:
        archive = weights.read(len(ZIP)) == ZIP
    return "its end is missing" if archive and not zipfile.is_zipfile(file) else None


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
