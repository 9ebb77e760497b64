"""Checkpoint: everything training needs, in one cut at a step boundary. Directory `step_000020/`, `latest` names the
last whole one.

    learner/             every rank's model, optimiser, scheduler, RNG          (Learner.save)
    controller.json      step, prompt position, flights, the ledger's mark, what the run is made of, the best evaluation
                         so far
    replay.json          accepted groups that wait to be trained: [(Flight, GroupMeta, Group)]; arrays in
                         replay.safetensors
    manifest.json        every file with its size and digest; written last

    take     the learner's ranks copy their state to host memory             training waits for this only
    commit   every rank says that its files are on disk; then the rest is written to the same temporary directory,
             flushed, renamed;
             `latest` is replaced last                                       in the background
    choose   the checkpoint to resume from, verified before anything of it is loaded
    accept   a resume goes on from there: `latest` and `best.json` say so, what crashed runs left is removed

A crash leaves either the old checkpoint or the new; a disk that is full leaves the old one, and CheckpointFailed says
what was missing. `best.json` names the checkpoint of the best evaluation, which is kept besides the last ones.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import CheckpointDamaged, CheckpointFailed, ConfigError
from ...ports import Learner, Saves
from ...replay.lines import Mark
from ...replay.lines import compare as compare_ledger
from ...sizes import free_bytes, room, size
from . import manifest, stored
from .manifest import flush as _fsync
from .stored import Row

log = logging.getLogger(__name__)

STATE, LATEST, BEST = "controller.json", "latest", "best.json"
NAME = re.compile(r"step_\d{6,}a?")
EXPORT = re.compile(r"step_\d{6,}_hf")
TEMPORARY = (".step_*.tmp", *(Path(name).with_suffix(".tmp").name for name in (LATEST, BEST)))
SLACK = 1.05
"""A checkpoint may grow by so much over the one before, by groups that wait in replay."""
NEWEST_WHOLE = "newest_whole"


class Checkpoints:
    """Keeps the last `max_num`, as far as all together take no more than `max_bytes`, and in any case the last and the
    best.

    `ledger`: the run's, compared with a checkpoint's mark. `facts`: what the run is made of (lineage.facts_of), kept in
    every checkpoint. `expected_bytes`: of a checkpoint, as long as none was written. `free`: bytes that a directory's
    disk has left."""

    def __init__(
        self,
        directory: Path,
        max_num: int,
        *,
        ledger: Path | None = None,
        facts: dict[str, Any] | None = None,
        max_bytes: float = math.inf,
        expected_bytes: int = 0,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        self.directory, self.max_num, self.ledger, self.facts = directory, max_num, ledger, facts
        self.max_bytes, self._bytes, self._free = max_bytes, expected_bytes, free

    def __str__(self) -> str:
        """The names, for a person."""
        return ", ".join([*(p.name for p in self._directories()), *self.exports]) or "none that has a name"

    # ---- writing ----

    async def take(self, step: int, learner: Saves) -> None:
        """The learner's share. When this returns the learner may step; its files are still being written. Raises
        CheckpointFailed."""
        tmp = self._temporary(step)
        try:
            shutil.rmtree(tmp, ignore_errors=True)
            (tmp / "learner").mkdir(parents=True)
            self._check_room(tmp)
            await learner.save(tmp / "learner")
        except CheckpointFailed:
            self.discard(step)
            raise
        except OSError as e:
            raise self._failed(step, e) from e

    async def commit(
        self, step: int, state: dict[str, Any], buffered: list[Row], learner: Saves, score: float | None = None
    ) -> Path:
        """What `take` began becomes a checkpoint. `score`: it is the best so far. Raises CheckpointFailed when a disk
        refused; the old ones stay."""
        try:
            written = await learner.written()
            writing = asyncio.ensure_future(
                asyncio.to_thread(self._commit, step, state, buffered, score, written or {})
            )
            try:
                return await asyncio.shield(writing)
            except asyncio.CancelledError:
                # a thread goes on regardless: a checkpoint must not appear after a resume has chosen an older one
                await writing
                raise
        except CheckpointFailed:
            self.discard(step)
            raise
        except OSError as e:
            raise self._failed(step, e) from e

    def discard(self, step: int) -> None:
        """What `take` began comes to nothing: its files are removed, which may give a full disk its room back."""
        shutil.rmtree(self._temporary(step), ignore_errors=True)

    def _temporary(self, step: int) -> Path:
        return self.directory / f".step_{step:06d}.tmp"

    def _check_room(self, tmp: Path) -> None:
        need, free = int(self._bytes * SLACK), self._free(tmp)
        if free < need:
            raise CheckpointFailed(
                f"{tmp.name[1:-4]} is not written: it needs {size(need)}, {self.directory} has {size(free)} free."
                f" {self._remedy()}"
            )

    def _failed(self, step: int, fault: OSError) -> CheckpointFailed:
        """Remove what a failed checkpoint has left."""
        tmp = self._temporary(step)
        there = sum(p.stat().st_size for p in tmp.rglob("*") if p.is_file()) if tmp.exists() else 0
        self.discard(step)
        need = max(int(self._bytes * SLACK), there)
        here = room(self.directory, self._free)
        return CheckpointFailed(
            f"step_{step:06d} was not written: {fault}. It needs {size(need)} or more in {self.directory}, {here}."
            f" {self._remedy()}"
        )

    def _remedy(self) -> str:
        kept = [p.name for p in self._directories()]
        stays = f"Kept: {', '.join(kept)}." if kept else "There is no earlier one."
        return f"{stays} Make room, or keep fewer with ckpt.max_num (now {self.max_num})."

    def _commit(
        self,
        step: int,
        state: dict[str, Any],
        buffered: list[Row],
        score: float | None,
        written: Mapping[str, tuple[int, str]],
    ) -> Path:
        tmp, final = self._temporary(step), self.directory / f"step_{step:06d}"
        named = self._named()
        if named == final.name:  # a second one of the last step: the first stays whole until `latest` names this one
            final = final.with_name(final.name + "a")
        best, best_score = self.best()
        if best and best > final.name:
            best = None
        record = (final.name, score) if score is not None else (best, best_score)
        state = {
            **state,
            "facts": self.facts,
            "best": {"checkpoint": record[0], "score": record[1]} if record[0] else None,
        }
        (tmp / STATE).write_text(json.dumps(state))
        stored.write(tmp, buffered)
        run = state["ledger"]["run"] if state.get("ledger") else None
        self._bytes = manifest.write(
            tmp, final.name, {"step": step, "world_size": state.get("world_size"), "run": run}, written
        )
        # The ranks have flushed what they wrote, maybe on other machines;
        # the directories are ours, and what DeepSpeed copies beside.
        for path in [p for p in tmp.rglob("*") if str(p) not in written] + [tmp]:
            _fsync(path)
        shutil.rmtree(final, ignore_errors=True)
        tmp.rename(final)
        try:
            _fsync(self.directory)
            if score is not None:
                _replace(self.directory / BEST, json.dumps(state["best"]))
            _replace(self.directory / LATEST, final.name)
        except OSError:
            if self._named() != final.name:
                shutil.rmtree(final, ignore_errors=True)
                if score is not None:
                    self._best_again(best, best_score)
            raise
        try:
            self._clean(final)
        except OSError as e:  # `latest` names this one: it is whole, whatever older ones are left
            log.warning(
                "%s: checkpoints that are not needed any more could not be removed (%s). The next one tries again.",
                self.directory,
                e,
            )
        return final

    def _best_again(self, name: str | None, score: float) -> None:
        """The one before: what `best.json` named meanwhile is gone. If the disk refuses this too, `export_best` says
        that it is not there."""
        with suppress(OSError):
            if name:
                _replace(self.directory / BEST, json.dumps({"checkpoint": name, "score": score}))
            else:
                _remove(self.directory / BEST)

    def _clean(self, final: Path) -> None:
        """Later ones belong to a lineage that a resume from an earlier one has left; so does a best one among them."""
        best, _ = self.best()
        if best and best > final.name:
            (self.directory / BEST).unlink()
            best = None
        others = [p for p in self._directories() if p != final]
        later = [p for p in others if p.name > final.name]
        earlier = [p for p in others if p.name < final.name and p.name != best]
        number = max(0, len(earlier) - (self.max_num - 1))
        staying = [final, *earlier[number:], *(p for p in others if p.name == best)]
        taken = sum(map(_taken, staying)) if self.max_bytes < math.inf else 0
        while taken > self.max_bytes and number < len(earlier):
            taken -= _taken(earlier[number])
            number += 1
        for path in later + earlier[:number]:
            shutil.rmtree(path, ignore_errors=True)

    # ---- the best ----

    def best(self) -> tuple[str | None, float]:
        """Name and score of the best checkpoint; (None, -inf) when none was evaluated."""
        return self._best() or (None, float("-inf"))

    def _best(self) -> tuple[str, float] | None:
        try:
            row = json.loads((self.directory / BEST).read_text())
            name, score = row["checkpoint"], float(row["score"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as e:
            log.warning(
                "%s cannot be read (%s: %s): no checkpoint counts as the best.",
                self.directory / BEST,
                type(e).__name__,
                e,
            )
            return None
        return (name, score) if isinstance(name, str) and NAME.fullmatch(name) and math.isfinite(score) else None

    async def export_best(self, learner: Learner, directory: Path) -> None:
        """The best checkpoint's weights as a model. The learner holds them afterwards: for the end of a run. Raises
        CheckpointDamaged."""
        name, _ = self.best()
        path = self.directory / str(name)
        await asyncio.to_thread(manifest.verify, path)
        await learner.load(path / "learner")
        await learner.export(directory)

    # ---- resuming ----

    def clear(self) -> None:
        """Forget all checkpoints and their exports: a new run starts here. Whatever else is in the directory stays:
        ckpt.path may name one that holds more."""
        exports = [p for p in self.directory.glob("step_*_hf") if EXPORT.fullmatch(p.name)]
        for path in [*self._directories(), *exports, self.directory / LATEST, self.directory / BEST]:
            _remove(path)
        self.tidy()
        with suppress(OSError):  # it holds more, or is not there
            self.directory.rmdir()

    @property
    def any(self) -> bool:
        """Whether something of a checkpoint is here, whole or not."""
        return bool(self._directories()) or os.path.lexists(self.directory / LATEST)

    def export_of(self, step: int) -> Path:
        """Where the model of this step goes (ckpt.save_hf)."""
        return self.directory / f"step_{step:06d}_hf"

    @property
    def exports(self) -> list[str]:
        """The names of the models that ckpt.save_hf left here."""
        return sorted(p.name for p in self.directory.glob("step_*_hf"))

    def latest(self) -> Path | None:
        """The checkpoint that `latest` names, or None. Not verified: `read` does. Raises CheckpointDamaged."""
        return self.directory / self._pointed() if self.any else None

    def choose(self, wanted: str = "latest") -> Path | None:
        """A verified checkpoint: the last one, one by name, or (newest_whole) the last that is whole. None when there
        is none at all.

        Raises CheckpointDamaged with what differs and which one is whole; ConfigError for a name that is not here.
        """
        if not self.any:
            return None
        by_name = wanted not in ("latest", NEWEST_WHOLE)
        names = [p.name for p in self._directories()]
        if by_name and wanted not in names:
            raise ConfigError(
                f"train.resume_from = {wanted!r} is no checkpoint in {self.directory}."
                f" Known: {', '.join(names) or 'none'}."
            )
        try:
            return self._verified(wanted if by_name else self._pointed())
        except CheckpointDamaged as e:
            damage = str(e)
        if wanted == NEWEST_WHOLE and (path := self._newest_whole()):
            return path
        whole = self._newest_whole()
        offer = (
            f"{whole.name} is whole: go on from there with --train.resume_from {whole.name}, or always from what is"
            f" whole with --train.resume_from {NEWEST_WHOLE}. What came after it is trained again."
            if whole
            else (
                "No other checkpoint is whole. Put the files back, or start anew with"
                " --train.overwrite on the command line instead of --resume."
            )
        )
        if self.ledger and (path := self._whole_but_for_the_ledger(wanted)):
            offer += (
                f" {path.name} itself is whole: --train.new_ledger goes on from it with a new ledger, whose audit"
                " covers only what comes after."
            )
        raise CheckpointDamaged(f"{damage} Nothing was loaded. {offer}")

    def _whole_but_for_the_ledger(self, wanted: str) -> Path | None:
        try:
            return Checkpoints(self.directory, self.max_num).choose(wanted)
        except CheckpointDamaged:
            return None

    def _newest_whole(self) -> Path | None:
        """What `latest` names if that can be read and is whole, else the newest before it; without it the newest."""
        named = self._named()
        names = [p.name for p in self._directories()]
        for name in reversed([n for n in names if named not in names or n <= named]):
            try:
                return self._verified(name)
            except CheckpointDamaged:
                continue
        return None

    def _verified(self, name: str) -> Path:
        """Its files, and the ledger that it stands on. Raises CheckpointDamaged."""
        path = self.directory / name
        manifest.verify(path)
        if self.ledger and (mark := self.state(path).get("ledger")):
            compare_ledger(self.ledger, Mark.of_json(mark))
        return path

    def accept(self, path: Path) -> list[str]:
        """A resume goes on from `path`. Returns what was put right, in sentences."""
        said = self.tidy()
        named = self._named()
        if named != path.name:
            later = [p.name for p in self._directories() if p.name > path.name]
            left = f" {', '.join(later)} will be removed with the next checkpoint." if later else ""
            _replace(self.directory / LATEST, path.name)
            said.append(
                f"resuming from {path.name}; {LATEST} {f'named {named}' if named else 'could not be read'}, and names"
                f" {path.name} now.{left}"
            )
        elif later := [p.name for p in self._directories() if p.name > path.name]:
            said.append(
                f"resuming from {path.name}, which {LATEST} names;"
                f" {', '.join(later)} will be removed with the next checkpoint"
            )
        record = self.state(path)["best"]
        best = (record["checkpoint"], record["score"]) if record else None
        if best and not (self.directory / best[0]).is_dir():
            said.append(f"the best checkpoint so far, {best[0]}, is gone: the best counts from here on")
            best = None
        if self._best() != best or (best is None and os.path.lexists(self.directory / BEST)):
            _remove(self.directory / BEST)
            if best:
                _replace(self.directory / BEST, json.dumps({"checkpoint": best[0], "score": best[1]}))
            said.append(f"{BEST} was not that of {path.name}; it {f'names {best[0]} again' if best else 'was removed'}")
        self._bytes = max(self._bytes, manifest.size(path))
        return said

    def tidy(self) -> list[str]:
        """Remove what a run that died in the middle of a checkpoint left."""
        left = sorted(path for pattern in TEMPORARY for path in self.directory.glob(pattern))
        for path in left:
            _remove(path)
        return (
            [f"removed {', '.join(p.name for p in left)}: checkpoints that an earlier process did not finish"]
            if left
            else []
        )

    def _directories(self) -> list[Path]:
        """The directories of all checkpoints, the oldest first."""
        return sorted(p for p in self.directory.glob("step_*") if NAME.fullmatch(p.name) and p.is_dir())

    def _named(self) -> str | None:
        """What `latest` names; None when it names nothing that could be a checkpoint."""
        try:
            name = (self.directory / LATEST).read_text().strip()
        except (OSError, ValueError):
            return None
        return name if NAME.fullmatch(name) else None

    def _pointed(self) -> str:
        """The name in `latest`. Raises CheckpointDamaged with what is wrong with that file."""
        path = self.directory / LATEST
        if not os.path.lexists(path):
            raise CheckpointDamaged(f"{path} is missing, though there are checkpoints.")
        if not path.is_file():
            raise CheckpointDamaged(f"{path} is no file.")
        try:
            raw = path.read_bytes()
        except OSError as e:
            raise CheckpointDamaged(f"{path} cannot be read ({e.strerror}).") from e
        name = self._named()
        if name is None:
            raise CheckpointDamaged(
                f"{path} holds {raw[:40]!r}, no checkpoint's name." if raw.strip() else f"{path} is empty."
            )
        if not (self.directory / name).is_dir():
            raise CheckpointDamaged(f"{path} names {name}, which is not there.")
        return name

    @staticmethod
    def state(path: Path) -> dict[str, Any]:
        """controller.json of a verified checkpoint."""
        state: dict[str, Any] = json.loads((path / STATE).read_text())
        return state

    def read(self, path: Path) -> tuple[dict[str, Any], list[stored.Row]]:
        """The controller's state, and the buffered groups; verified, the learner's files too. Raises CheckpointDamaged:
        nothing was loaded then."""
        self._verified(path.name)
        return self.state(path), stored.read(path)


def _taken(directory: Path) -> int:
    """Bytes of its files, those of a damaged checkpoint included."""
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())


def _remove(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    if path.is_dir() and not path.is_symlink():
        _remove(path)
    tmp = path.with_suffix(".tmp")
    tmp.write_text(text)
    _fsync(tmp)
    tmp.rename(path)
    _fsync(path.parent)
