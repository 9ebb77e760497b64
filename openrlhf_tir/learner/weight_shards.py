"""Weight shards: a ZeRO-3 sharded model -> model.safetensors, or model-00001-of-00003.safetensors, ... with
model.safetensors.index.json.

Where to cut follows from names and shapes, before anything is gathered; each file is then streamed as weights_file.py
does, so that no rank ever holds more than one bucket beside its shards. Files are made in a directory of their own,
read back and compared with what was sent to the disk; only when all of them are whole do they take the place of an
earlier export. A crash before that leaves the earlier one; there is never a mixture of two that loads."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import WeightsUnverified
from ..sizes import free_bytes, size
from ..weights.digest import digest_file
from .agreement import agree
from .lora import Weight
from .saved.background import write_text
from .weights_file import BUCKET_BYTES, buckets, nbytes, write_file

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
STAGE = ".export"


def file_names(n: int) -> list[str]:
    """As transformers names them."""
    return [SINGLE] if n == 1 else [f"model-{i:05d}-of-{n:05d}.safetensors" for i in range(1, n + 1)]


def index_of(parts: Sequence[Sequence[Weight]]) -> dict[str, object]:
    """The content of model.safetensors.index.json; total_size is in bytes of tensors."""
    weight_map = {w.name: name for name, part in zip(file_names(len(parts)), parts, strict=True) for w in part}
    total = sum(nbytes(w) for part in parts for w in part)
    return {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}


def write_shards(
    weights: list[Weight],
    directory: Path,
    *,
    rank: int,
    sharded: bool,
    max_bytes: int,
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Collective. Files of at most `max_bytes` of tensors each; a larger tensor has one to itself. Raises OSError on
    every rank when rank 0's disk refuses, or does not give back what it was given."""
    parts, stage = list(buckets(weights, max_bytes)), directory / STAGE
    try:
        agree(_fault_of(rank, _begin, stage, sum(map(nbytes, weights))))
        for name, part in zip(file_names(len(parts)), parts, strict=True):
            digest = write_file(part, stage / name, rank=rank, sharded=sharded, bucket_bytes=bucket_bytes)
            agree(_fault_of(rank, _compare, stage / name, digest))
        agree(_fault_of(rank, _replace, stage, directory, index_of(parts)))
    finally:
        if rank == 0:
            shutil.rmtree(stage, ignore_errors=True)


def _fault_of(rank: int, step: Callable[..., None], *args: Any) -> OSError | None:
    """What rank 0's disk refuses of a step that it makes alone."""
    try:
        if rank == 0:
            step(*args)
    except OSError as e:
        return e
    return None


def _begin(stage: Path, need: int) -> None:
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    if (free := free_bytes(stage)) < need:
        raise OSError(errno.ENOSPC, f"the export needs {size(need)}, {stage.parent} has {size(free)} free")


def _compare(path: Path, digest: str) -> None:
    """Raises OSError when the file is not what was written."""
    try:
        same = digest_file(path) == digest
    except WeightsUnverified as e:
        raise OSError(errno.EIO, str(e)) from e
    if not same:
        raise OSError(errno.EIO, f"{path.name} does not hold what was written to it. Its disk has a fault")


def _replace(stage: Path, directory: Path, index: dict[str, object]) -> None:
    """One file takes the other's place in one step. Several: no model without an index, which is written last."""
    new = sorted(p.name for p in stage.iterdir())
    if len(new) > 1:
        (directory / INDEX).unlink(missing_ok=True)
    for name in new:
        os.replace(stage / name, directory / name)
    if len(new) > 1:
        write_text(stage / INDEX, json.dumps(index, indent=2) + "\n")
        os.replace(stage / INDEX, directory / INDEX)
        new.append(INDEX)
    for old in [*directory.glob("model-*-of-*.safetensors"), directory / SINGLE, directory / INDEX]:
        if old.name not in new:
            old.unlink(missing_ok=True)
