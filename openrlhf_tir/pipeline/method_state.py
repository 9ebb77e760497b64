"""State that a run keeps for its method, in the controller and in its checkpoints.

counters          numbers that rewards read and ask to be changed (rewards/context.py). Every dispatched group gets
                  their values. What the groups of a batch ask for counts from the next batch on, in dispatch order
length balance    the lengths of the latest kept groups, for ZeroTIR's filter over several groups
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..config import Config
from ..config.environments import entry_of
from ..filters import LENGTH_BALANCE
from ..filters.zerotir import length_balance
from ..types import CounterUpdate, GroupMeta, RunFacts, Task, Verdict

UPDATE_RULES: dict[str, Callable[[float | None, float], float]] = {
    "add": lambda old, value: (old or 0.0) + value,
    "lowest": lambda old, value: value if old is None else min(old, value),
    "highest": lambda old, value: value if old is None else max(old, value),
}
"""`CounterUpdate.how` -> the new value, from the old one (None: there is none yet) and the update's."""


class Counters:
    """Counters of the run and of each prompt. A prompt's index is the same over epochs and resumes."""

    def __init__(self) -> None:
        self.run: dict[str, float] = {}
        self.prompts: dict[int, dict[str, float]] = {}

    def apply(self, prompt: int, updates: list[CounterUpdate]) -> None:
        """Apply the updates that a group of this prompt asks for."""
        for update in updates:
            scope = self.run if update.scope == "run" else self.prompts.setdefault(prompt, {})
            scope[update.name] = UPDATE_RULES[update.how](scope.get(update.name), update.value)


class MethodState:
    """Counters and length balance of one run. The scheduler owns it."""

    def __init__(self, cfg: Config) -> None:
        self.cfg = cfg
        self.counters = Counters()
        self._balanced = {name: LENGTH_BALANCE in e.filter.order for name, e in cfg.environments.items()}
        self._lengths: OrderedDict[str, list[tuple[int, float]]] = OrderedDict()
        """Key of a kept group -> (model tokens, 1.0 if correct) of each sample."""
        self._ended: list[tuple[int, int, list[CounterUpdate]]] = []
        """(sequence number, prompt, updates) of the groups that ended since the last batch was trained."""

    def with_run_facts(self, task: Task, prompt: int, update: int) -> Task:
        """Return the task with what the run knows now.

        The counters are copied, because they go on changing.

        Args:
            task: The prompt as the data has it.
            prompt: Its index.
            update: Number of updates so far.
        """
        facts = RunFacts(
            update, self.cfg.train.max_steps, dict(self.counters.run), dict(self.counters.prompts.get(prompt, {}))
        )
        return replace(task, run=facts)

    def judge_across_groups(self, meta: GroupMeta | None) -> GroupMeta | None:
        """Drop a rolled group if the filter over several groups says so.

        Returns:
            The metadata with the verdict that counts.
        """
        if meta is None or meta.failed is not None:
            return meta
        if entry_of(self._balanced, meta.env) and meta.verdict.keep and not self._is_balanced(meta):
            return replace(meta, verdict=Verdict(False, LENGTH_BALANCE))
        return meta

    def depends_on_earlier_groups(self, meta: GroupMeta) -> bool:
        """Return True if the verdict on this group depends on the groups that were judged before it."""
        return meta.failed is None and meta.verdict.keep and entry_of(self._balanced, meta.env)

    def group_ended(self, sequence_number: int, meta: GroupMeta) -> None:
        """Record that a group was filtered or trained: the updates that it asks for count from the next batch on.

        (A group that is accepted may still be issued again, so it does not count yet.)
        """
        if meta.changes:
            self._ended.append((sequence_number, meta.key.prompt, list(meta.changes)))

    def batch_trained(self) -> None:
        """Apply the updates of the groups that ended since the last batch, in dispatch order.

        Called at a step boundary: without staleness what a reward reads must not depend on which group ended first,
        and a sum of floats depends on the order of its terms.
        """
        ended, self._ended = sorted(self._ended, key=lambda entry: entry[0]), []
        for _, prompt, updates in ended:
            self.counters.apply(prompt, updates)

    def forget_group(self, meta: GroupMeta) -> None:
        """Remove an accepted group that is issued again from the length balance."""
        self._lengths.pop(str(meta.key), None)

    def _is_balanced(self, meta: GroupMeta) -> bool:
        """Return True if the length balance over the latest batch of kept groups keeps this group."""
        key = str(meta.key)
        self._lengths[key] = [(n, float(c)) for n, c in zip(meta.model_tokens, meta.correct, strict=True)]
        while len(self._lengths) > self.cfg.rollout.batch_size:
            self._lengths.popitem(last=False)
        return key in length_balance(self._lengths)

    def state(self) -> dict[str, Any]:
        """Return a copy of the state for a checkpoint, as JSON can hold it."""
        return {
            "counters": dict(self.counters.run),
            "prompt_counters": {prompt: dict(counters) for prompt, counters in self.counters.prompts.items()},
            "lengths": [(key, list(samples)) for key, samples in self._lengths.items()],
            "ended": [
                (number, prompt, [list(update) for update in updates]) for number, prompt, updates in self._ended
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned, after it was written as JSON."""
        self.counters.run = dict(state["counters"])
        self.counters.prompts = {int(prompt): dict(values) for prompt, values in state["prompt_counters"].items()}
        self._lengths = OrderedDict((key, [(int(n), float(c)) for n, c in pairs]) for key, pairs in state["lengths"])
        self._ended = [
            (number, prompt, [CounterUpdate(*update) for update in updates])
            for number, prompt, updates in state["ended"]
        ]
