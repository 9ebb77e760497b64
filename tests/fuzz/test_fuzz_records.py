"""Fuzz of what a run writes and reads again: ledger and metrics with any damage. Reading them gives an account or one
of our errors."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pytest

from openrlhf_tir.config import Logger
from openrlhf_tir.errors import TirError
from openrlhf_tir.pipeline.ledger.audit import AuditError
from openrlhf_tir.pipeline.ledger.ledger import Ledger, audit
from openrlhf_tir.telemetry import metrics as metrics_log
from openrlhf_tir.types import GroupKey

from .bytes_and_text import NASTY, mutated
from .cases import table, tried


def _ledger(tmp: Path) -> bytes:
    """A small run's, written by the class under test: two committed steps, a requeue, one prompt still open."""
    path = tmp / "whole.jsonl"
    if not path.exists():
        ledger = Ledger(path)
        for p in range(6):
            ledger.issued(GroupKey(0, p), 0)
        ledger.ended("trained", GroupKey(0, 0), step=0)
        ledger.ended("filtered", GroupKey(0, 1), reason="accuracy_high")
        ledger.committed(1, ledger.lines)
        ledger.ended("requeued", GroupKey(0, 2), reason="failed")
        ledger.issued(GroupKey(0, 2, 1), 1)
        ledger.ended("trained", GroupKey(0, 2, 1), step=1)
        ledger.ended("failed", GroupKey(0, 3), reason="failed")
        ledger.committed(2, ledger.lines)
        ledger.close()
    return path.read_bytes()


def _odd_lines(rng: random.Random, raw: bytes) -> bytes:
    """Lines that are JSON and yet no event or row: wrong types, missing and invented fields."""
    lines = raw.splitlines(keepends=True)
    odd = [None, True, -1, 1.5, 10**40, [], {}, [0, 0], [0, "x", 1], "issued", *NASTY[:8]]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        try:
            row = json.loads(lines[at])
        except ValueError:
            continue
        if rng.random() < 0.3:
            row = rng.choice(odd)
        elif isinstance(row, dict):
            row[rng.choice([*row, "e", "k", "step", "upto", "new"])] = rng.choice(odd)
        lines[at] = json.dumps(row).encode() + b"\n"
    return b"".join(lines)


def _damaged(rng: random.Random, raw: bytes) -> bytes:
    return mutated(rng, raw) if rng.random() < 0.6 else _odd_lines(rng, raw)


def ledger_audit(rng: random.Random, tmp: Path) -> None:
    path = tmp / "ledger.jsonl"
    path.write_bytes(_damaged(rng, _ledger(tmp)))
    assert all(isinstance(error, AuditError) and error.message for error in audit(path).errors)


def ledger_opened(rng: random.Random, tmp: Path) -> None:
    """A damaged ledger can be opened and written, or says what is wrong; the file keeps ending in whole lines."""
    path = tmp / "ledger.jsonl"
    path.write_bytes(_damaged(rng, _ledger(tmp)))
    with contextlib.suppress(TirError):
        ledger = Ledger(path)
        ledger.issued(GroupKey(7, 7), 3)
        ledger.close()
        assert path.read_bytes().endswith(b"\n")
        with contextlib.suppress(TirError):
            audit(path)


def metrics(rng: random.Random, tmp: Path) -> None:
    """A damaged metrics.jsonl is read as columns of one length, and taken back to a step."""
    run = tmp / "run"
    run.mkdir(exist_ok=True)
    rows = [{"step": s, "time": 1.0 + s, "loss": 0.5, "eval/accuracy": None} for s in range(5)]
    (run / metrics_log.FILE).write_bytes(_damaged(rng, b"".join(json.dumps(r).encode() + b"\n" for r in rows)))
    columns = metrics_log.read(run)
    assert len({len(c) for c in columns.values()}) <= 1
    with metrics_log.MetricsLog(run, Logger(tensorboard_dir=None)) as log:
        log.truncate_after(2)
        log.log(3, {"loss": 1.0})
    assert max(metrics_log.read(run)["step"]) == 3


KINDS = table(ledger_audit, ledger_opened, metrics)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_damaged_record_ends_in_a_traceback(kind, tmp_path):
    tried(KINDS[kind], 0, 150, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_ten_thousand_damaged_records_end_in_no_traceback(kind, tmp_path):
    tried(KINDS[kind], 10**6, 10_000, tmp_path)
