"""Checks of the run directory: it takes files, holds no other run, and its disk has room for checkpoints."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Collection
from functools import cache
from pathlib import Path

from ...config import Config
from ...errors import ConfigError, Unavailable
from ...machine.sizes import free_above, size
from ...memory.model_size import checkpoint_bytes
from ...pipeline.checkpoints import lineage
from ...pipeline.checkpoints.checkpoint import GROWTH

RAY_PACKAGE = f"{os.sep}_ray_pkg_"
"""What is in the path of the directory in which `ray job submit --working-dir` runs a command."""


def check_writable(cfg: Config) -> None:
    """Check that the directories of the run can be made: the first existing directory above each takes files.

    Raises:
        ConfigError: A directory cannot be made or written, or Ray would delete it.
    """
    if RAY_PACKAGE in str(cfg.run_dir.absolute()):
        raise ConfigError(
            f"run_dir = {cfg.run_dir} is in Ray's copy of the job's working directory, which Ray deletes with all that"
            " the run would write. Give --run-dir an absolute path that all nodes share."
        )
    file_system_fault = cache(_file_system_fault)  # several of them are mostly below one directory
    for setting, path, operations in (
        ("run_dir", cfg.run_dir, ("append", "replace")),
        ("ckpt.path", cfg.run_dir / cfg.ckpt.path, ("replace", "rename")),
        ("ckpt.output_dir", cfg.run_dir / cfg.ckpt.output_dir, ("replace", "rename")),
        # Event files may be on a mount that cannot hold a run.
        *(
            [("logger.tensorboard_dir", cfg.run_dir / cfg.logger.tensorboard_dir, ())]
            if cfg.logger.tensorboard_dir
            else []
        ),
    ):
        try:
            existing = next(p for p in (path, *path.parents) if os.path.lexists(p))
            is_dir = existing.is_dir()
            if any(len(os.fsencode(part)) > 255 for part in path.parts):
                raise ConfigError(
                    f"{setting} = {path} has a name of more than 255 bytes, which no file system takes. Shorten it."
                )
        except OSError as e:
            raise ConfigError(f"{setting} = {path} cannot be used: {e.strerror or e}. Choose another.") from None
        if not is_dir:
            raise ConfigError(f"{setting} = {path} cannot be made: {existing} is not a directory. Choose another path.")
        try:
            # Permission bits do not hold for root, and say nothing about a read-only or full disk.
            tempfile.TemporaryFile(dir=existing).close()
        except OSError as e:
            raise ConfigError(
                f"{setting} = {path} cannot be written: {existing} takes no new files ({e.strerror}). Choose another"
                " path."
            ) from None
        if operations and (fault := file_system_fault(existing, operations)):
            raise ConfigError(
                f"{setting} = {path} cannot be used: the file system of {existing} does not {fault}. Mounts of object"
                " stores often do not, and a run needs it for its ledger and its checkpoints. Choose another path."
            )


def _file_system_fault(directory: Path, operations: Collection[str]) -> str | None:
    """Return what the file system of a directory refuses of what a run does in it, as a verb with its object; else
    None.

    A full disk refuses nothing for good: a run that is resumed may make room.

    Args:
        directory: The directory.
        operations: What the run does there, beside making and removing directories: "append" to files, "replace" files,
            "rename" directories.
    """
    action = "take new directories"
    try:
        with tempfile.TemporaryDirectory(prefix=".tir-probe-", dir=directory) as probe:
            made = Path(probe, "made")
            made.mkdir()
            (made / "file").touch()
            if "append" in operations:
                action = "let files be appended to"
                os.close(os.open(made / "file", os.O_WRONLY | os.O_APPEND))
            if "replace" in operations:
                action = "replace files"
                (made / "new").touch()
                os.replace(made / "new", made / "file")
            if "rename" in operations:
                action = "rename directories"
                os.rename(made, made.with_name("renamed"))
            action = "remove directories"
    except OSError as e:
        return None if e.errno in (errno.ENOSPC, errno.EDQUOT) else f"{action} ({e.strerror or e})"
    return None


def check_run_dir(cfg: Config, *, made: bool = True) -> list[str]:
    """Check that a new run does not start on top of an earlier one's checkpoints, or that a resumed run can continue.

    Args:
        cfg: The configuration.
        made: Whether the model and the data that the configuration names exist already.

    Returns:
        Facts to print.
    """
    lineage.check_unused(cfg)
    if cfg.train.resume:
        path, facts = lineage.resumable(cfg, lineage.checkpoints_of(cfg), made=made)
        return [*facts, *([f"resuming from {path.name}"] if path else [])]
    return _checkpoint_room(cfg) if cfg.ckpt.max_num else []


def _checkpoint_room(cfg: Config) -> list[str]:
    """Return a fact if the disk has no room for ckpt.max_num checkpoints and the one that is being written.

    Raises:
        Unavailable: It has no room for the first one, and the new run deletes none of an earlier run.
    """
    checkpoint = checkpoint_bytes(cfg)
    directory = cfg.run_dir / cfg.ckpt.path
    needed = checkpoint * (cfg.ckpt.max_num + 1)
    free = free_above(directory)
    if needed <= free:
        return []
    # 0: some file systems do not tell.
    if 0 < free < int(checkpoint * GROWTH) and not lineage.checkpoints_of(cfg).exist:
        raise Unavailable(
            f"A checkpoint takes about {size(checkpoint)}, and the disk of {directory} has {size(free)} free: the run"
            " could save nothing. Make room, choose another --run-dir or ckpt.path, or set ckpt.max_num to 0, with"
            " which there are no checkpoints."
        )
    return [
        f"checkpoints take about {size(checkpoint)} each, {size(needed)} with ckpt.max_num = {cfg.ckpt.max_num} and the"
        f" one being written; {directory} has {size(free)} free."
        " A checkpoint that does not fit is left out, and training continues without it"
    ]
