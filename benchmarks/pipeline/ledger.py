"""How long a resume and an audit of a long ledger take, and how much memory. Prints JSON. No Ray, no model.

    python -m benchmarks.pipeline.ledger --lines 10000000

Makes a ledger of that many lines as a run would: epochs over a data set, 256 prompts open at a time, one in ten
filtered, one in fifty requeued, a checkpoint every 1,000 steps' worth of lines; killed some way behind the last
checkpoint. Then, each in a process of its own: `resume` (verify the ledger against the checkpoint's mark, open it, roll
back) and `audit`. Peak memory is the process's VmHWM minus that of the same imports alone."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.command import command_parser
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.pipeline.ledger.lines import Mark, compare
from openrlhf_tir.types import GroupKey

OPEN, DATASET, EVERY = 256, 100_000, 50_000
"""Prompts open at a time, prompts per epoch, lines between two checkpoints."""


def grow(path: Path, lines: int) -> tuple[dict, list[GroupKey]]:
    """Writes the ledger; returns the last checkpoint's mark and what was open there."""
    rng, ledger = random.Random(0), Ledger(path)
    stream = 0
    opened: list[GroupKey] = []
    again: list[tuple[int, int]] = []
    mark, keys = ledger.mark(), list(opened)
    while ledger.lines < lines:
        while len(opened) < OPEN:
            prompt = again.pop() if again else divmod(stream, DATASET)
            stream += prompt == divmod(stream, DATASET)
            key = GroupKey(*prompt, ledger.next_attempt(*prompt))
            ledger.issued(key, stream // 128)
            opened.append(key)
        key = opened.pop(rng.randrange(len(opened)))
        fate = rng.random()
        if fate < 0.02:
            ledger.ended("requeued", key, reason="timeout")
            again.append(key[:2])
        elif fate < 0.12:
            ledger.ended("filtered", key, reason="accuracy_high")
        else:
            ledger.ended("trained", key, step=stream // 128)
        if ledger.lines - mark.lines >= EVERY and lines - ledger.lines > EVERY // 4:
            mark, keys = ledger.mark(), list(opened)
            ledger.committed(stream // 128, mark.lines)
    ledger.close()
    return asdict(mark), keys


def resume(path: Path, mark: dict, keys: list[GroupKey]) -> dict:
    """What a resume does with the ledger: verified at the checks before the start, and again when it is rolled back."""
    parsed = Mark.of_json(mark)
    compare(path, parsed)
    ledger = Ledger(path)
    ledger.rolled_back(parsed, keys)
    ledger.close()
    return {"held_attempts": len(ledger._attempts)}


def replay(path: Path) -> dict:
    report = audit(path)
    return {"trained": len(report.trained), "errors": len(report.errors)}


def nothing() -> dict:
    return {}


def _measured(pipe, work, args) -> None:
    start = time.perf_counter()
    facts = work(*args)
    seconds = time.perf_counter() - start
    peak = next(
        int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")
    )
    pipe.send({**facts, "seconds": round(seconds, 2), "peak_mib": round(peak / 1024, 1)})


def measured(work, *args) -> dict:
    """In a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_measured, args=(theirs, work, args))
    process.start()
    theirs.close()  # else the end of the process would not be seen here
    try:
        facts = ours.recv()
    except EOFError:
        process.join()
        sys.exit(f"{work.__name__} ended with {process.exitcode}; its error is above.")
    process.join()
    return facts


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--no-audit", action="store_true", help="leave out the audit, which parses every line twice")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "ledger.jsonl")
        start = time.perf_counter()
        mark, keys = grow(path, args.lines)
        out: dict = {
            "lines": args.lines,
            "mib": round(path.stat().st_size / 2**20, 1),
            "lines_after_the_cut": args.lines - mark["lines"],
        }
        out["append_us_per_line"] = round((time.perf_counter() - start) / args.lines * 1e6, 1)
        base = measured(nothing)["peak_mib"]
        for name, work, given in (("resume", resume, (path, mark, keys)), ("audit", replay, (path,))):
            if name == "audit" and args.no_audit:
                continue
            facts = measured(work, *given)
            out[name] = {**facts, "peak_mib": round(facts["peak_mib"] - base, 1)}
    print(json.dumps(out, indent=2))


if __name__ == "__main__":
    main()
