"""Replay everything that the model has called in a task, and return the results of its last step and the grade.

A pure function: it replays all calls each time. So a session holds no instances, only calls; a step runs in a worker
process that can be killed; and exactly what the package grades is graded. A turn passes as in the package's
`multi_turn_checker`: if it has true calls, something was called, every public attribute of every instance is as after
the true calls of this and earlier turns, and each result of this turn's true calls is among all results so far. A turn
without true calls passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from env_servers.actions import cut_to_reply
from openrlhf_tir.data.bfcl.functions import FILES

from .task import Call
from .world import CallResult, Scene, World, differing

Turn = Sequence[Sequence[Call]]
"""The steps of a turn; a step is the calls of one action."""


@dataclass(frozen=True, slots=True)
class Played:
    """Result of a replay.

    Attributes:
        text: The results of the last step, a line for each call.
        errors: Error types of those calls of the last step that failed.
        failed: For each turn that has ended, why it did not pass (the package's error types, without their prefix);
            None if it passed.
        state_match: Number of attributes that are as after all true calls.
        state_total: Number of attributes.
        functions_matched: Number of true calls that were made.
        functions_total: Number of true calls.
    """

    text: str
    errors: list[str]
    failed: list[str | None]
    state_match: int
    state_total: int
    functions_matched: int
    functions_total: int


def play(scene: Scene, turns: Sequence[Turn], ended_turns: int) -> Played:
    """Replay a task.

    Args:
        scene: The task.
        turns: All turns that have begun.
        ended_turns: How many of them have ended, and are graded.

    Raises:
        ValueError: The scene cannot be created.
    """
    world = World(scene)
    gold = World(scene)
    failed: list[str | None] = []
    results_so_far: Counter[str] = Counter()
    called: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    last_results: list[CallResult] = []
    for i, true_calls in enumerate(scene.gold):
        turn = turns[i] if i < len(turns) else ()
        for step in turn:
            last_results = [world.call(call) for call in step]
            results_so_far.update(call.result for call in last_results)
            called.update(call.key for call in last_results if call.key)
        true_results = [gold.call(call) for call in true_calls]
        expected.update(str(call.key) for call in true_results)
        if i < ended_turns:
            failed.append(_failure(turn, true_results, results_so_far, world, gold))
    total, different = differing(world, gold)
    return Played(
        # cut before it leaves the process; the grade is of the whole results
        text=cut_to_reply("\n".join(call.result for call in last_results)),
        errors=[call.error for call in last_results if call.error],
        failed=failed,
        state_match=total - different,
        state_total=total,
        functions_matched=(called & expected).total(),
        functions_total=expected.total(),
    )


def _failure(
    turn: Turn, true_results: Sequence[CallResult], results_so_far: Counter[str], world: World, gold: World
) -> str | None:
    """Return why a turn does not pass; None if it does."""
    if not true_results:
        return None
    if not turn:
        return "empty_turn_model_response"
    if differing(world, gold)[1]:
        return "instance_state_mismatch"
    missing = Counter(call.result for call in true_results) - results_so_far
    return "execution_response_mismatch" if missing else None


def load() -> None:
    """Import the classes once, in a worker that starts."""
    World(Scene(tuple(FILES), {}, False, ()))
