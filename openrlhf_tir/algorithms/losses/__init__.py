"""Policy losses by actor.policy_loss_type. One file each: the formula of l_t, paper, edge case, and the properties that
settings and learner read. What the learner minimises with any of them (learner/objective.py):

    L = mean(w_t l_t) + beta mean(k_t) - c mean(H_t)

    l_t     the loss of token t. It has the advantage A_t        algo.advantage.estimator, ../advantages
            and, unless it is pg, r_t = pi_t / pi_old_t          actor.pi_old
            and its clip range eps_low, eps_high                 actor.eps_clip_low_high
    w_t     weight by pi_old_t / mu_t, mu the policy that        algo.advantage.is_correction_level, is_correction.py;
            sampled                                              1 with level off, and with gspo
    k_t     KL to the reference model, beta its weight           algo.kl.init_coef, algo.kl.use_loss, ../kl.py;
                                                                 without use_loss it is part of A_t
    H_t     entropy of pi at token t, c its weight               actor.entropy_coef
    mean    over the trained tokens or the sequences of the      actor.loss_agg_mode, ../global_counts.py
            update, on all ranks

gspo takes its own mean of w_t l_t, over sequences. The entropy's mean is over tokens with seq-mean-token-mean, too. A
mixture of experts adds its balancing loss (actor.aux_loss_coef).
"""

from __future__ import annotations

from typing import Literal

from .base import PolicyLossSpec
from .cispo import cispo
from .policy_gradient import policy_gradient
from .ppo_gspo import gspo, ppo

LossName = Literal["ppo", "gspo", "cispo", "pg"]
LOSSES: dict[str, PolicyLossSpec] = {"ppo": ppo, "gspo": gspo, "cispo": cispo, "pg": policy_gradient}
