"""Method errors: groups that user code failed -> MethodBroken, when they are enough to end the run.

    until the first update    the first one: a bug is best mended before anything is trained
    later                     `reward.max_failed_groups` prompts in a row, or `train.max_user_code_failures` groups

A row of the data that a reward does not expect fails its own group, again and again: that is one prompt, and the run
goes on. User code is a reward, filter, protocol, environment class or agent file; a group fails as a whole when it
fails one trajectory, because what is left of it would be chosen by the bug."""

from __future__ import annotations

from ..errors import METHOD_REASONS, MethodBroken
from ..types import GroupMeta


class MethodErrors:
    """Counts the groups that user code failed. A resumed run counts anew, and has its first update before it again."""

    def __init__(self, in_a_row: int, in_all: int | None = None) -> None:
        """`in_a_row`: prompts without a good one in between that end the run; `in_all`: groups; None: no limit."""
        self.in_a_row = in_a_row
        self.in_all = in_all
        self.updated = False
        """True once an update was made."""
        self.failures = 0
        """Groups that user code failed since the run began or was resumed."""
        self._prompts: set[int] = set()

    def settled(self, meta: GroupMeta | None) -> None:
        """Count a group's attempt that ended. Raises MethodBroken when the run has to end."""
        if meta is None:
            return
        if meta.failed not in METHOD_REASONS:
            if meta.failed is None:
                self._prompts.clear()
            return
        self.failures += 1
        self._prompts.add(meta.key.prompt)
        last = f"The last error: {meta.why.get(meta.failed)} Correct it, then go on with --resume."
        if not self.updated:
            raise MethodBroken(
                f"Group {meta.key} failed as {meta.failed!r} before the first update, and a bug is best mended before"
                f" anything is trained: {meta.why.get(meta.failed)} `train --check-only` with the same recipe plays"
                " episodes through all of your code."
            )
        if len(self._prompts) >= self.in_a_row:
            raise MethodBroken(
                f"The groups of {len(self._prompts)} prompts in a row failed as {meta.failed!r}"
                f" (reward.max_failed_groups = {self.in_a_row}). {last}"
            )
        if self.in_all is not None and self.failures >= self.in_all:
            raise MethodBroken(
                f"{self.failures} groups failed by user code, the last as {meta.failed!r}"
                f" (train.max_user_code_failures = {self.in_all}). {last}"
            )
