"""Policy losses that are not OpenRLHF's: actor.policy_loss_type -> loss per token. One file each: formula, paper, edge
case. (ppo and gspo are OpenRLHF's.)"""

from __future__ import annotations

from .cispo import cispo
from .own import OwnLoss
from .policy_gradient import policy_gradient

LOSSES: dict[str, OwnLoss] = {"cispo": cispo, "pg": policy_gradient}
