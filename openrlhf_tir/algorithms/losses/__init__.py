"""Policy losses by actor.policy_loss_type. One file each: formula, paper, edge case, and the properties that settings
and learner read.
"""

from __future__ import annotations

from typing import Literal

from .base import PolicyLoss
from .cispo import cispo
from .of_openrlhf import gspo, ppo
from .policy_gradient import policy_gradient

LossName = Literal["ppo", "gspo", "cispo", "pg"]
LOSSES: dict[str, PolicyLoss] = {"ppo": ppo, "gspo": gspo, "cispo": cispo, "pg": policy_gradient}
