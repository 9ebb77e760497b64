"""Method errors: groups that end -> MethodBroken, once so many prompts in a row failed by the method's own code.

A row of the data that a reward does not expect fails its own group, again and again: that is one prompt, and the run
goes on. A reward that is wrong fails every group: after `reward.max_failed_groups` prompts without a good one in
between, the run ends with the last error."""

from __future__ import annotations

from ..errors import METHOD_REASONS, MethodBroken
from ..types import GroupMeta


class MethodErrors:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._failed: set[int] = set()

    def settled(self, meta: GroupMeta | None) -> None:
        """A group's attempt ended. Raises MethodBroken."""
        if meta is None:
            return
        if meta.failed not in METHOD_REASONS:
            if meta.failed is None:
                self._failed.clear()
            return
        self._failed.add(meta.key.prompt)
        if len(self._failed) >= self.limit:
            raise MethodBroken(
                f"The groups of {len(self._failed)} prompts in a row failed as {meta.failed!r}. The last error:"
                f" {meta.why.get(meta.failed)} Correct it, then go on with --resume."
            )
