"""Policy losses by actor.policy_loss_type, except ppo and gspo, which are OpenRLHF's. One file each: formula, paper,
edge case.
"""

from __future__ import annotations

from .cispo import cispo
from .own import OwnLoss
from .policy_gradient import policy_gradient

LOSSES: dict[str, OwnLoss] = {"cispo": cispo, "pg": policy_gradient}
