"""The decision core of the pipeline: which prompt starts, which groups are trained or dropped, and when to push.

    core.py                 RolloutScheduler: the state of every group; pure decisions, transitions, snapshots
    staleness.py            StalenessRule: how many groups may be under way, and when the learner may step
    depth.py                how many groups are useful: a fixed number, or measured
    early_accumulation.py   optional: when the learner may begin on a part of a batch
    prompt_queue.py         which prompt comes next
    groups.py               the immutable values that the others pass around
    learner_timing.py       how long the learner's steps take

Nothing here awaits anything but a change of this state, reads a clock, or knows an engine.
"""

from __future__ import annotations

from .core import RolloutScheduler as RolloutScheduler
from .depth import AutoDepth as AutoDepth
from .depth import DepthController as DepthController
from .depth import FixedDepth as FixedDepth
from .depth import depth_controller as depth_controller
from .groups import AcceptedGroup as AcceptedGroup
from .groups import BatchDecision as BatchDecision
from .groups import InFlightGroup as InFlightGroup
from .groups import QueuedPrompt as QueuedPrompt
from .groups import SchedulerSnapshot as SchedulerSnapshot
from .staleness import StalenessRule as StalenessRule
