"""Trajectories: what was sampled, as text, one line of JSON each -> run_dir/trajectories/ACTOR.jsonl. Written by the
actor that rolled them. run_dir/dropped/ACTOR.jsonl holds the same of some groups that were dropped or failed and are
not in the share that is kept (`logger.dropped`).

    key row index env prompt label reward parts verdict failed why masked versions update
    advantage what the estimator gives the trajectory, a mean over its tokens, before a whitening over the batch; null
             where only the learner knows it (a critic)
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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..types import Group, GroupKey, GroupMeta, Segment, Trajectory
from .jsonl import PatientWriter, read_rows

DIRECTORY = "trajectories"
DROPPED_DIRECTORY = "dropped"
Special = Callable[[int], str]
"""The text of a special token's id, "" of an ordinary one's."""


Advantages = Callable[[GroupMeta, Group], Sequence[float] | None]
"""The advantage of each valid trajectory of a group, in order; None where only the learner knows."""
MAX_OF_SAMPLE = 4
"""Trajectories of a group that is kept as a sample only."""


class TrajectoryLog:
    """Keeps a share of groups, the same in every run (the key decides), and a few of those that are never trained.

    Args:
        share: Share of the groups that are kept, 0 to 1.
        special: Tells what texts leave out.
        dropped: Groups of each reason that are kept when they were dropped or failed, whatever the share.
        advantages: Gives the advantages that are written beside the rewards.
    """

    def __init__(
        self,
        run_dir: Path,
        name: str,
        share: float,
        special: Special = lambda token: "",
        dropped: int = 0,
        advantages: Advantages = lambda meta, group: None,
    ) -> None:
        self.share = share
        self.special = special
        self.dropped = dropped
        self.advantages = advantages
        self._untrained: Counter[str] = Counter()
        """Reason -> groups that were dropped or failed."""
        self._writer = PatientWriter(run_dir / DIRECTORY / f"{name}.jsonl") if share > 0 else None
        self._of_dropped = PatientWriter(run_dir / DROPPED_DIRECTORY / f"{name}.jsonl") if dropped > 0 else None

    def keeps(self, key: GroupKey) -> bool:
        """Return True if the group is one of the share."""
        return zlib.crc32(str(key).encode()) < self.share * 2**32

    def write(self, meta: GroupMeta, group: Group) -> None:
        """Every trajectory of a group that is kept, those that failed too; the first ones of a sample of the dropped.
        Does nothing when the group is neither."""
        is_sample = self._is_sample(meta)  # counts every group, the share's too
        if self._writer is not None and self.keeps(group.key):
            self._write(self._writer, meta, group, group.trajectories)
        elif self._of_dropped is not None and is_sample:
            self._write(self._of_dropped, meta, group, group.trajectories[:MAX_OF_SAMPLE])

    def _write(self, writer: PatientWriter, meta: GroupMeta, group: Group, chosen: Sequence[Trajectory]) -> None:
        given = self.advantages(meta, group)
        advantages = {} if given is None else dict(zip(meta.index, given, strict=False))
        for trajectory in chosen:
            facts = row(meta, group, trajectory, self.special)
            writer.write({**facts, "advantage": _plain(advantages.get(trajectory.index))})

    def _is_sample(self, meta: GroupMeta) -> bool:
        """Whether a group that was dropped or failed is kept: the first `dropped` of its reason, and of the later ones
        as many each time that the count has doubled."""
        reason = meta.failed or ("" if meta.verdict.keep else meta.verdict.reason)
        if not reason or not self.dropped:
            return False
        count = self._untrained[reason]
        self._untrained[reason] += 1
        stride = 1
        while count >= 2 * self.dropped * stride:
            stride *= 2
        return count % stride == 0

    def close(self) -> None:
        for writer in (self._writer, self._of_dropped):
            if writer is not None:
                writer.close()


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


def read(run_dir: Path, directory: str = DIRECTORY) -> Iterator[dict[str, Any]]:
    """Every row that the run has kept in `directory`, actor by actor. A line that is none is left out and said."""
    for path in sorted((Path(run_dir) / directory).glob("*.jsonl")):
        yield from read_rows(path)
