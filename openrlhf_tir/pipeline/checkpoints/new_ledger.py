"""A new ledger for a complete checkpoint whose own ledger is lost or damaged (train.new_ledger).

Weeks of training are not given up for their bookkeeping.

The old ledger is set aside. The new one begins with the prompts that were open at the checkpoint's cut, so that each of
them still ends once; the audit covers what comes after. The checkpoint is written anew beside itself (hard links of its
large files) with a mark in the new ledger."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...types import GroupKey
from ..ledger.ledger import Ledger
from ..ledger.lines import Mark
from . import manifest, stored
from .checkpoint import STATE, Checkpoints


def begin(checkpoints: Checkpoints, path: Path, ledger: Path) -> tuple[Path, str]:
    """Begin a new ledger.

    Args:
        checkpoints: The checkpoint directory.
        path: A checkpoint that is verified except for its ledger.
        ledger: Path of the run's ledger.

    Returns:
        The checkpoint to resume from, and a sentence about what was done.
    """
    state = checkpoints.state(path)
    rows = stored.read(path)
    aside = _set_aside(ledger)
    new = Ledger(ledger)
    for key in [*(GroupKey(*group["key"]) for group in state["rolling"]), *(group.key for group, _, _ in rows)]:
        new.issued(key, state["version"])
    mark = replace(new.mark(), attempts=Mark.of_json(state["ledger"]).attempts)
    new.close()
    twin = path.with_name(path.name.removesuffix("a") + ("" if path.name.endswith("a") else "a"))
    _write_twin(path, twin, {**state, "ledger": asdict(mark)})
    was = f"the old one is {aside.name}" if aside else "the old one was missing"
    return (
        twin,
        (
            f"a new ledger begins at {path.name}, {was}: the audit covers what comes after; {twin.name} is that"
            " checkpoint with a mark in the new ledger"
        ),
    )


def _set_aside(ledger: Path) -> Path | None:
    if not os.path.lexists(ledger):
        return None
    free = (ledger.with_name(f"{ledger.name}.damaged{n or ''}") for n in range(10_000))
    aside = next(p for p in free if not os.path.lexists(p))
    ledger.rename(aside)
    return aside


def _write_twin(path: Path, twin: Path, state: dict[str, Any]) -> None:
    tmp = path.with_name(f".{twin.name}.tmp")
    shutil.rmtree(tmp, ignore_errors=True)
    shutil.copytree(path, tmp, copy_function=_link, ignore=shutil.ignore_patterns(STATE, manifest.FILE))
    (tmp / STATE).write_text(json.dumps(state))
    facts = {"step": state["version"], "world_size": state.get("world_size"), "run": state["ledger"]["run"]}
    manifest.write(tmp, twin.name, facts, {})
    for file in (tmp / STATE, tmp / manifest.FILE, tmp):
        manifest.flush(file)
    shutil.rmtree(twin, ignore_errors=True)
    tmp.rename(twin)
    manifest.flush(twin.parent)


def _link(source: str, target: str) -> None:
    """A hard link where the file system has them: a copy of a checkpoint may not fit."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
