"""How long calls of rewards may take. A rehearsal and tests have shorter limits than a run."""

from __future__ import annotations

from typing import NamedTuple

from ..config import Config
from ..waiting.deadlines import Deadline, longest

REMOTE = Deadline(180.0, "limits.REMOTE")
"""How long OpenRLHF's `request_api_wrapper` waits."""


class RewardLimits(NamedTuple):
    """Limits of a pool's calls.

    Attributes:
        check: Deadline of one check; None: as reward.verify_timeout_s says.
        remote: Deadline of one call of a remote reward.
        remote_retries: How often a reward server that is unreachable, busy or broken is asked again: OpenRLHF's number.
    """

    check: Deadline | None = None
    remote: Deadline = REMOTE
    remote_retries: int = 4

    @classmethod
    def of(cls, cfg: Config) -> RewardLimits:
        """Return the limits of a run: a judge may take a sixth of what a group may take."""
        return cls(remote=longest(Deadline.of(cfg, "rollout.group_deadline_s", parts=6), REMOTE))
