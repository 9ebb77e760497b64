"""A scheduler's snapshot <-> the facts that controller.json holds of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from ...config import Config
from ...types import GroupKey, PromptOutcome
from ..ledger.lines import Mark
from ..scheduler.groups import AcceptedGroup, InFlightGroup, QueuedPrompt, SchedulerSnapshot


def to_facts(snapshot: SchedulerSnapshot, settings: Config) -> dict[str, Any]:
    """Return the facts of a snapshot as JSON can hold them. The accepted groups are stored apart (stored.py).

    `max_staleness`, `updates_per_batch` and `batch_size` are there to be compared by a resume: the snapshot's books
    only make sense with the same ones (lineage.py). `world_size` may differ where the ranks can read each other's files
    (ranks.py).
    """
    return {
        "version": snapshot.version,
        "previous_version": snapshot.previous_version,
        "max_staleness": settings.max_staleness,
        "updates_per_batch": settings.updates_per_batch,
        "batch_size": settings.rollout.batch_size,
        "world_size": settings.actor.world_size,
        "ledger": asdict(snapshot.ledger_mark),
        "rolling": [asdict(group) for group in snapshot.rolling],
        "retries": [asdict(prompt) for prompt in snapshot.queue],
        "last_sequence_number": snapshot.last_sequence_number,
        "outcomes": [(number, *outcome) for number, outcome in snapshot.outcomes],
        "prompts": json.loads(snapshot.prompts_json),
        "method": json.loads(snapshot.method_json),
    }


def from_facts(facts: Mapping[str, Any], version: int, accepted: Iterable[AcceptedGroup]) -> SchedulerSnapshot:
    """Return the snapshot that `to_facts` was called with.

    Args:
        facts: The content of controller.json.
        version: The version of the learner's weights.
        accepted: The groups of replay.json, with references to their stored payloads.
    """
    queue = [QueuedPrompt(**fields) for fields in facts["retries"]]
    last_sequence_number = facts["last_sequence_number"]
    for fields in facts.get("replacements", ()):  # Older checkpoints hold them apart, without a place in line.
        last_sequence_number += 1
        queue.append(QueuedPrompt(**{**fields, "sequence_number": last_sequence_number}))
    return SchedulerSnapshot(
        version=version,
        previous_version=facts.get("previous_version", version),  # older checkpoints lack it
        rolling=tuple(_group(fields) for fields in facts["rolling"]),
        accepted=tuple(accepted),
        queue=tuple(queue),
        last_sequence_number=last_sequence_number,
        outcomes=tuple((number, PromptOutcome(*outcome)) for number, *outcome in facts["outcomes"]),
        prompts_json=json.dumps(facts["prompts"]),
        method_json=json.dumps(facts["method"]),
        ledger_mark=Mark.of_json(facts["ledger"]),
    )


def _group(fields: Mapping[str, Any]) -> InFlightGroup:
    return InFlightGroup(**{**fields, "key": GroupKey(*fields["key"])})
