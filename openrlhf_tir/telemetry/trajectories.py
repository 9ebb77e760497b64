"""Sampled trajectories as text: one JSON line each in run_dir/trajectories/ACTOR.jsonl, written by the rollout actor.

run_dir/sampled/ACTOR.jsonl holds the same of a few groups that are not in the share that is kept: of those that the
filters kept, and of those that were dropped or failed. The columns are:

    key row index env prompt label reward parts verdict failed why masked versions update
    advantage what the estimator gives the trajectory: the mean over its tokens, before a whitening over the batch;
             null where only the learner knows it (a critic)
    runs     [{source, text, tokens, versions}]
             who produced each run of tokens: "model" is what a learner trains, "env" never is
             {end} of a model's run: text of the special token that it ended with, "" if it was stopped
             {rendered: true} of an environment's run: it holds special tokens, which a chat template wrote
             {spelled} of a run with special tokens: its text with them, but for a model's end, and with marks
             (inert.py) in ordinary text that spells one; absent if that is `text`
    branches [runs]    other chains of an agent's session, trained with the same reward
    calls    [{action, observation, outcome, reward, done, truncated, signals, seconds}]

`versions` is [oldest, newest] of the policy that sampled the tokens. The ledger says at which step a group was trained,
or why it was not.
"""

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
"""Directory of the kept share."""
SAMPLED_DIRECTORY = "sampled"
"""Directory of the few groups that are kept whatever the share."""
DIRECTORIES = (DIRECTORY, SAMPLED_DIRECTORY, "dropped")
"""All directories with rows; runs before 2026-11-30 have `dropped` in place of `sampled`."""
Special = Callable[[int], str]
"""Returns the text of a special token's id; "" for an ordinary token."""
Spelled = Callable[[Sequence[int]], str]
"""Returns the text of tokens with special tokens, and with marks in ordinary text that spells one."""
Advantages = Callable[[GroupMeta, Group], Sequence[float] | None]
"""Returns the advantage of each valid trajectory of a group, in order; None if only the learner knows them."""
SAMPLED_GROUPS = 8
"""Groups that an actor keeps at first, whatever the share: of each reason to drop or fail one, and of no reason."""
MAX_OF_SAMPLE = 4
"""Trajectories that are kept of such a group."""


class TrajectoryLog:
    """Keeps a share of the groups, the same in every run (the key decides), and a few others.

    Args:
        run_dir: The run directory.
        name: Name of the rollout actor.
        share: Share of the groups that are kept, 0 to 1.
        special: Returns the text of special tokens, which texts leave out.
        sampled: Groups that are kept at first, whatever the share (`_is_sample`).
        advantages: Returns the advantages that are written beside the rewards.
        spelled: Returns the text of runs with special tokens; None leaves it out.
    """

    def __init__(
        self,
        run_dir: Path,
        name: str,
        share: float,
        special: Special = lambda token: "",
        sampled: int = 0,
        advantages: Advantages = lambda meta, group: None,
        spelled: Spelled | None = None,
    ) -> None:
        self.share = share
        self.special = special
        self.spelled = spelled
        self.sampled = sampled
        self.advantages = advantages
        self._candidates: Counter[str] = Counter()
        """Reason -> groups that might have been a sample so far; "" for those that the filters kept."""
        self._newest_update = -1
        """The largest `task.run.update` of a group that the filters kept."""
        self._writer = PatientWriter(run_dir / DIRECTORY / f"{name}.jsonl") if share > 0 else None
        self._sampled_writer = PatientWriter(run_dir / SAMPLED_DIRECTORY / f"{name}.jsonl") if sampled > 0 else None

    def keeps(self, key: GroupKey) -> bool:
        """Return True if the group is one of the share."""
        return zlib.crc32(str(key).encode()) < self.share * 2**32

    def write(self, meta: GroupMeta, group: Group) -> None:
        """Write the trajectories of a group, if it is kept.

        Of a group in the share every trajectory is written, including those that failed; of a sample the first
        MAX_OF_SAMPLE.
        """
        is_sample = self._is_sample(meta, group.task.run.update)  # called for every group, because it counts them
        if self._writer is not None and self.keeps(group.key):
            self._write(self._writer, meta, group, group.trajectories)
        elif self._sampled_writer is not None and is_sample:
            self._write(self._sampled_writer, meta, group, group.trajectories[:MAX_OF_SAMPLE])

    def _write(self, writer: PatientWriter, meta: GroupMeta, group: Group, chosen: Sequence[Trajectory]) -> None:
        values = self.advantages(meta, group)
        advantages = {} if values is None else dict(zip(meta.index, values, strict=False))
        for trajectory in chosen:
            columns = row(meta, group, trajectory, self.special, self.spelled)
            writer.write({**columns, "advantage": _as_json(advantages.get(trajectory.index))})

    def _is_sample(self, meta: GroupMeta, update: int) -> bool:
        """Return True if a group is kept as a sample.

        The first `sampled` groups of a reason to drop or fail one are kept, and as many again each time that their
        count has doubled. Groups that the filters kept are treated alike, but only the first of each update is counted.
        """
        if not self.sampled:
            return False
        reason = meta.failed or ("" if meta.verdict.keep else meta.verdict.reason)
        if not reason:
            if update <= self._newest_update:
                return False
            self._newest_update = update
        count = self._candidates[reason]
        self._candidates[reason] += 1
        stride = 1
        while count >= 2 * self.sampled * stride:
            stride *= 2
        return count % stride == 0

    def close(self) -> None:
        """Close the files."""
        for writer in (self._writer, self._sampled_writer):
            if writer is not None:
                writer.close()


def row(
    meta: GroupMeta,
    group: Group,
    trajectory: Trajectory,
    special: Special = lambda token: "",
    spelled: Spelled | None = None,
) -> dict[str, Any]:
    """Return the columns of a trajectory, except its advantage."""
    return {
        "key": list(group.key),
        "row": group.task.row,
        "index": trajectory.index,
        "prompt": group.task.prompt,
        "label": group.task.label,
        "env": group.task.env,
        "update": group.task.run.update,
        "reward": trajectory.reward,
        "parts": _as_json(trajectory.parts),
        "verdict": meta.verdict.reason,
        "failed": trajectory.failed or meta.failed,
        "why": trajectory.why or meta.why.get(meta.failed or "", ""),
        "masked": trajectory.masked,
        "finish_reason": trajectory.finish_reason,
        "stop_reason": trajectory.stop_reason,
        "versions": _versions(trajectory.segments),
        "runs": _runs(trajectory, special, spelled),
        "branches": [_runs(branch, special, spelled) for branch in trajectory.branches],
        "calls": [_as_json(asdict(call)) for call in trajectory.calls],
    }


def _runs(trajectory: Trajectory, special: Special, spelled: Spelled | None) -> list[dict[str, Any]]:
    return [
        {
            "source": segment.source,
            "text": segment.text,
            "tokens": len(segment.token_ids),
            "versions": _versions([segment]),
            **_specials(segment, special, spelled),
        }
        for segment in trajectory.segments
    ]


def _specials(segment: Segment, special: Special, spelled: Spelled | None) -> dict[str, Any]:
    ids = segment.token_ids.tolist()
    columns: dict[str, Any] = {}
    if segment.source == "model":
        columns["end"] = special(ids[-1]) if ids else ""
        if columns["end"]:
            ids = ids[:-1]
    if any(map(special, ids)):
        if segment.source == "env":
            columns["rendered"] = True
        if spelled is not None and (text := spelled(ids)) != segment.text:
            columns["spelled"] = text
    return columns


def _versions(segments: list[Segment]) -> list[int] | None:
    """Return [oldest, newest] version of the sampled tokens; None if there are none."""
    sampled = [segment.versions for segment in segments if segment.source == "model" and len(segment.versions)]
    if not sampled:
        return None
    return [int(min(versions.min() for versions in sampled)), int(max(versions.max() for versions in sampled))]


def _as_json(value: Any) -> Any:
    """Return a value as JSON can hold it. An environment's signals may be anything."""
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


def read(run_dir: Path, directory: str = DIRECTORY) -> Iterator[dict[str, Any]]:
    """Yield every row that the run kept in `directory`, actor by actor. Lines that are not rows are left out, with a
    warning."""
    for path in sorted((Path(run_dir) / directory).glob("*.jsonl")):
        yield from read_rows(path, _is_row)


def _is_row(row: dict[str, Any]) -> bool:
    return isinstance(row.get("key"), list) and "failed" in row
