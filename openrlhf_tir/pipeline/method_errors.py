"""End the run when user code fails too many groups.

    before the first update since the start   at the first failure: a bug is best fixed before anything is trained
    later                                     after MAX_PROMPTS_IN_A_ROW prompts in a row

A resume is a start, because user code may have been edited before it. A restart of the learner is none: this process
keeps the code that it has, and the count.

A data row that a reward does not expect fails its own group, again and again. That is a single prompt, and the run goes
on. User code is a reward, filter, protocol, environment class or agent file. If it fails one trajectory, the whole
group fails: otherwise the bug would choose which samples are trained.
"""

from __future__ import annotations

from ..errors import USER_CODE_REASONS, MethodBroken
from ..types import GroupMeta

MAX_PROMPTS_IN_A_ROW = 3
"""Prompts that fail without a good group in between, after which the run ends. Odd rows of data stand apart: three in a
row are the code."""


class MethodErrors:
    """Counts the groups that user code failed since the start."""

    def __init__(self) -> None:
        self.updated_since_start = False
        """True once an update was made."""
        self._prompts: set[int] = set()

    def record_attempt(self, meta: GroupMeta | None) -> None:
        """Count a group's attempt that ended.

        Raises:
            MethodBroken: User code failed too many groups: the run ends.
        """
        if meta is None:
            return
        if meta.failed not in USER_CODE_REASONS:
            if meta.failed is None:
                self._prompts.clear()
            return
        self._prompts.add(meta.key.prompt)
        last = f"The last error: {meta.why.get(meta.failed)} Correct it, then go on with --resume."
        if not self.updated_since_start:
            raise MethodBroken(
                f"Group {meta.key} failed as {meta.failed!r} before the first update of this start, and a bug is best"
                f" fixed before anything is trained: {meta.why.get(meta.failed)} `train --check-only` with the same"
                " recipe plays episodes through all of your code."
            )
        if len(self._prompts) >= MAX_PROMPTS_IN_A_ROW:
            raise MethodBroken(f"The groups of {len(self._prompts)} prompts in a row failed as {meta.failed!r}. {last}")
