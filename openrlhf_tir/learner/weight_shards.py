"""Write the weights of a ZeRO-3 sharded model into files that plain transformers loads.

The result is model.safetensors, or model-00001-of-00003.safetensors, ... with model.safetensors.index.json.

Names and shapes decide where to cut, before anything is gathered. Each file is then streamed as in weights_file.py, so
no rank holds more than one bucket beside its shards. The files are written into a directory of their own, read back and
compared with what was written. Only when all of them are right do they replace an earlier export. A crash before that
leaves the earlier export, and no mixture of two exports ever loads.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

from huggingface_hub import split_state_dict_into_shards_factory

from ..errors import WeightsUnverified
from ..machine.sizes import free_bytes, size
from ..pushes import BUCKET_BYTES
from ..weights.digest import digest_file
from .agreement import only_on_rank_0
from .lora import Weight
from .saved.background import write_text
from .weights_file import nbytes, write_file

MAX_SHARD_BYTES = 5 * 10**9
"""Bytes of the tensors in one file of an export. transformers' `save_pretrained` had this default for years."""
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
STAGE = ".export"
"""Name of the directory in which the files are written before they are moved to their place."""


def write_shards(
    weights: list[Weight],
    directory: Path,
    *,
    rank: int,
    max_bytes: int = MAX_SHARD_BYTES,
    bucket_bytes: int = BUCKET_BYTES,
) -> None:
    """Write the weights into `directory`, in files of at most `max_bytes`. Collective.

    Args:
        weights: The weights, in the order of the files.
        directory: Where the files appear.
        rank: This rank; rank 0 writes.
        max_bytes: Most bytes of tensors in a file. A tensor that is larger has a file to itself.
        bucket_bytes: Most bytes that are gathered at the same time.

    Raises:
        OSError: On every rank if rank 0's disk is full or fails, or does not return what was written.
    """
    by_name = {weight.name: weight for weight in weights}
    split = split_state_dict_into_shards_factory(
        by_name, get_storage_size=nbytes, filename_pattern="model{suffix}.safetensors", max_shard_size=max_bytes
    )
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
    stage = directory / STAGE
    try:
        only_on_rank_0(rank, _begin, stage, sum(map(nbytes, weights)))
        for file_name, names in split.filename_to_tensors.items():
            part = [by_name[name] for name in names]
            digest = write_file(part, stage / file_name, rank=rank, bucket_bytes=bucket_bytes)
            only_on_rank_0(rank, _compare, stage / file_name, digest)
        only_on_rank_0(rank, _replace, stage, directory, index)
    finally:
        if rank == 0:
            shutil.rmtree(stage, ignore_errors=True)


def _begin(stage: Path, need: int) -> None:
    """Create an empty stage. Raises OSError if its disk has less than `need` bytes free."""
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    if (free := free_bytes(stage)) < need:
        raise OSError(errno.ENOSPC, f"the export needs {size(need)}, {stage.parent} has {size(free)} free")


def _compare(path: Path, digest: str) -> None:
    """Read a file back. Raises OSError if it is not what was written."""
    try:
        same = digest_file(path) == digest
    except WeightsUnverified as error:
        raise OSError(errno.EIO, str(error)) from error
    if not same:
        raise OSError(errno.EIO, f"{path.name} does not contain what was written to it. Its disk is faulty")


def _replace(stage: Path, directory: Path, index: dict[str, object]) -> None:
    """Move the files to their place and delete those of an earlier export.

    A single file replaces the earlier one atomically. Several files are useless without their index, so the old index
    is deleted first and the new one is written last.
    """
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
