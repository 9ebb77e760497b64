"""Faults of a runtime API and of its containers. None says anything about the model; each is counted by its name.

SandboxError
|- RuntimeFault
   |- RuntimeLost          no connection, 502, 503 or 504: the API or the container cannot be reached
   |  |- RuntimeGone       404 or 410: it does not exist, or no longer
   |- RuntimeLate          no answer in time
   |- LostInTests          one of these, while tests ran in the container, maybe because of them; or copies of tests
   |                       that had passed did not end
   |- RuntimeBroken        5xx, or an answer that does not follow this API
   |- RuntimeUnusable      another try would fail the same way
      |- RuntimeRefused    4xx: a wrong key, a request that this API does not take
      |- ImageUnavailable  the image does not exist, or its containers end while they start
      |- ImageUnfit        the container starts, but has no such repository or commit, or its set-up fails
      |- RowBroken         the row's own test patch does not apply
"""

from __future__ import annotations

from env_servers.python_tir.sandbox import SandboxError


class RuntimeFault(SandboxError):
    """Base class of the faults.

    Attributes:
        unsent: True if the request was never accepted: it may be sent again, whatever it does.
        began: True if a script had begun in the container.
    """

    unsent = False
    began = False


class RuntimeLost(RuntimeFault):
    pass


class RuntimeGone(RuntimeLost):
    pass


class RuntimeLate(RuntimeFault):
    pass


class LostInTests(RuntimeFault):
    def __init__(self, message: str, ended: str = "container_ended") -> None:
        """Create the fault.

        Args:
            message: What happened.
            ended: `Report.reason` if the patch turns out to be at fault.
        """
        super().__init__(message)
        self.ended = ended


class RuntimeBroken(RuntimeFault):
    pass


class RuntimeUnusable(RuntimeFault):
    pass


class RuntimeRefused(RuntimeUnusable):
    pass


class ImageUnavailable(RuntimeUnusable):
    pass


class ImageUnfit(RuntimeUnusable):
    pass


class RowBroken(RuntimeUnusable):
    pass


NAMES = {
    RuntimeLost: "lost",
    RuntimeGone: "gone",
    RuntimeLate: "late",
    LostInTests: "lost_in_tests",
    RuntimeBroken: "broken",
    RuntimeRefused: "refused",
    ImageUnavailable: "image_unavailable",
    ImageUnfit: "image_unfit",
    RowBroken: "row_broken",
}
"""End of each fault's gauge, `env_runtime_faults_...`."""
