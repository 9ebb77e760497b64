"""Checkpoint: everything training needs, in one cut at a step boundary. Directory `step_000020/`, `latest` names the last whole one.

    learner/          every rank's model, optimiser, scheduler, RNG          (Learner.save)
    controller.json   step, prompt position, flights, ledger line of the cut
    replay.pkl        accepted groups that wait to be trained: [(Flight, GroupMeta, Group)]

    take     the learner's ranks copy their state to host memory             training waits for this only
    commit   every rank says that its files are on disk; then the rest is written to the same temporary directory, flushed, renamed;
             `latest` is replaced last                                       in the background

A crash leaves either the old checkpoint or the new. `best.json` names the checkpoint of the best evaluation, which is kept besides the last ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
from pathlib import Path

from ..errors import ConfigError
from ..ports import Learner


class Checkpoints:
    """Keeps the last `max_num`, and the best."""

    def __init__(self, directory: Path, max_num: int) -> None:
        self.directory, self.max_num = directory, max_num

    async def take(self, step: int, learner: Learner) -> None:
        """The learner's share. When this returns the learner may step; its files are still being written."""
        tmp = self._temporary(step)
        shutil.rmtree(tmp, ignore_errors=True)
        (tmp / "learner").mkdir(parents=True)
        await learner.save(tmp / "learner")

    async def commit(self, step: int, state: dict, buffered: list, learner: Learner, score: float | None = None) -> Path:
        """What `take` began becomes a checkpoint. `score`: it is the best so far. Raises OSError when a disk refused; the old one stays."""
        await learner.written()
        writing = asyncio.ensure_future(asyncio.to_thread(self._commit, step, state, buffered, score))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:  # a thread goes on regardless: a checkpoint must not appear after a resume has chosen an older one
            await writing
            raise

    def discard(self, step: int) -> None:
        """What `take` began comes to nothing: its files are removed, which may give a full disk its room back."""
        shutil.rmtree(self._temporary(step), ignore_errors=True)

    def _temporary(self, step: int) -> Path:
        return self.directory / f".step_{step:06d}.tmp"

    def _commit(self, step: int, state: dict, buffered: list, score: float | None) -> Path:
        tmp, final = self._temporary(step), self.directory / f"step_{step:06d}"
        if self._named() == final.name:  # a second one of the last step: the first stays whole until `latest` names this one
            final = final.with_name(final.name + "a")
        (tmp / "controller.json").write_text(json.dumps(state))
        (tmp / "replay.pkl").write_bytes(pickle.dumps(buffered, protocol=pickle.HIGHEST_PROTOCOL))
        # The ranks have flushed their files, maybe on other machines; the directories and these two are ours.
        for path in (tmp / "controller.json", tmp / "replay.pkl", *(d for d in tmp.rglob("*") if d.is_dir()), tmp):
            _fsync(path)
        shutil.rmtree(final, ignore_errors=True)
        tmp.rename(final)
        _fsync(self.directory)
        if score is not None:
            _replace(self.directory / "best.json", json.dumps({"checkpoint": final.name, "score": score}))
        _replace(self.directory / "latest", final.name)
        self._clean(final)
        return final

    def _clean(self, final: Path) -> None:
        """Later ones belong to a lineage that a resume from an earlier one has left; so does a best one among them."""
        best, _ = self.best()
        if best and best > final.name:
            (self.directory / "best.json").unlink()
            best = None
        others = sorted(p for p in self.directory.glob("step_*") if p != final)
        later = [p for p in others if p.name > final.name]
        earlier = [p for p in others if p.name < final.name and p.name != best]
        for path in later + earlier[: -(self.max_num - 1) or None]:
            shutil.rmtree(path)

    def best(self) -> tuple[str | None, float]:
        """Name and score of the best checkpoint; (None, -inf) when none was evaluated."""
        path = self.directory / "best.json"
        if not path.exists():
            return None, float("-inf")
        row = json.loads(path.read_text())
        return row["checkpoint"], row["score"]

    async def export_best(self, learner: Learner, directory: Path) -> None:
        """The best checkpoint's weights as a model. The learner holds them afterwards: for the end of a run."""
        name, _ = self.best()
        await learner.load(self.directory / name / "learner")
        await learner.export(directory)

    def clear(self) -> None:
        """Forget all checkpoints: a new run starts here."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _named(self) -> str | None:
        pointer = self.directory / "latest"
        return pointer.read_text().strip() if pointer.exists() else None

    def latest(self) -> Path | None:
        """The last whole checkpoint, or None. Raises ConfigError when `latest` names one that is gone."""
        name = self._named()
        if name is None:
            return None
        path = self.directory / name
        if not (path / "controller.json").exists():
            raise ConfigError(
                f"{self.directory / 'latest'} names {name}, which is not there or incomplete. "
                "Write the name of a whole step_* directory into it, or start without --resume."
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
