"""Play: a task and all that the model has called so far -> the results of its last step, and the grade. Pure: it begins
anew each time.

So a session holds no instances, only calls; a step runs in a worker process that can be killed; and what is graded is
what the package grades. A turn passes as in the package's `multi_turn_checker`: with true calls, something was called,
every public attribute of every instance is as after the true calls of this and earlier turns, and each result of this
turn's true calls is among all results so far. A turn without true calls passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from env_servers.actions import cut_to_reply
from openrlhf_tir.data.bfcl.functions import FILES

from .task import Call
from .world import Made, Scene, World, differing

Turn = Sequence[Sequence[Call]]
"""The steps of a turn, each the calls of one action."""


@dataclass(frozen=True, slots=True)
class Played:
    """`text`: the results of the last step, a line for each call; `errors`: what was wrong with those of its calls that
    went wrong.

    `failed`: of each turn that is over, why it did not pass, None where it did (the package's error types, without
    their prefix). `state_match` of `state_total` attributes are as after all true calls; `functions_matched` of
    `functions_total` true calls were made."""

    text: str
    errors: list[str]
    failed: list[str | None]
    state_match: int
    state_total: int
    functions_matched: int
    functions_total: int


def play(scene: Scene, turns: Sequence[Turn], over: int) -> Played:
    """`turns`: all begun, the first `over` of them ended. Raises ValueError for a scene that cannot be made."""
    world = World(scene)
    gold = World(scene)
    failed: list[str | None] = []
    so_far: Counter[str] = Counter()
    called: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    results: list[Made] = []
    for i, true in enumerate(scene.gold):
        turn = turns[i] if i < len(turns) else ()
        for step in turn:
            results = [world.call(c) for c in step]
            so_far.update(m.result for m in results)
            called.update(m.key for m in results if m.key)
        truth = [gold.call(c) for c in true]
        expected.update(str(m.key) for m in truth)
        if i < over:
            failed.append(_failure(turn, truth, so_far, world, gold))
    total, differ = differing(world, gold)
    text = _shown([m.result for m in results])
    errors = [m.error for m in results if m.error]
    return Played(text, errors, failed, total - differ, total, (called & expected).total(), expected.total())


def _failure(turn: Turn, truth: Sequence[Made], so_far: Counter[str], world: World, gold: World) -> str | None:
    if not truth:
        return None
    if not turn:
        return "empty_turn_model_response"
    if differing(world, gold)[1]:
        return "instance_state_mismatch"
    missing = Counter(m.result for m in truth) - so_far
    return "execution_response_mismatch" if missing else None


def _shown(results: Sequence[str]) -> str:
    """Cut at what a reply can hold, before it leaves the process; what is graded is whole."""
    return cut_to_reply("\n".join(results))


def load() -> None:
    """Import the classes once, in a worker that starts."""
    World(Scene(tuple(FILES), {}, False, ()))
