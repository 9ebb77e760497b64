"""Export the learner's weights as a model that has its name only when all of it is there."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from ...ports import Exports
from ...waiting.daemon_threads import in_daemon_thread
from .manifest import flush


def stage_of(directory: Path) -> Path:
    """Return where an export to `directory` is made. The next export removes what a killed process left there; of
    ckpt.save_hf's exports, `Checkpoints.tidy` does."""
    return directory.with_name(f".{directory.name}.tmp")


async def export(
    learner: Exports, directory: Path, complete: Callable[[Path], object] = lambda directory: None
) -> None:
    """Export the learner's weights to `directory`.

    The export is made beside it and renamed, after what goes with it under a longer name: the average of the weights,
    the critic. A directory that exists is written in place: it may hold files of the user. Its weights are replaced
    when all of them are there, its other files one by one.

    Args:
        learner: The learner, or a checkpoint's policy.
        directory: Where the model appears.
        complete: Adds to the export what the learner does not know of; by default nothing.

    Raises:
        OSError: The disk refused. Nothing new has appeared.
    """
    if os.path.lexists(directory):
        await learner.export(directory)
        await in_daemon_thread(complete, directory)
        return
    # A cancelled export is left where it is, because the ranks, or the thread, may still be writing it.
    stage = stage_of(directory)
    await asyncio.to_thread(shutil.rmtree, stage, ignore_errors=True)
    try:
        stage.mkdir(parents=True)
        await learner.export(stage / directory.name)
        await in_daemon_thread(_finish, stage, directory, complete)
    except OSError:
        await asyncio.to_thread(shutil.rmtree, stage, ignore_errors=True)
        raise


def _finish(stage: Path, directory: Path, complete: Callable[[Path], object]) -> None:
    complete(stage / directory.name)
    for path in [*stage.rglob("*"), stage]:
        flush(path)
    # The model comes last: its name is the shortest, and where it is there all is there.
    for made in sorted(stage.iterdir(), key=lambda path: len(path.name), reverse=True):
        final = directory.with_name(made.name)
        if final.exists():
            final.rename(stage / f"{made.name}.old")
        made.rename(final)
    flush(directory.parent)
    shutil.rmtree(stage, ignore_errors=True)
