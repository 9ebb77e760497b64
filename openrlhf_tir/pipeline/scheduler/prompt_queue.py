"""The prompt queue: which prompt is dispatched next.

Every dispatched prompt has a place in line, its sequence number, which orders everything that must not depend on which
group ends first. One that is dispatched again keeps its place, so that with a staleness of 0 a run with faults trains
the batches of a run without. A replacement of a filtered group gets the next place when it is queued. All that waits
is therefore older than the next new prompt of the stream, and the queue is sorted by place.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from operator import attrgetter

from ...errors import PipelineError
from ...ports import Prompts
from .groups import InFlightGroup, QueuedPrompt

MAX_REPLACEMENTS = 8
"""Prompts that are dispatched one after the other in place of a filtered group of the same environment. The
environments' shares of a batch hold while at least one group in nine is accepted, and a hopeless environment does not
get every slot."""
_place = attrgetter("sequence_number")


class PromptQueue:
    """Prompts that wait to be dispatched, in front of the stream of new ones.

    Attributes:
        stream: The stream of new prompts.
        waiting: The prompts that come before it, by place in line.
        last_place: The sequence number that was given last.
        may_replace: False once the stream had no replacement for a filtered group: then environments have no shares.
    """

    def __init__(self, stream: Prompts) -> None:
        self.stream = stream
        self.waiting: list[QueuedPrompt] = []
        self.last_place = 0
        self.may_replace = True

    def restore(self, waiting: Iterable[QueuedPrompt], last_place: int) -> None:
        """Restore the queue of a snapshot; the stream is restored apart."""
        self.waiting = list(waiting)
        self.last_place = last_place

    @property
    def has_prompt(self) -> bool:
        """True if there is a prompt to dispatch."""
        return bool(self.waiting) or self.stream.more()

    def waits_before(self, place: int) -> bool:
        """Return True if a prompt with an earlier place in line waits to be dispatched."""
        return bool(self.waiting) and self.waiting[0].sequence_number < place

    def pop(self) -> QueuedPrompt:
        """Take the prompt that is dispatched next.

        Raises:
            PipelineError: There is none (`has_prompt` is False), which is a bug in the loop.
        """
        if self.waiting:
            return self.waiting.pop(0)
        following = self.stream.next()
        if following is None:
            raise PipelineError("A group was to be dispatched without a prompt. This is a bug in the loop.")
        return self._at_the_end(*following)

    def add_again(self, group: InFlightGroup, *, counts_as_retry: bool) -> None:
        """Queue a group's prompt again, at its place in line."""
        again = QueuedPrompt(
            group.key.epoch,
            group.key.prompt,
            group.sequence_number,
            group.retries + counts_as_retry,
            group.replacements,
        )
        bisect.insort(self.waiting, again, key=_place)

    def add_replacement(self, group: InFlightGroup) -> None:
        """Queue another prompt of a filtered group's environment, so that the environments' shares hold in batches."""
        if group.replacements >= MAX_REPLACEMENTS or not self.stream.more():
            return
        another = self.stream.in_place_of(group.key.prompt)
        self.may_replace = another is not None
        if another is not None:
            self.waiting.append(self._at_the_end(*another, replacements=group.replacements + 1))

    def _at_the_end(self, epoch: int, prompt: int, replacements: int = 0) -> QueuedPrompt:
        """Give a prompt the next place in line."""
        self.last_place += 1
        return QueuedPrompt(epoch, prompt, self.last_place, replacements=replacements)
