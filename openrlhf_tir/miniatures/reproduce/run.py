"""Run: a miniature and its seeds -> every arm, a summary, a page. What is finished is read again, so the same command
goes on where it ended.

OUT/seed-42/ARM/      the arm's run directory; beside it ARM.train.log and ARM.train.json
OUT/summary.json      {"name", "claim", "seen", "seeds": [{"seed", "arms": {arm: {figure: value}}, "seen"}], "seconds"};
                      after each seed
OUT/index.html        the page; OUT/curves.png its picture
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ...telemetry import metrics
from . import bases
from .arms import Place, Read
from .commands import Command, How, is_finished, run
from .measures import points
from .miniature import Check, Miniature, judged
from .page import write_page

SUMMARY = "summary.json"
SEEDS = (42, 7, 11, 1, 2, 3, 4, 5)
"""Seeds in the order in which they are taken."""


def seeds_from(first: int, count: int) -> tuple[int, ...]:
    """So many seeds, `first` before those of SEEDS."""
    return tuple(dict.fromkeys((first, *SEEDS)))[:count]


class SeedResult(NamedTuple):
    seed: int
    arms: dict[str, Read]
    checks: list[Check]
    seconds: float
    """Seconds of the arms' commands; the base was there before, or is not counted."""

    @property
    def seen(self) -> bool:
        return all(check.ok for check in self.checks)


def reproduce(miniature: Miniature, seeds: tuple[int, ...], out: Path, base_dir: Path, how: How) -> dict[str, Any]:
    """Returns what summary.json holds. Raises ReproductionFailed: a failed arm is no verdict."""
    results: list[SeedResult] = []
    summary: dict[str, Any] = {}
    for seed in seeds:
        base = bases.made(miniature.base, seed, base_dir, how)
        flags = bases.flags_of(miniature.base, seed, base_dir)
        results.append(_seed(miniature, Place(out, out / f"seed-{seed}", base, flags, seed), how))
        summary = summary_of(miniature, results)
        _write(out / SUMMARY, summary)
        write_page(miniature, results, out)
        for check in results[-1].checks:
            how.say(f"seed {seed}: {'yes' if check.ok else 'NO '}  {check.said}")
    how.say(f"{verdict(miniature, results)}: {out / 'index.html'}")
    return summary


def _seed(miniature: Miniature, of_seed: Place, how: How) -> SeedResult:
    read: dict[str, Read] = {}
    seconds, seed = 0.0, of_seed.seed
    for number, (name, arm) in enumerate(miniature.arms.items(), 1):
        place = of_seed._replace(directory=of_seed.seed_dir / name)
        for command in arm.commands(place):
            what = f"seed {seed}, arm {name} ({number} of {len(miniature.arms)})"
            how.say(f"{what}: {'finished already' if is_finished(command) else 'runs'}, log: {command.log}")
            seconds += run(command, timeout_s=how.timeout_s, tick=_told(command, what, how.say), execute=how.execute)
        read[name] = arm.read(place)
        how.say(
            f"seed {seed}, arm {name}:"
            f" {', '.join(f'{figure} {value:.3f}' for figure, value in read[name].figures.items())}"
        )
    return SeedResult(seed, read, judged(miniature, {name: r.figures for name, r in read.items()}), seconds)


def _told(command: Command, what: str, say: Callable[[str], None]) -> Callable[[], None]:
    """Says each new evaluation of a run; those of an interrupted one, which goes on, were said before."""
    said = {step for step, _ in evaluated(command)}

    def tick() -> None:
        for step, accuracy in evaluated(command):
            if step not in said:
                said.add(step)
                say(f"{what}: update {step:g}, held-out accuracy {100 * accuracy:.1f} %")

    return tick


def evaluated(command: Command) -> list[tuple[float, float]]:
    """(update, held-out accuracy) so far; nothing of a command that does not train."""
    return points(metrics.read(command.directory), "eval/accuracy")


def summary_of(miniature: Miniature, results: list[SeedResult]) -> dict[str, Any]:
    return {
        "name": miniature.name,
        "claim": miniature.claim,
        "seen": all(result.seen for result in results),
        "seeds": [
            {"seed": r.seed, "arms": {name: read.figures for name, read in r.arms.items()}, "seen": r.seen}
            for r in results
        ],
        "seconds": round(sum(r.seconds for r in results), 1),
    }


def verdict(miniature: Miniature, results: list[SeedResult]) -> str:
    seen = sum(result.seen for result in results)
    return (
        f"{miniature.name}: effect seen on {seen} of {len(results)} seeds"
        if seen
        else f"{miniature.name}: effect not seen ({len(results)} seeds)"
    )


def _write(path: Path, summary: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(summary, indent=2) + "\n")
    os.replace(temporary, path)
