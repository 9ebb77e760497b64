"""Write, choose and verify checkpoints: everything that training needs, as of one step boundary.

Directory `step_000020/`; the file `latest` names the last complete one.

    learner/             model, optimizer, scheduler and random state of every rank (Learner.save)
    controller.json      step, position in the prompts, dispatched groups, the ledger's mark, what the run is made of,
                         the best evaluation so far
    replay.json          accepted groups that wait to be trained; their arrays are in replay.safetensors
    manifest.json        every file with size and digest; written last

    take      the learner ranks copy their state to host memory; training waits for this only
    commit    in the background: wait until every rank has written its files, then write the others to the same
              temporary directory, flush and rename it; `latest` is replaced last
    choose    find the checkpoint to resume from, and verify it before anything of it is loaded
    accept    a resume goes on from it: correct `latest` and `best.json`, and remove what crashed runs left

After a crash there is either the old checkpoint or the new one. If the disk is full the old one stays, and
CheckpointFailed says how much room is missing. `best.json` names the checkpoint of the best evaluation, which is kept
in addition to the last ones.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...config.sections.output import OF_AVERAGE, OF_CRITIC
from ...config.sections.train import NEWEST_WHOLE
from ...errors import CheckpointDamaged, CheckpointFailed, ConfigError
from ...machine.sizes import free_bytes, room, size
from ...ports import Learner, Saves
from ...waiting.daemon_threads import in_daemon_thread
from ..ledger.lines import Mark
from ..ledger.lines import compare as compare_ledger
from . import manifest, model_export, stored
from .manifest import flush
from .stored import Row

log = logging.getLogger(__name__)

STATE = "controller.json"
LATEST = "latest"
BEST = "best.json"
NAME = re.compile(r"step_\d{6,}a?")
EXPORT = re.compile(rf"step_\d{{6,}}_hf({OF_AVERAGE}|{OF_CRITIC})?")
TEMPORARY_PATTERNS = (".step_*.tmp", *(Path(name).with_suffix(".tmp").name for name in (LATEST, BEST)))
NO_BEST: tuple[None, float] = (None, -math.inf)
"""Name and score where no checkpoint was evaluated."""
GROWTH = 1.05
"""Room is checked for a checkpoint that is larger than the last one by this factor, as more groups may be buffered."""
SETTLE_S = 5.0
"""Seconds that a cancelled commit waits for its thread. It takes milliseconds, unless the disk hangs."""


class Checkpoints:
    """The checkpoints of one run.

    Keeps the last and the best one, and of the others the newest, `max_num` with the last one.
    """

    def __init__(
        self,
        directory: Path,
        max_num: int,
        *,
        ledger: Path | None = None,
        facts: dict[str, Any] | None = None,
        expected_bytes: int = 0,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        """Create an object for the checkpoints in a directory; nothing is read or written yet.

        Args:
            directory: Where they are.
            max_num: How many are kept, the best one not counted.
            ledger: The run's ledger, which is compared with a checkpoint's mark; None: it is not compared.
            facts: What the run is made of (lineage.facts_of); stored in every checkpoint.
            expected_bytes: Size of a checkpoint, used until one was written.
            free: Returns the free bytes of a directory's disk.
        """
        self.directory = directory
        self.max_num = max_num
        self.ledger = ledger
        self.facts = facts
        self._bytes = expected_bytes
        self._free = free

    def __str__(self) -> str:
        """Return the names of checkpoints and exports, for messages."""
        return ", ".join([*(p.name for p in self._directories()), *self.exports]) or "none that has a name"

    # ---- writing ----

    async def take(self, step: int, learner: Saves) -> None:
        """Begin a checkpoint with the learner's state.

        When this returns the learner may step, although its files are still being written.

        Raises:
            CheckpointFailed: There is no room, or the disk refused.
        """
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
        """Complete the checkpoint that `take` began.

        Where this is cancelled, the checkpoint becomes valid if its directory gets its name within SETTLE_S. After that
        it never does, whatever the thread that writes it still does.

        Args:
            step: The step, as given to `take`.
            state: The controller's state, as JSON can hold it.
            buffered: The accepted groups that wait to be trained.
            learner: The learner.
            score: Score of its evaluation, if it is the best so far.

        Returns:
            The directory of the checkpoint.

        Raises:
            CheckpointFailed: A disk refused. The older checkpoints stay.
        """
        try:
            written = await learner.written()
            naming = threading.Lock()
            writing = in_daemon_thread(self._commit, step, state, buffered, score, written or {}, naming)
            try:
                return await asyncio.shield(writing)
            except asyncio.CancelledError:
                # The ranks have written their files: the checkpoint is worth a moment. After that it must not appear
                # any more, because a resume may have chosen an older one.
                await asyncio.wait({writing}, timeout=SETTLE_S)
                if not naming.acquire(blocking=False):
                    await asyncio.wait({writing}, timeout=SETTLE_S)
                if not writing.cancel():
                    writing.exception()  # It is of no interest any more.
                raise
        except CheckpointFailed:
            self.discard(step)
            raise
        except OSError as e:
            raise self._failed(step, e) from e

    def discard(self, step: int) -> None:
        """Remove what `take` began, which may make room on a full disk."""
        shutil.rmtree(self._temporary(step), ignore_errors=True)

    def _temporary(self, step: int) -> Path:
        return self.directory / f".step_{step:06d}.tmp"

    def _check_room(self, tmp: Path) -> None:
        need = int(self._bytes * GROWTH)
        free = self._free(tmp)
        if free < need:
            raise CheckpointFailed(
                f"{tmp.name[1:-4]} is not written: it needs {size(need)}, {self.directory} has {size(free)} free."
                f" {self._remedy()}"
            )

    def _failed(self, step: int, fault: OSError) -> CheckpointFailed:
        """Remove what a failed checkpoint has left, and return the error to raise."""
        tmp = self._temporary(step)
        written_bytes = sum(p.stat().st_size for p in tmp.rglob("*") if p.is_file()) if tmp.exists() else 0
        self.discard(step)
        need = max(int(self._bytes * GROWTH), written_bytes)
        available = room(self.directory, self._free)
        return CheckpointFailed(
            f"step_{step:06d} was not written: {fault}. It needs {size(need)} or more in {self.directory}, {available}."
            f" {self._remedy()}"
        )

    def _remedy(self) -> str:
        kept = [p.name for p in self._directories()]
        left = f"Kept: {', '.join(kept)}." if kept else "There is no earlier one."
        return f"{left} Make room, or keep fewer with ckpt.max_num (now {self.max_num})."

    def _commit(
        self,
        step: int,
        state: dict[str, Any],
        buffered: list[Row],
        score: float | None,
        written: Mapping[str, tuple[int, str]],
        naming: threading.Lock,
    ) -> Path:
        """Write the controller's files and make the temporary directory a checkpoint. Runs in a thread.

        The lock `naming` is held by whoever comes first: this thread, to give the directory its name, or the caller,
        who has given the checkpoint up.
        """
        tmp = self._temporary(step)
        final = self.directory / f"step_{step:06d}"
        if self.latest_name() == final.name:
            # A second checkpoint of the last step: the first one must stay complete until `latest` names this one.
            final = final.with_name(final.name + "a")
        best, best_score = self.best()
        if best and best > final.name:
            best = None
        record = _record(final.name, score) if score is not None else _record(best, best_score)
        state = {**state, "facts": self.facts, "best": record}
        (tmp / STATE).write_text(json.dumps(state))
        stored.write(tmp, buffered)
        run = state["ledger"]["run"] if state.get("ledger") else None
        self._bytes = manifest.write(
            tmp, final.name, {"step": step, "world_size": state.get("world_size"), "run": run}, written
        )
        # The ranks have flushed the files that they wrote, possibly on other machines. The directories were made here,
        # and DeepSpeed copies some files without flushing them.
        for path in [p for p in tmp.rglob("*") if str(p) not in written] + [tmp]:
            flush(path)
        if not naming.acquire(blocking=False):
            # What is written stays: a later checkpoint of this step may have been begun in the same place.
            raise CheckpointFailed(f"{final.name} was given up while it was written.")
        shutil.rmtree(final, ignore_errors=True)
        tmp.rename(final)
        try:
            flush(self.directory)
            if score is not None:
                self._set_best(final.name, score)
            _replace(self.directory / LATEST, final.name)
        except OSError:
            if self.latest_name() != final.name:
                shutil.rmtree(final, ignore_errors=True)
                if score is not None:
                    # If the disk refuses this too, `export_best` reports that the best one is missing.
                    with suppress(OSError):
                        self._set_best(best, best_score)
            raise
        try:
            self._clean(final)
        except OSError as e:  # `latest` names this one, so it counts, whatever older ones are left
            log.warning(
                "%s: checkpoints that are not needed any more could not be removed (%s). The next one tries again.",
                self.directory,
                e,
            )
        return final

    def _clean(self, final: Path) -> None:
        """Remove checkpoints that are not kept any more.

        Later ones than `final` belong to a lineage that a resume from an earlier one has left, and so does the best one
        if it is later. `accept` corrects `best.json` for a resume; it may name a later one after a restart of the
        learner, or if `final` is the third checkpoint of one update.
        """
        best, _ = self.best()
        if best and best > final.name:
            (self.directory / BEST).unlink()
            best = None
        others = [p for p in self._directories() if p != final]
        later = [p for p in others if p.name > final.name]
        earlier = [p for p in others if p.name < final.name and p.name != best]
        for path in later + earlier[: max(0, len(earlier) - (self.max_num - 1))]:
            _remove(path)

    # ---- the best ----

    def best(self) -> tuple[str | None, float]:
        """Return name and score of the best checkpoint; NO_BEST if none was evaluated."""
        try:
            row = json.loads((self.directory / BEST).read_text())
            name, score = row["checkpoint"], float(row["score"])
        except FileNotFoundError:
            return NO_BEST
        except (OSError, ValueError, KeyError, TypeError) as e:
            log.warning(
                "%s cannot be read (%s: %s): no checkpoint counts as the best.",
                self.directory / BEST,
                type(e).__name__,
                e,
            )
            return NO_BEST
        return (name, score) if isinstance(name, str) and NAME.fullmatch(name) and math.isfinite(score) else NO_BEST

    def _set_best(self, name: str | None, score: float) -> None:
        """Let `best.json` name a checkpoint, or remove it if there is no best one."""
        if name:
            _replace(self.directory / BEST, json.dumps(_record(name, score)))
        else:
            _remove(self.directory / BEST)

    async def export_best(
        self, learner: Learner, directory: Path, complete: Callable[[Path], object] = lambda directory: None
    ) -> None:
        """Export the weights of the best checkpoint as a model.

        The learner holds these weights afterwards, so this is for the end of a run.

        Args:
            learner: The learner.
            directory: Where the model appears.
            complete: Adds to the export what the learner does not know of; by default nothing.

        Raises:
            CheckpointDamaged: It is damaged or missing.
            LearnerDied: A rank died meanwhile.
            OSError: The disk refused.
        """
        name, _ = self.best()
        path = self.directory / str(name)
        await asyncio.to_thread(manifest.verify, path)
        await learner.load(path / "learner")
        await model_export.export(learner, directory, complete)

    # ---- resuming ----

    def clear(self) -> None:
        """Remove all checkpoints and exports, for a new run.

        Other files in the directory stay: ckpt.path may name a directory that holds more.
        """
        for path in [*self._directories(), *self._of_exports(), self.directory / LATEST, self.directory / BEST]:
            _remove(path)
        self.tidy()
        with suppress(OSError):  # it holds other files, or does not exist
            self.directory.rmdir()

    @property
    def exist(self) -> bool:
        """True if there is something of a checkpoint, complete or not."""
        return bool(self._directories()) or os.path.lexists(self.directory / LATEST)

    def export_of(self, step: int) -> Path:
        """Return the directory of the model that is exported at this step (ckpt.save_hf)."""
        return self.directory / f"step_{step:06d}_hf"

    @property
    def exports(self) -> list[str]:
        """Names of the models that were exported here (ckpt.save_hf)."""
        return sorted(p.name for p in self.directory.glob("step_*_hf"))

    def drop_export(self, step: int) -> None:
        """Remove the model that was exported at this step, and what goes with it."""
        for path in self._of_exports(f"step_{step:06d}_hf*"):
            _remove(path)

    def _of_exports(self, pattern: str = "step_*_hf*") -> list[Path]:
        """Return the directories of exports: models, their averages, critics. Each model comes before what goes with
        it, so that where it is there all is there."""
        return sorted(p for p in self.directory.glob(pattern) if EXPORT.fullmatch(p.name))

    def latest(self) -> Path | None:
        """Return the checkpoint that `latest` names, not verified; None if there is none. Raises CheckpointDamaged."""
        return self.directory / self._checked_latest_name() if self.exist else None

    def of_step(self, step: int) -> Path | None:
        """Return the last checkpoint of a step, not verified; None if there is none."""
        return next((p for p in reversed(self._directories()) if p.name.rstrip("a") == f"step_{step:06d}"), None)

    def choose(self, wanted: str = "latest") -> Path | None:
        """Return a verified checkpoint to resume from; None if there is none at all.

        Args:
            wanted: A name; "latest"; or "newest_whole", the newest one that is complete and undamaged.

        Raises:
            CheckpointDamaged: It is damaged. The message says what differs, and which one can be used instead.
            ConfigError: There is none of this name.
        """
        if not self.exist:
            return None
        by_name = wanted not in ("latest", NEWEST_WHOLE)
        names = [p.name for p in self._directories()]
        if by_name and wanted not in names:
            raise ConfigError(
                f"train.resume_from = {wanted!r} is no checkpoint in {self.directory}."
                f" Known: {', '.join(names) or 'none'}."
            )
        try:
            return self._verified(wanted if by_name else self._checked_latest_name())
        except CheckpointDamaged as e:
            damage = e
        whole = self._newest_whole()
        if wanted == NEWEST_WHOLE and whole:
            return whole
        if whole:
            remedy = (
                f"{whole.name} is whole: go on from there with --train.resume_from {whole.name}, or always from what is"
                f" whole with --train.resume_from {NEWEST_WHOLE}. What came after it is trained again."
            )
        else:
            remedy = (
                "No other checkpoint is whole. Put the files back, or start anew with"
                " --train.overwrite on the command line instead of --resume."
            )
        path = self._choose_without_ledger(wanted) if self.ledger else None
        if path:
            remedy += (
                f" {path.name} itself is whole: --train.new_ledger goes on from it with a new ledger, whose audit"
                " covers only what comes after."
            )
        raise CheckpointDamaged(f"{damage} Nothing was loaded. {remedy}", code=damage.code)

    def _choose_without_ledger(self, wanted: str) -> Path | None:
        """Do what `choose` does, without a comparison of the ledger; return None for a damaged checkpoint."""
        try:
            return Checkpoints(self.directory, self.max_num).choose(wanted)
        except CheckpointDamaged:
            return None

    def _newest_whole(self) -> Path | None:
        """Return the newest undamaged checkpoint, except those after the one that `latest` names."""
        latest = self.latest_name()
        names = [p.name for p in self._directories()]
        for name in reversed([n for n in names if latest not in names or n <= latest]):
            try:
                return self._verified(name)
            except CheckpointDamaged:
                continue
        return None

    def _verified(self, name: str) -> Path:
        """Compare a checkpoint's files with its manifest, and the ledger with its mark. Raises CheckpointDamaged."""
        path = self.directory / name
        manifest.verify(path)
        if self.ledger and (mark := self.state(path).get("ledger")):
            compare_ledger(self.ledger, Mark.of_json(mark))
        return path

    def accept(self, path: Path) -> list[str]:
        """Make `path` the last checkpoint, because a resume goes on from it.

        Returns:
            Sentences that say what was corrected.
        """
        messages = self.tidy()
        latest = self.latest_name()
        if latest != path.name:
            later = [p.name for p in self._directories() if p.name > path.name]
            left = f" {', '.join(later)} will be removed with the next checkpoint." if later else ""
            _replace(self.directory / LATEST, path.name)
            messages.append(
                f"resuming from {path.name}; {LATEST} {f'named {latest}' if latest else 'could not be read'}, and names"
                f" {path.name} now.{left}"
            )
        elif later := [p.name for p in self._directories() if p.name > path.name]:
            messages.append(
                f"resuming from {path.name}, which {LATEST} names;"
                f" {', '.join(later)} will be removed with the next checkpoint"
            )
        record = self.state(path)["best"]
        best, score = (record["checkpoint"], record["score"]) if record else NO_BEST
        if best and not (self.directory / best).is_dir():
            messages.append(f"the best checkpoint so far, {best}, is gone: the best counts from here on")
            best, score = NO_BEST
        if self.best() != (best, score) or (best is None and os.path.lexists(self.directory / BEST)):
            self._set_best(best, score)
            messages.append(
                f"{BEST} was not that of {path.name}; it {f'names {best} again' if best else 'was removed'}"
            )
        self._bytes = max(self._bytes, manifest.size(path))
        return messages

    def tidy(self) -> list[str]:
        """Remove what a run left that died in the middle of a checkpoint, and return a sentence about it."""
        left = sorted(path for pattern in TEMPORARY_PATTERNS for path in self.directory.glob(pattern))
        for path in left:
            _remove(path)
        return (
            [f"removed {', '.join(p.name for p in left)}: checkpoints that an earlier process did not finish"]
            if left
            else []
        )

    def _directories(self) -> list[Path]:
        """Return the directories of all checkpoints, oldest first."""
        return sorted(p for p in self.directory.glob("step_*") if NAME.fullmatch(p.name) and p.is_dir())

    def latest_name(self) -> str | None:
        """Return the name in `latest`; None if there is none, or if it is not the name of a checkpoint."""
        try:
            name = (self.directory / LATEST).read_text().strip()
        except (OSError, ValueError):
            return None
        return name if NAME.fullmatch(name) else None

    def _checked_latest_name(self) -> str:
        """Return the name in `latest`. Raises CheckpointDamaged, which says what is wrong with that file."""
        path = self.directory / LATEST
        if not os.path.lexists(path):
            raise CheckpointDamaged(f"{path} is missing, though there are checkpoints.", code="file_missing")
        if not path.is_file():
            raise CheckpointDamaged(f"{path} is not a file.")
        try:
            raw = path.read_bytes()
        except OSError as e:
            raise CheckpointDamaged(f"{path} cannot be read ({e.strerror}).") from e
        name = self.latest_name()
        if name is None:
            raise CheckpointDamaged(
                f"{path} holds {raw[:40]!r}, which is not the name of a checkpoint."
                if raw.strip()
                else f"{path} is empty."
            )
        if not (self.directory / name).is_dir():
            raise CheckpointDamaged(f"{path} names {name}, which is not there.", code="file_missing")
        return name

    @staticmethod
    def state(path: Path) -> dict[str, Any]:
        """Return the controller's state of a verified checkpoint."""
        state: dict[str, Any] = json.loads((path / STATE).read_text())
        return state

    def read(self, path: Path) -> tuple[dict[str, Any], list[stored.Row]]:
        """Verify a checkpoint, the learner's files included, and return the controller's state and the buffered groups.

        Raises:
            CheckpointDamaged: Nothing was loaded.
        """
        self._verified(path.name)
        return self.state(path), stored.read(path)


def _record(name: str | None, score: float) -> dict[str, Any] | None:
    """Return what `best.json`, and a checkpoint's state, say of the best checkpoint."""
    return {"checkpoint": name, "score": score} if name else None


def _remove(path: Path) -> None:
    """Remove a file or a directory, if it is there. No directory is left in part under its name."""
    if path.is_dir() and not path.is_symlink():
        if not path.name.startswith("."):
            hidden = model_export.stage_of(path)
            shutil.rmtree(hidden, ignore_errors=True)
            with suppress(OSError):
                path = path.rename(hidden)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _replace(path: Path, text: str) -> None:
    """Replace a file as a whole, so that a crash leaves the old or the new content."""
    if path.is_dir() and not path.is_symlink():
        _remove(path)
    tmp = path.with_suffix(".tmp")
    tmp.write_text(text)
    flush(tmp)
    tmp.rename(path)
    flush(path.parent)
