"""One engine's death, judged from the run's ledger: which groups were issued again for it, and were they its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from openrlhf_tir.errors import EngineGone
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.pipeline.ledger.lines import read_lines
from openrlhf_tir.types import GroupKey


@dataclass(frozen=True, slots=True)
class Loss:
    """`running`: groups that the engine had when it died. `again`: those issued again because an engine died.
    `of_others`: those of them that ran elsewhere. `missed`: groups that ran on the dead engine, whose end the ledger
    does not know."""

    running: int
    again: int
    of_others: int
    missed: int
    requeued: dict[str, int]
    """Reason -> groups issued again, all reasons."""
    trained: int
    errors: list[str]
    """What the audit of the whole ledger found."""

    @property
    def only_its_own(self) -> bool:
        return self.again > 0 and not self.of_others and not self.missed


def loss_of(ledger: Path, ran_on: Mapping[GroupKey, str], dead: str, running: Collection[GroupKey]) -> Loss:
    """`ran_on`: the actor that each issue was given to, by an id that its successor does not have. `running`: what
    `dead` had when it was killed."""
    ends: dict[GroupKey, tuple[str, str]] = {}
    for line in read_lines(ledger):
        if line.row and line.row["e"] in ("trained", "filtered", "failed", "requeued"):
            ends[GroupKey(*line.row["k"])] = line.row["e"], line.row.get("reason", "")
    again = [key for key, end in ends.items() if end == ("requeued", EngineGone.reason)]
    report = audit(ledger)
    return Loss(
        running=len(running),
        again=len(again),
        of_others=sum(ran_on.get(key) != dead for key in again),
        missed=sum(key not in ends for key, actor in ran_on.items() if actor == dead),
        requeued=dict(Counter(reason for end, reason in ends.values() if end == "requeued")),
        trained=len(report.trained),
        errors=list(map(str, report.errors)),
    )
