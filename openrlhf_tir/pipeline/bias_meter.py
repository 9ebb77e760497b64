"""Selection-bias meter: compares what is trained with what was dispatched, by response length, difficulty, environment.

    rolled      groups whose attempt ended: kept, filtered, or failed for good (its last attempt counts)
    kept        groups that the filters kept; one that is dispatched again although it was kept (surplus) is subtracted,
                and counts at the end of its next attempt
    trained     groups that a learner step trained

rolled -> kept is what the filters do on purpose. kept -> trained must do nothing: were the first finished taken instead
of those dispatched first, or groups dropped for age, long and slow ones would be missing there. Per step the counts go
into the metrics as `selection/<by>/<bin>/<stage>`, below zero where more is taken back than came; `selection_bias/<by>`
is the total variation distance of kept and trained over the run so far: 1/2 sum |share kept - share trained|, 0 equal,
1 disjoint; with several environments also within each, `env/NAME/selection_bias/<by>`: one may be biased while their
mix hides it. Buffered groups count as kept only, so it falls as a run goes on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from ..types import GroupMeta

UNKNOWN = "unknown"
"""The bin of a group that failed: it has no length and no accuracy."""


def length_bin(tokens: Sequence[int]) -> str:
    """Mean response length, rounded up to a power of two: "64" holds 33 to 64."""
    return str(2 ** math.ceil(math.log2(max(sum(tokens) / len(tokens), 1.0)))) if tokens else UNKNOWN


def difficulty_bin(correct: Sequence[bool]) -> str:
    """Share of correct samples, rounded up to a quarter: "0": none, "25": up to a quarter, "100": above three."""
    return str(25 * math.ceil(4 * sum(correct) / len(correct))) if correct else UNKNOWN


def bins(meta: GroupMeta | None) -> dict[str, str]:
    """Return the group's bin of length, difficulty and environment. A group without metadata failed."""
    if meta is None:
        return {"length": UNKNOWN, "difficulty": UNKNOWN, "env": UNKNOWN}
    return {
        "length": length_bin(meta.response_tokens),
        "difficulty": difficulty_bin(meta.correct),
        "env": meta.env or UNKNOWN,
    }


class SelectionMeter:
    """Counts between two steps, and over the run for the distance."""

    def __init__(self, envs: Sequence[str] = ()) -> None:
        """Create a meter.

        Args:
            envs: Environments within which length and difficulty are compared as well.
        """
        self.envs = tuple(envs)
        self._step: Counter[tuple[str, str, str]] = Counter()
        self._run: Counter[tuple[str, str, str]] = Counter()

    def ended(self, end: str, meta: GroupMeta | None) -> None:
        """Count a group that has left the engines. One that is requeued is dispatched again and not counted."""
        if end in ("buffered", "filtered", "failed"):
            self._count("rolled", meta)
        if end == "buffered":
            self._count("kept", meta)

    def left(self, end: str, meta: GroupMeta) -> None:
        """Count a kept group that is dropped before it was trained.

        A requeued one is dispatched again, so it is subtracted. A failed one was rolled and kept all the same.
        """
        if end == "requeued":
            self._count("rolled", meta, -1)
            self._count("kept", meta, -1)

    def trained(self, metas: Iterable[GroupMeta]) -> None:
        """Count the groups of a trained batch."""
        for meta in metas:
            self._count("trained", meta)

    def restored(self, meta: GroupMeta) -> None:
        """Count a buffered group of a checkpoint: the rows before it have counted it, this process has not."""
        for by, name in (bins(meta) | self._within(meta)).items():
            self._run[by, name, "kept"] += 1

    def _within(self, meta: GroupMeta | None) -> dict[str, str]:
        """The bins of the group's own environment."""
        if meta is None or meta.env not in self.envs:
            return {}
        return {f"{meta.env}/{by}": name for by, name in bins(meta).items() if by != "env"}

    def _count(self, stage: str, meta: GroupMeta | None, n: int = 1) -> None:
        for by, name in bins(meta).items():
            self._step[by, name, stage] += n
            self._run[by, name, stage] += n
        for by, name in self._within(meta).items():
            self._run[by, name, stage] += n

    def row(self) -> dict[str, float]:
        """The metrics of the step that ended now."""
        step, self._step = self._step, Counter()
        out = {f"selection/{by}/{name}/{stage}": float(n) for (by, name, stage), n in sorted(step.items())}
        out |= {
            f"selection_bias/{by}": self._distance(by)
            for by in ("length", "difficulty", "env")
            if self._total(by, "trained")
        }
        within = [
            (env, by) for env in self.envs for by in ("length", "difficulty") if self._total(f"{env}/{by}", "trained")
        ]
        return out | {f"env/{env}/selection_bias/{by}": self._distance(f"{env}/{by}") for env, by in within}

    def _total(self, by: str, stage: str) -> int:
        return sum(n for (b, _, s), n in self._run.items() if (b, s) == (by, stage))

    def _distance(self, by: str) -> float:
        kept = self._total(by, "kept")
        trained = self._total(by, "trained")
        names = {name for b, name, _ in self._run if b == by}
        return 0.5 * sum(
            abs(self._run[by, name, "kept"] / kept - self._run[by, name, "trained"] / trained) for name in names
        )
