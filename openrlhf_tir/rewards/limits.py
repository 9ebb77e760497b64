"""How long calls of rewards may take. A rehearsal and tests have shorter limits than a run."""

from __future__ import annotations

from typing import NamedTuple


class RewardLimits(NamedTuple):
    """Limits of a pool's calls.

    Attributes:
        check_s: Wall-clock seconds of one check; None: as reward.verify_timeout_s says.
        remote_s: Seconds of one call of a remote reward. OpenRLHF's `request_api_wrapper` waits as long.
        remote_retries: How often a reward server that is unreachable, busy or broken is asked again: OpenRLHF's number.
    """

    check_s: float | None = None
    remote_s: float = 180.0
    remote_retries: int = 4
