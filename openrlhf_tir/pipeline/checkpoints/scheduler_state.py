"""A scheduler's snapshot <-> the facts that controller.json holds of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...config import Config
from ...replay.lines import Mark
from ...types import GroupKey, PromptOutcome
from ..scheduler.groups import AcceptedGroup, InFlightGroup, QueuedPrompt, SchedulerSnapshot

FORMER_GROUP = "Flight"
"""What an `InFlightGroup` was called in checkpoints written before the scheduler was one class."""
_FORMER_FIELDS = {"dispatch": "sequence_number", "reissues": "retries", "env": "environment", "instead": "replacements"}
"""Field of a `Flight` -> field of an `InFlightGroup`."""


def to_facts(snapshot: SchedulerSnapshot, settings: Config) -> dict[str, Any]:
    """Return the facts of a snapshot as JSON can hold them. The accepted groups are stored apart (stored.py).

    `max_staleness`, `updates_per_batch`, `batch_size` and `world_size` are there to be compared by a resume: the
    snapshot's books only make sense with the same ones (lineage.py).
    """
    return {
        "version": snapshot.version,
        "max_staleness": settings.max_staleness,
        "updates_per_batch": settings.updates_per_batch,
        "batch_size": settings.rollout.batch_size,
        "world_size": settings.actor.world_size,
        "ledger": asdict(snapshot.ledger_mark),
        "rolling": [asdict(group) for group in snapshot.rolling],
        "retries": [asdict(prompt) for prompt in snapshot.retries],
        "replacements": [asdict(prompt) for prompt in snapshot.replacements],
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
    facts = _upgraded(facts)
    return SchedulerSnapshot(
        version=version,
        rolling=tuple(_group(fields) for fields in facts["rolling"]),
        accepted=tuple(accepted),
        retries=tuple(QueuedPrompt(**fields) for fields in facts["retries"]),
        replacements=tuple(QueuedPrompt(**fields) for fields in facts["replacements"]),
        last_sequence_number=facts["last_sequence_number"],
        outcomes=tuple((number, PromptOutcome(*outcome)) for number, *outcome in facts["outcomes"]),
        prompts_json=json.dumps(facts["prompts"]),
        method_json=json.dumps(facts["method"]),
        ledger_mark=Mark.of_json(facts["ledger"]),
    )


def renamed_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a stored `Flight` under the names of an `InFlightGroup`."""
    return {_FORMER_FIELDS.get(name, name): value for name, value in fields.items()}


def _group(fields: Mapping[str, Any]) -> InFlightGroup:
    return InFlightGroup(**{**fields, "key": GroupKey(*fields["key"])})


def _upgraded(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return facts of the former format, which kept the queues under "source", in the present one."""
    if "source" not in facts:
        return facts
    source = facts["source"]
    return {
        **facts,
        "rolling": [renamed_fields(fields) for fields in facts["rolling"]],
        "retries": _queued(source["retries"], ("epoch", "prompt", "retries", "sequence_number", "replacements")),
        "replacements": _queued(source["instead"], ("epoch", "prompt", "replacements")),
        "last_sequence_number": source["dispatched"],
        "outcomes": source["ended"],
        "prompts": source["stream"],
    }


def _queued(rows: Iterable[Sequence[Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    return [dict(zip(names, row, strict=True)) for row in rows]
