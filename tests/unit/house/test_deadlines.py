"""No wait on another process without a deadline: every call that crosses to one, read from the source, and what bounds
it.

A crossing call must stand inside the arguments of a GUARD, or in the body of a guarding `async with`, or in a function
that is itself only called there, or be given a name that a guard gets. What is left is in EXEMPT, with what bounds it
instead."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
ROOMS = ("cluster", "engines", "weights")

GUARDS = {"within", "_tell", "_await", "_all"}
"""deadlines.within, and what calls it: EngineHandle._await, LearnerGroup._all. Each takes the awaitable itself. What
calls an engine needs no check: EngineHandle.call takes no call without a deadline."""
GUARDING_BLOCKS = {"timeout", "timeout_at", "_or_break"}
"""asyncio's, and VllmEngine's for the steps of a push."""

EXEMPT = {
    "cluster/peer_engine.py abort": "a message whose answer nobody waits for",
    "cluster/services.py replace_learner": "LearnerGroup.stop only kills: it waits for nobody",
    "engines/openai_app.py openai_app": "part of an actor's start: timeouts.start_s",
    "engines/openai_app.py generate": (
        "a client's own request, cancelled when it leaves; VllmEngine.alive watches the engine's progress"
    ),
    "engines/vllm_engine.py init_transfer": "part of an actor's start: timeouts.start_s",
    "engines/vllm_requests.py _final_output": (
        "an answer takes as long as its tokens: rollout.group_deadline_s, and VllmEngine.alive watches the progress"
    ),
    "engines/vllm_engine.py _pause_vllm": "part of _switch",
    "engines/vllm_engine.py _switch": "part of a push (EngineHandle: timeouts.push_s), or an HTTP client's own request",
    "engines/vllm_requests.py abort_all": (
        "a message without an answer; part of a push or of the end, both bounded in EngineHandle"
    ),
    "weights/broadcast/transport.py _broadcast": (
        "LearnerGroup.broadcast: timeouts.learner_s, and within it a tenth of timeouts.push_s for each bucket"
    ),
    "weights/broadcast/transport.py _end_if_faulty": "LearnerGroup.end_broadcast: a tenth of timeouts.push_s",
    "weights/ipc/transport.py _try": "LearnerGroup.expose_trial: timeouts.learner_s",
    "weights/ipc/transport.py _exposed": "LearnerGroup.expose: timeouts.learner_s",
    "weights/file_transport.py take": "LearnerGroup.publish: timeouts.learner_s",
    "weights/file_transport.py write_full": "LearnerGroup.publish: timeouts.learner_s",
    "weights/file_transport.py _write_delta": "LearnerGroup.publish_changes: timeouts.learner_s",
    "weights/publisher.py _learner_scores": "LearnerGroup.score: timeouts.learner_s",
}
"""File and function -> what bounds its calls."""


def dotted(node: ast.expr) -> str:
    return ast.unparse(node)


def crosses(call: ast.Call) -> bool:
    """Whether the call's answer comes from another process."""
    f = call.func
    if not isinstance(f, ast.Attribute):
        return False
    receiver = dotted(f.value)
    if f.attr == "remote":
        method = f.value
        if isinstance(method, ast.Call) and isinstance(method.func, ast.Attribute) and method.func.attr == "options":
            method = method.func.value
        return isinstance(method, ast.Attribute)  # a method of a handle; a class that is started has no attribute here
    if receiver == "ray" and f.attr in ("get", "wait"):
        return not any(k.arg == "timeout" for k in call.keywords)
    if f.attr == "ready" and "group" in receiver:
        return True
    if receiver in ("self._llm", "llm", "self._llm.engine_core"):
        return f.attr not in ("get_num_unfinished_requests", "shutdown")
    return receiver == "self.learner"


class Calls(ast.NodeVisitor):
    """The crossing calls of one file that nothing bounds: {function: [line, ...]}."""

    def __init__(self) -> None:
        self.guarded = 0
        self.function = "<module>"
        self.open: dict[str, list[int]] = {}
        self.named: dict[tuple[str, str], tuple[str, int]] = {}
        self.given: set[tuple[str, str]] = set()
        self.called: dict[str, list[bool]] = {}
        """Function of this file -> for each of its calls: was it inside a guard?"""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef | ast.FunctionDef) -> None:
        outer, self.function, guarded, self.guarded = self.function, node.name, self.guarded, 0
        self.generic_visit(node)
        self.function, self.guarded = outer, guarded

    visit_FunctionDef = visit_AsyncFunctionDef

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        guarding = any(_name(item.context_expr) in GUARDING_BLOCKS for item in node.items)
        self.guarded += guarding
        self.generic_visit(node)
        self.guarded -= guarding

    def visit_Assign(self, node: ast.Assign) -> None:
        names = [n.id for t in node.targets for n in ast.walk(t) if isinstance(n, ast.Name)]
        if isinstance(node.value, ast.Call) and crosses(node.value) and not self.guarded:
            for name in names:
                self.named[self.function, name] = (self.function, node.lineno)
            self._arguments(node.value)
            return
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if crosses(node) and not self.guarded:
            self.open.setdefault(self.function, []).append(node.lineno)
        name = _name(node)
        self.called.setdefault(name, []).append(bool(self.guarded))
        self.guarded += name in GUARDS
        if self.guarded:
            self.given |= {(self.function, n.id) for a in node.args for n in ast.walk(a) if isinstance(n, ast.Name)}
        self._arguments(node)
        self.guarded -= name in GUARDS

    def _arguments(self, node: ast.Call) -> None:
        self.generic_visit(node)

    def unbounded(self) -> dict[str, list[int]]:
        lines = {f: list(ls) for f, ls in self.open.items()}
        groups: dict[tuple[str, int], list[bool]] = {}
        for key, place in self.named.items():
            groups.setdefault(place, []).append(key in self.given)
        for (function, line), given in groups.items():
            if not any(given):
                lines.setdefault(function, []).append(line)
        return {f: sorted(ls) for f, ls in lines.items() if not (self.called.get(f) and all(self.called[f]))}


def _name(node: ast.expr) -> str:
    f = node.func if isinstance(node, ast.Call) else node
    return f.attr if isinstance(f, ast.Attribute) else f.id if isinstance(f, ast.Name) else ""


def unbounded(source: str) -> dict[str, list[int]]:
    calls = Calls()
    calls.visit(ast.parse(source))
    return calls.unbounded()


def files() -> list[Path]:
    rooms = [*(REPO / "openrlhf_tir" / room for room in ROOMS), REPO / "miniatures"]
    return sorted(path for room in rooms for path in room.rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(REPO)))
def test_every_call_to_another_process_has_a_deadline(path):
    where = path.relative_to(REPO).as_posix().removeprefix("openrlhf_tir/")
    for function, lines in unbounded(path.read_text()).items():
        assert f"{where} {function}" in EXEMPT, (
            f"{where}:{lines[0]}: {function} waits for another process without a deadline. Give the awaitable to"
            " deadlines.within, use EngineHandle.call, or say in EXEMPT what bounds it."
        )


@pytest.mark.slow
def test_no_exemption_has_outlived_its_call():
    found = {
        f"{p.relative_to(REPO / 'openrlhf_tir').as_posix()} {f}" for p in files() for f in unbounded(p.read_text())
    }
    assert EXEMPT.keys() <= found, f"nothing to exempt any more: {sorted(EXEMPT.keys() - found)}"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("await self.actor.step.remote(1)", True),
        ("x = await asyncio.gather(*[r.step.remote(1) for r in ranks])", True),
        ("ref = self.actor.step.remote(1)\n    await ref", True),
        ("ray.get(x)", True),
        ("await group.ready()", True),
        ("await self._llm.pause_generation()", True),
        ("self.learner.score(x)", True),
        ("await within(deadline, self.actor.step.remote(1), 'a step')", False),
        ("await self._all([r.step.remote(1) for r in ranks], 'step', 'timeouts.learner_s')", False),
        (
            (
                "ref, payload = self.actor.step.options(num_returns=2).remote(1)\n    await within(deadline, ref,"
                " 'a group')"
            ),
            False,
        ),
        ("ray.get(x, timeout=5)", False),
        ("actor = ray.remote(cls).options(num_cpus=1).remote(0)", False),
        ("async with asyncio.timeout(5):\n        await self._llm.pause_generation()", False),
        ("await within(deadline, helper(ref), 'x')\n\nasync def helper(ref):\n    await group.ready()", False),
        ("await helper(ref)\n\nasync def helper(ref):\n    await group.ready()", True),
    ],
)
def test_the_check_sees_what_waits_and_what_bounds_it(body, found):
    assert bool(unbounded(f"async def f(self):\n    {body}\n")) == found
