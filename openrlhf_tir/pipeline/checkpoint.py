"""Checkpoint: everything training needs, in one cut at a step boundary. Directory `step_000020/`, `latest` names the last whole one.

    learner/          every rank's model, optimiser, scheduler, RNG          (Learner.save)
    controller.json   step, prompt position, flights, ledger line of the cut
    replay.pkl        accepted groups that wait to be trained: [(Flight, GroupMeta, Group)]

Written to a temporary directory, flushed, renamed; `latest` is replaced last. A crash leaves either the old checkpoint or the new.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
from pathlib import Path

from ..errors import ConfigError
from ..learner.learner import Learner


class Checkpoints:
    """Keeps the last `max_num`."""

    def __init__(self, directory: Path, max_num: int) -> None:
        self.directory, self.max_num = directory, max_num

    async def save(self, step: int, state: dict, buffered: list, learner: Learner) -> Path:
        """`state` and `buffered` were taken at the cut; the learner must not step until this returns."""
        final = self.directory / f"step_{step:06d}"
        tmp = self.directory / f".{final.name}.tmp"
        shutil.rmtree(tmp, ignore_errors=True)
        (tmp / "learner").mkdir(parents=True)
        await learner.save(tmp / "learner")
        await asyncio.to_thread(self._commit, tmp, final, state, buffered)
        return final

    def _commit(self, tmp: Path, final: Path, state: dict, buffered: list) -> None:
        (tmp / "controller.json").write_text(json.dumps(state))
        (tmp / "replay.pkl").write_bytes(pickle.dumps(buffered, protocol=pickle.HIGHEST_PROTOCOL))
        for path in tmp.rglob("*"):
            if path.is_file():
                _fsync(path)
        shutil.rmtree(final, ignore_errors=True)
        tmp.rename(final)
        _replace(self.directory / "latest", final.name)
        # Later ones belong to a lineage that a resume from an earlier one has left.
        others = sorted(p for p in self.directory.glob("step_*") if p != final)
        later = [p for p in others if p.name > final.name]
        for path in later + [p for p in others if p not in later][: -(self.max_num - 1) or None]:
            shutil.rmtree(path)

    def clear(self) -> None:
        """Forget all checkpoints: a new run starts here."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def latest(self) -> Path | None:
        """The last whole checkpoint, or None. Raises ConfigError when `latest` names one that is gone."""
        pointer = self.directory / "latest"
        if not pointer.exists():
            return None
        path = self.directory / pointer.read_text().strip()
        if not (path / "controller.json").exists():
            raise ConfigError(
                f"{pointer} names {path.name}, which is not there or incomplete. Write the name of a whole step_* directory into it, or start without --resume."
            )
        return path

    @staticmethod
    def read(path: Path) -> tuple[dict, list]:
        return json.loads((path / "controller.json").read_text()), pickle.loads((path / "replay.pkl").read_bytes())


def _replace(path: Path, text: str) -> None:
    tmp = path.with_suffix(".tmp")
    tmp.write_text(text)
    _fsync(tmp)
    tmp.rename(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
