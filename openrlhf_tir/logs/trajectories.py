"""Trajectories: what was sampled, as text, one line of JSON each -> run_dir/trajectories/ACTOR.jsonl. Written by the
actor that rolled them.

    key row index prompt label reward parts verdict failed why masked versions update
    runs     [{source, text, tokens, versions}]
             who produced each run of tokens: "model" is what a learner trains, "env" never is
             {end} of a model's: text of the special token that it ended with, "" where it was stopped
             {rendered: true} of an environment's: it holds special tokens, which a chat template wrote
    branches [runs]    other chains of an agent's session, trained with the same reward
    calls    [{action, observation, outcome, reward, done, truncated, signals, seconds}]

`versions` is [oldest, newest] of the policy that sampled the tokens. The ledger says at which step a group was trained,
or why it was not."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..types import Group, GroupKey, GroupMeta, Segment, Trajectory
from .jsonl import PatientWriter, read_rows

DIRECTORY = "trajectories"
Special = Callable[[int], str]
"""The text of a special token's id, "" of an ordinary one's."""


class TrajectoryLog:
    """Keeps a share of groups, the same in every run: the key decides. `special` tells what texts leave out."""

    def __init__(self, run_dir: Path, name: str, share: float, special: Special = lambda token: "") -> None:
        self.share, self.special = share, special
        self._writer = PatientWriter(run_dir / DIRECTORY / f"{name}.jsonl") if share > 0 else None

    def keeps(self, key: GroupKey) -> bool:
        return zlib.crc32(str(key).encode()) < self.share * 2**32

    def write(self, meta: GroupMeta, group: Group) -> None:
        """Every trajectory of the group, those that failed too. Does nothing when the group is none of those kept."""
        if self._writer is not None and self.keeps(group.key):
            for trajectory in group.trajectories:
                self._writer.write(row(meta, group, trajectory, self.special))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def row(meta: GroupMeta, group: Group, t: Trajectory, special: Special = lambda token: "") -> dict[str, Any]:
    return {
        "key": list(group.key),
        "row": group.task.row,
        "index": t.index,
        "prompt": group.task.prompt,
        "label": group.task.label,
        "env": group.task.env,
        "update": group.task.run.update,
        "reward": t.reward,
        "parts": _plain(t.parts),
        "verdict": meta.verdict.reason,
        "failed": t.failed or meta.failed,
        "why": t.why or meta.why.get(meta.failed or "", ""),
        "masked": t.masked,
        "finish_reason": t.finish_reason,
        "stop_reason": t.stop_reason,
        "versions": _versions(t.segments),
        "runs": _runs(t, special),
        "branches": [_runs(b, special) for b in t.branches],
        "calls": [_plain(asdict(c)) for c in t.calls],
    }


def _runs(t: Trajectory, special: Special) -> list[dict[str, Any]]:
    return [
        {
            "source": s.source,
            "text": s.text,
            "tokens": len(s.token_ids),
            "versions": _versions([s]),
            **_specials(s, special),
        }
        for s in t.segments
    ]


def _specials(s: Segment, special: Special) -> dict[str, Any]:
    if s.source == "model":
        return {"end": special(int(s.token_ids[-1])) if len(s.token_ids) else ""}
    return {"rendered": True} if any(special(int(i)) for i in s.token_ids) else {}


def _versions(segments: list[Segment]) -> list[int] | None:
    """[oldest, newest] of the sampled tokens; None without any."""
    sampled = [s.versions for s in segments if s.source == "model" and len(s.versions)]
    return [int(min(v.min() for v in sampled)), int(max(v.max() for v in sampled))] if sampled else None


def _plain(value: Any) -> Any:
    """As JSON can hold it: an environment's signals may be anything that it said."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def read(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Every row that the run has kept, actor by actor. A line that is none is left out and said."""
    for path in sorted((Path(run_dir) / DIRECTORY).glob("*.jsonl")):
        yield from read_rows(path)
