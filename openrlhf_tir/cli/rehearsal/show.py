"""The result of a rehearsal as lines of text: the first prompt, one episode by who wrote it, the faults."""

from __future__ import annotations

from collections.abc import Iterator

from ...telemetry.printable import printable
from ...types import CORRECT_ABOVE, Group, Trajectory
from .result import Fault, Rehearsal

PROMPT_CHARS = 1200
"""Characters of the first prompt that are shown."""
SEGMENT_CHARS = 300
"""Characters of a segment that are shown."""
MAX_EPISODES = 3
"""Episodes that are named with a fault."""


def lines_of(result: Rehearsal) -> Iterator[str]:
    """Yield the lines that `--check-only` prints: for each environment its first prompt and an episode."""
    for name, group in result.groups.items():
        prompt = _shortened(printable(group.task.prompt), PROMPT_CHARS)
        tokens = len(group.trajectories[0].prompt_ids)
        yield f"first prompt of environment {name}, {tokens} tokens, label {_shortened(repr(group.task.label), 80)}:"
        yield from (f"  | {line}" for line in prompt.splitlines())
        shown = _most_telling(group)
        yield f"an episode, {result.scripts[name][shown.index]!r}:"
        yield from (f"  {line}" for line in episode_lines(shown))
        yield from (f"  {line}" for line in _table(group, result.scripts[name]))
    yield from result.notes


def episode_lines(trajectory: Trajectory) -> Iterator[str]:
    """Yield who wrote what, whether it is trained, and how many tokens that is."""
    for segment in trajectory.segments:
        by_model = segment.source == "model"
        author = "trained  model       " if by_model else "masked   environment "
        text = _shortened(repr(printable(segment.text)), SEGMENT_CHARS)
        yield f"{author} {len(segment.token_ids):5d} tokens  {text}"
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
        more = f" and {len(fault.during) - MAX_EPISODES} more" if len(fault.during) > MAX_EPISODES else ""
        yield f"{number}. in {'; '.join(fault.during[:MAX_EPISODES])}{more}:"
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
            right = "right" if trajectory.parts.get("correct", 0.0) > CORRECT_ABOVE else "wrong"
            judged = f"{trajectory.scored:8.4g}  {right}"
        counts = f"{len(trajectory.calls):2d} calls {trained:6d} {masked:5d}"
        yield f"{judged:16s} {counts}  {_shortened(titles[trajectory.index], 70)}"


def _most_telling(group: Group) -> Trajectory:
    """Return the valid episode that shows most: not cut by a limit, with calls, of a high reward."""
    valid = [trajectory for trajectory in group.trajectories if not trajectory.failed] or group.trajectories
    return max(
        valid,
        key=lambda trajectory: (
            trajectory.finish_reason != "length",
            bool(trajectory.calls),
            trajectory.reward or 0.0,
            -trajectory.index,
        ),
    )


def _shortened(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 20]} [... {len(text) - max_chars + 20} more]"
