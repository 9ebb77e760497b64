"""Show: what a rehearsal saw, as lines of text: the first prompt, one episode by who wrote it, the faults."""

from __future__ import annotations

from collections.abc import Iterator

from ...logs.printable import printable
from ...types import Group, Trajectory
from .result import Fault, Rehearsal

PROMPT_CHARS = 1200
"""Characters of the first prompt that are shown."""
SEGMENT_CHARS = 300
"""Characters of a segment that are shown."""
DURING = 3
"""Episodes that are named with a fault."""


def lines_of(found: Rehearsal) -> Iterator[str]:
    """Yield the lines that `--check-only` prints: for each environment its first prompt and an episode."""
    for name, group in found.groups.items():
        prompt = _shortened(printable(group.task.prompt), PROMPT_CHARS)
        tokens = len(group.trajectories[0].prompt_ids)
        yield f"first prompt of environment {name}, {tokens} tokens, label {_shortened(repr(group.task.label), 80)}:"
        yield from (f"  | {line}" for line in prompt.splitlines())
        shown = _most_telling(group)
        yield f"an episode, {found.scripts[name][shown.index]!r}:"
        yield from (f"  {line}" for line in episode_lines(shown))
        yield from (f"  {line}" for line in _table(group, found.scripts[name]))
    yield from found.notes


def episode_lines(trajectory: Trajectory) -> Iterator[str]:
    """Yield who wrote what, whether it is trained, and how many tokens that is."""
    for segment in trajectory.segments:
        own = segment.source == "model"
        who = "trained  model       " if own else "masked   environment "
        text = _shortened(repr(printable(segment.text)), SEGMENT_CHARS)
        yield f"{who} {len(segment.token_ids):5d} tokens  {text}"
    trained = int(trajectory.is_model.sum())
    masked = trajectory.response_tokens - trained
    reward = "none" if trajectory.reward is None else f"{trajectory.reward:g}"
    yield (
        f"{trained} tokens trained, {masked} masked; {len(trajectory.calls)} calls; reward {reward}; ended by"
        f" {trajectory.stop_reason or trajectory.finish_reason!r}"
    )


def fault_lines(faults: list[Fault]) -> Iterator[str]:
    """Yield each fault with the episodes in which it showed, and the traceback of the user's code."""
    for number, fault in enumerate(faults, 1):
        more = f" and {len(fault.during) - DURING} more" if len(fault.during) > DURING else ""
        yield f"{number}. in {'; '.join(fault.during[:DURING])}{more}:"
        if fault.traceback:
            yield from (f"   {line}" for line in printable(fault.traceback).splitlines())
        yield f"   {printable(fault.words)}"


def _table(group: Group, titles: list[str]) -> Iterator[str]:
    yield "all episodes: reward, correct, calls, tokens trained and masked"
    for trajectory in group.trajectories:
        trained = int(trajectory.is_model.sum())
        masked = trajectory.response_tokens - trained
        if trajectory.failed:
            judged = f"failed ({trajectory.failed})"
        else:
            right = "right" if trajectory.parts.get("correct", 0.0) > 0.5 else "wrong"
            judged = f"{trajectory.scored:8.4g}  {right}"
        counts = f"{len(trajectory.calls):2d} calls {trained:6d} {masked:5d}"
        yield f"{judged:16s} {counts}  {_shortened(titles[trajectory.index], 70)}"


def _most_telling(group: Group) -> Trajectory:
    """The valid episode with the most text of the environment, short of those that a limit cut."""
    valid = [t for t in group.trajectories if not t.failed] or group.trajectories
    return max(valid, key=lambda t: (t.finish_reason != "length", bool(t.calls), t.reward or 0.0, -t.index))


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 20]} [... {len(text) - most + 20} more]"
