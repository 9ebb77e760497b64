"""Method state: what a run keeps for its method, in the controller and in its checkpoints.

counters      the numbers that rewards read and ask to be changed (rewards/context.py); told with each group that is
              issued. What the groups of a batch ask for counts from the next batch on, in the order of dispatch
length balance    the lengths of the latest kept groups, for ZeroTIR's filter over many groups
errors        groups that failed by the method's own code; not kept over a resume
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..config import Config
from ..config.environments import one
from ..filters import LENGTH_BALANCE
from ..filters.zerotir import length_balance
from ..types import CounterUpdate, GroupMeta, RunFacts, Task, Verdict
from .method_errors import MethodErrors

HOW: dict[str, Callable[[float | None, float], float]] = {
    "add": lambda old, value: (old or 0.0) + value,
    "lowest": lambda old, value: value if old is None else min(old, value),
    "highest": lambda old, value: value if old is None else max(old, value),
}


class Counters:
    """Run-wide and per prompt; a prompt's index is stable over epochs and resumes."""

    def __init__(self) -> None:
        self.run: dict[str, float] = {}
        self.prompts: dict[int, dict[str, float]] = {}

    def apply(self, prompt: int, changes: list[CounterUpdate]) -> None:
        for change in changes:
            scope = self.run if change.scope == "run" else self.prompts.setdefault(prompt, {})
            scope[change.name] = HOW[change.how](scope.get(change.name), change.value)


class MethodState:
    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.counters = Counters()
        self.errors = MethodErrors(cfg.reward.max_failed_groups, cfg.train.max_user_code_failures)
        self._balanced = {name: LENGTH_BALANCE in e.filter.order for name, e in cfg.environments.items()}
        self._lengths: OrderedDict[str, list[tuple[int, float]]] = OrderedDict()
        self._ended: list[tuple[int, int, list[CounterUpdate]]] = []
        """(sequence number, prompt, updates) of the groups that ended since the last batch was trained."""

    def placed(self, task: Task, prompt: int, update: int) -> Task:
        """The task with what the run knows now; copies, since the counters go on changing."""
        facts = RunFacts(
            update, self.cfg.train.max_steps, dict(self.counters.run), dict(self.counters.prompts.get(prompt, {}))
        )
        return replace(task, run=facts)

    def settled(self, meta: GroupMeta | None) -> None:
        """A group was judged: its verdict may become that of the filter over many groups. Raises MethodBroken."""
        self.errors.settled(meta)
        if meta is None or meta.failed is not None:
            return
        if one(self._balanced, meta.env) and meta.verdict.keep and not self._balances(meta):
            meta.verdict = Verdict(False, LENGTH_BALANCE)

    def looks_at_others(self, meta: GroupMeta) -> bool:
        """Return True if the verdict on this group depends on the groups that were judged before it."""
        return meta.failed is None and meta.verdict.keep and one(self._balanced, meta.env)

    def ended(self, dispatch: int, meta: GroupMeta) -> None:
        """Record that a group was filtered or trained: the changes that it asks for count from the next batch on.

        (A group that is accepted may still be issued again, so it does not count yet.)
        """
        if meta.changes:
            self._ended.append((dispatch, meta.key.prompt, list(meta.changes)))

    def batch_trained(self) -> None:
        """Apply the changes of the groups that ended since the last batch, in the order of dispatch.

        Called at a step boundary: without staleness what a reward reads must not depend on which group ended first,
        and a sum of floats depends on the order of its terms.
        """
        self.errors.updated = True
        ended, self._ended = sorted(self._ended, key=lambda entry: entry[0]), []
        for _, prompt, changes in ended:
            self.counters.apply(prompt, changes)

    def forgets(self, meta: GroupMeta) -> None:
        """A group that was accepted is issued again."""
        self._lengths.pop(str(meta.key), None)

    def _balances(self, meta: GroupMeta) -> bool:
        """Whether one of the group is in a bin of lengths with right answers, in the latest batch of kept groups."""
        key = str(meta.key)
        self._lengths[key] = [(n, float(c)) for n, c in zip(meta.model_tokens, meta.correct, strict=True)]
        while len(self._lengths) > self.cfg.rollout.batch_size:
            self._lengths.popitem(last=False)
        return key in length_balance(self._lengths)

    def state(self) -> dict[str, Any]:
        return {
            "counters": dict(self.counters.run),
            "prompt_counters": {prompt: dict(counters) for prompt, counters in self.counters.prompts.items()},
            "lengths": [(key, list(samples)) for key, samples in self._lengths.items()],
            "ended": [
                (dispatch, prompt, [list(change) for change in changes]) for dispatch, prompt, changes in self._ended
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Back to what `state` gave, by way of JSON."""
        self.counters.run = dict(state["counters"])
        self.counters.prompts = {int(prompt): dict(values) for prompt, values in state["prompt_counters"].items()}
        self._lengths = OrderedDict((key, [(int(n), float(c)) for n, c in pairs]) for key, pairs in state["lengths"])
        self._ended = [
            (dispatch, prompt, [CounterUpdate(*change) for change in changes])
            for dispatch, prompt, changes in state.get("ended", ())  # not in checkpoints of older versions
        ]
