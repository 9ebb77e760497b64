"""Run a comparison: every arm of every seed, then a summary and a page.

What is finished is read again, so that the same command goes on where it ended.

OUT/seed-42/ARM/      the arm's run directory; beside it ARM.train.log and ARM.train.json. A link, if another comparison
                      beside OUT has finished a run of the same settings and seed
OUT/attempts/         a file for each seed and each version of the settings, also of attempts that failed
OUT/summary.json      {"name", "claim", "seen", "seeds": [{"seed", "arms": {arm: {figure: value}}, "seen"}], "seconds"};
                      after each seed
OUT/index.html        the page; OUT/curves.png its picture
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from openrlhf_tir.config.problems import Problems
from openrlhf_tir.errors import ReproductionFailed
from openrlhf_tir.machine.files import replace_text
from openrlhf_tir.telemetry import metrics

from ..seeds import seeds
from . import bases
from .arms import Place, Read
from .commands import Command, How, is_finished, run, share
from .measures import points
from .miniature import Check, Miniature, Packaged, judged
from .page import write_page

SUMMARY = "summary.json"
ATTEMPTS = "attempts"
SEEDS = (42, 7, 11, 1, 2, 3, 4, 5)
"""Seeds of the toys in the order in which they are taken: their base models are made by seed."""


def seeds_of(miniature: Miniature, count: int) -> tuple[int, ...]:
    """Return `count` seeds. With a packaged model they follow from the settings of the first arm."""
    if not isinstance(miniature.base, Packaged):
        return SEEDS[:count]
    return tuple(seeds(next(iter(miniature.arms.values())).settings, count))


class SeedResult(NamedTuple):
    """The arms of one seed and what they show."""

    seed: int
    arms: dict[str, Read]
    checks: list[Check]
    seconds: float
    """Seconds of the arms' commands; the base was there before, or is not counted."""

    @property
    def seen(self) -> bool:
        """True if all checks hold."""
        return all(check.ok for check in self.checks)


def reproduce(miniature: Miniature, seeds: tuple[int, ...], out: Path, base_dir: Path, how: How) -> dict[str, Any]:
    """Run every arm of every seed and return what summary.json holds.

    Raises:
        ConfigError: A command of an arm cannot work. None was started.
        ReproductionFailed: An arm failed, which is no verdict.
    """
    results: list[SeedResult] = []
    summary: dict[str, Any] = {}
    check_arms(miniature, seeds[0], base_dir, how)
    for seed in seeds:
        base = bases.made(miniature.base, seed, base_dir, how)
        flags = bases.flags_of(miniature.base, seed, base_dir)
        attempt = out / ATTEMPTS / f"{_settings_of(miniature)[:8]}-{seed}.json"
        try:
            results.append(_seed(miniature, Place(out, out / f"seed-{seed}", base, flags, seed), how))
        except ReproductionFailed as error:
            _write(attempt, {"name": miniature.name, "seed": seed, "failed": str(error)})
            raise
        _write(attempt, summary_of(miniature, results[-1:]) | {"checks": [check.said for check in results[-1].checks]})
        summary = summary_of(miniature, results)
        _write(out / SUMMARY, summary)
        write_page(miniature, results, out)
        for check in results[-1].checks:
            how.say(f"seed {seed}: {'yes' if check.ok else 'NO '}  {check.said}")
    how.say(f"{verdict(miniature, results)}: {out / 'index.html'}")
    return summary


def check_arms(miniature: Miniature, seed: int, base_dir: Path, how: How) -> None:
    """Check the commands of all arms as if they ran in an empty directory.

    Raises:
        ConfigError: Some cannot work; a line each, with the arm.
    """
    problems = Problems()
    bases.write_corpus(miniature.base, seed, base_dir, how)
    base = bases.directory_of(miniature.base, seed, base_dir)
    flags = bases.flags_of(miniature.base, seed, base_dir)
    with tempfile.TemporaryDirectory(prefix="tir-reproduce-") as scratch:
        seed_dir = Path(scratch)
        for name, arm in miniature.arms.items():
            for command in arm.commands(Place(seed_dir / name, seed_dir, base, flags, seed)):
                with problems.caught(partial("Arm {}: {}".format, name)):
                    how.check(command.words)
    problems.raise_any()


def _settings_of(miniature: Miniature) -> str:
    """Return a hash of the settings of all arms."""
    return hashlib.sha256("\n".join(arm.settings for arm in miniature.arms.values()).encode()).hexdigest()


def _seed(miniature: Miniature, of_seed: Place, how: How) -> SeedResult:
    read: dict[str, Read] = {}
    seconds, seed = 0.0, of_seed.seed
    for number, (name, arm) in enumerate(miniature.arms.items(), 1):
        place = of_seed._replace(directory=of_seed.seed_dir / name)
        for command in arm.commands(place):
            what = f"seed {seed}, arm {name} ({number} of {len(miniature.arms)})"
            shared = share(command, of_seed.seed_dir.parent.parent)
            if shared is not None:
                how.say(f"{what}: the same run was made before, {command.directory.resolve()}")
                seconds += shared.seconds
                continue
            how.say(f"{what}: {'finished already' if is_finished(command) else 'runs'}, log: {command.log}")
            seconds += run(command, timeout_s=how.timeout_s, tick=_told(command, what, how.say), execute=how.execute)
        read[name] = arm.read(place)
        how.say(
            f"seed {seed}, arm {name}:"
            f" {', '.join(f'{figure} {value:.3f}' for figure, value in read[name].figures.items())}"
        )
    return SeedResult(seed, read, judged(miniature, {name: r.figures for name, r in read.items()}), seconds)


def _told(command: Command, what: str, say: Callable[[str], None]) -> Callable[[], None]:
    """Return a function that says each evaluation that is new in a run.

    Those of an interrupted run that goes on were said before.
    """
    said = {step for step, _ in evaluated(command)}

    def tick() -> None:
        for step, accuracy in evaluated(command):
            if step not in said:
                said.add(step)
                say(f"{what}: update {step:g}, held-out accuracy {100 * accuracy:.1f} %")

    return tick


def evaluated(command: Command) -> list[tuple[float, float]]:
    """Return (update, held-out accuracy) so far; nothing of a command that does not train."""
    return points(metrics.read(command.directory), "eval/accuracy")


def summary_of(miniature: Miniature, results: list[SeedResult]) -> dict[str, Any]:
    """Return what summary.json holds."""
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
    """Return on how many seeds the effect was seen, as a sentence without its end."""
    seen = sum(result.seen for result in results)
    return (
        f"{miniature.name}: effect seen on {seen} of {len(results)} seeds"
        if seen
        else f"{miniature.name}: effect not seen ({len(results)} seeds)"
    )


def _write(path: Path, summary: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(summary, indent=2) + "\n")
