"""verl's method in our settings: estimator, critic, policy loss, filters, KL, and the correction for the engine."""

from __future__ import annotations

from ...algorithms.advantages import ESTIMATORS
from ...algorithms.losses import LOSSES, LossName
from .recipe_draft import Copied, Draft, copy, if_set
from .shared_settings import say_wide_clip
from .verl_settings import ACTOR, CORRECTION, VerlSettings

ESTIMATOR_OF = {
    "gae": "gae",
    "grpo": "group_norm",
    "grpo_vectorized": "group_norm",
    "reinforce_plus_plus": "reinforce",
    "reinforce_plus_plus_baseline": "reinforce_baseline",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "opo": "opo",
}
"""verl's estimator -> the same of ours."""
NEAREST_ESTIMATOR = {
    "remax": ("rloo", "a baseline of the other samples in place of a greedy one"),
    "grpo_passk": ("group_norm", "every sample of a group has an advantage, not the best alone"),
    "gpg": ("dr_grpo", "the reward minus the group's mean, without GPG's factor for groups that are all alike"),
    "optimal_token_baseline": ("opo", "the optimal baseline over responses in place of one for each token"),
    "tir_optimal_token_baseline": ("opo", "the optimal baseline over responses in place of one for each token"),
}
"""verl's estimator -> the nearest of ours, and what is not the same."""
LOSS_OF: dict[str, LossName] = {"vanilla": "ppo", "gspo": "gspo", "cispo": "cispo", "gpg": "pg"}
"""verl's loss_mode -> ours."""
AGGREGATION_OF = {
    "token-mean": ("token-mean", None),
    "seq-mean-token-mean": ("seq-mean-token-mean", None),
    "seq-mean-token-sum": ("seq-mean-token-sum-norm", 1.0),
    "seq-mean-token-sum-norm": ("seq-mean-token-sum-norm", None),
}
"""verl's loss_agg_mode -> ours, with its constant."""
KL_ESTIMATOR_OF = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
"""verl's estimator of the KL, without the `+` that changes its gradient -> ours."""
OF_CRITIC = (
    Copied("critic.optim.lr", "critic.learning_rate", float),
    Copied("critic.optim.weight_decay", "critic.l2", float),
    Copied("critic.optim.betas", "critic.adam_betas", if_set(lambda betas: [float(beta) for beta in betas])),
    Copied("critic.cliprange_value", "critic.value_clip", float),
    Copied("critic.model.path", "critic.model_name_or_path", if_set(str)),
)


def set_method(verl: VerlSettings, draft: Draft, updates: int, program: str) -> None:
    """Set what is trained.

    Args:
        verl: The settings of the command.
        draft: The recipe, with its batches.
        updates: The number of updates that a batch makes.
        program: The module that the command starts.
    """
    _set_estimator(verl, draft)
    estimator = ESTIMATORS[draft.settings["algo.advantage.estimator"]]
    if estimator.discounts:
        draft.set("algo.advantage.gamma", float(verl("algorithm.gamma")))
    if estimator.critic:
        draft.set("algo.advantage.lambd", float(verl("algorithm.lam")))
        _set_critic(verl, draft, updates)
    _set_loss(verl, draft, program)
    _set_filters(verl, draft)
    _set_correction(verl, draft)
    _set_kl(verl, draft)


def _set_estimator(verl: VerlSettings, draft: Draft) -> None:
    estimator = str(verl("algorithm.adv_estimator"))
    ours = ESTIMATOR_OF.get(estimator)
    if ours is None:
        ours, why = NEAREST_ESTIMATOR.get(estimator, ("group_norm", "an estimator that this project does not have"))
        draft.differs(f"algorithm.adv_estimator={estimator}: {ours} here, {why}.")
    if ESTIMATORS[ours].compares_responses and draft.settings["rollout.n_samples_per_prompt"] == 1:
        draft.differs(
            f"algorithm.adv_estimator={estimator} with rollout.n = 1 compares a response with none: reinforce here."
        )
        ours = "reinforce"
    draft.set("algo.advantage.estimator", ours)
    if not verl("algorithm.norm_adv_by_std_in_grpo") and ours == "group_norm":
        draft.set("algo.advantage.no_std_norm", True, "norm_adv_by_std_in_grpo")


def _set_critic(verl: VerlSettings, draft: Draft, updates: int) -> None:
    copy(OF_CRITIC, verl, draft)
    epochs = verl("critic.ppo_epochs")
    if epochs and int(epochs) != int(verl(f"{ACTOR}.ppo_epochs")):
        draft.differs(f"critic.ppo_epochs={epochs}: the critic makes as many passes as the policy, train.max_epochs.")
    first_batch = int(verl("trainer.critic_warmup") or 0)  # the first one, counted from 1, that trains the policy too
    if first_batch > 1:
        draft.set("critic.freezing_steps", (first_batch - 1) * updates, "before batch critic_warmup")
    if mini_batch := int(verl("critic.ppo_mini_batch_size") or 0):
        draft.set("critic.updates", max(1, int(draft.settings["rollout.batch_size"]) // mini_batch))


def _divides_by_engine(verl: VerlSettings, program: str) -> bool:
    """Return True if the old log-probs are those that the engine recorded."""
    if verl(f"{CORRECTION}.bypass_mode"):
        return True
    if "fully_async" not in program:
        return False
    return bool(verl("async_training.use_rollout_log_probs")) and not verl("async_training.compute_prox_log_prob")


def _set_loss(verl: VerlSettings, draft: Draft, program: str) -> None:
    """Set the policy loss, its clip range, and over what it is a mean."""
    mode = str(verl(f"{ACTOR}.policy_loss.loss_mode"))
    if mode not in LOSS_OF:
        draft.differs(
            f"{ACTOR}.policy_loss.loss_mode={mode}: PPO's clipped loss here. Another one is a function of your own,"
            " actor.policy_loss_type (docs/algorithms.md)."
        )
    loss = LOSS_OF.get(mode, "ppo")
    if not _divides_by_engine(verl, program):
        draft.set("actor.pi_old", "learner", "verl computes the old log-probs again")
    elif verl(f"{CORRECTION}.loss_type") == "reinforce" or verl(f"{CORRECTION}.use_pure_rollout_correction"):
        loss = "pg"
        draft.set("actor.pi_old", "learner")
        draft.differs(
            f"{CORRECTION}.bypass_mode without PPO's clip: a token has one weight for all updates of its batch here."
        )
    else:
        draft.set("actor.pi_old", "engine", "verl takes the engine's log-probs for the old ones")
    draft.set("actor.policy_loss_type", loss)
    both = verl(f"{ACTOR}.clip_ratio")
    sides = (verl(f"{ACTOR}.clip_ratio_low"), verl(f"{ACTOR}.clip_ratio_high"))
    draft.set("actor.eps_clip_low_high", [float(both if side is None else side) for side in sides])
    dual_clip = verl(f"{ACTOR}.clip_ratio_c")
    if loss == "ppo" and dual_clip:
        draft.set("actor.dual_clip", float(dual_clip), "clip_ratio_c")
    say_wide_clip(draft)
    if LOSSES[loss].over_sequences:
        return
    verl_mode = str(verl(f"{ACTOR}.loss_agg_mode"))
    if verl_mode not in AGGREGATION_OF:
        draft.differs(f"{ACTOR}.loss_agg_mode={verl_mode}: token-mean here.")
    aggregation, constant = AGGREGATION_OF.get(verl_mode, AGGREGATION_OF["token-mean"])
    draft.set("actor.loss_agg_mode", aggregation)
    constant = verl(f"{ACTOR}.loss_scale_factor") or constant
    if constant is not None:
        draft.set("actor.loss_agg_constant", float(constant))


def _set_filters(verl: VerlSettings, draft: Draft) -> None:
    if not verl("algorithm.filter_groups.enable"):
        draft.set("filter.names", [], "verl trains every group")
        return
    metric = str(verl("algorithm.filter_groups.metric") or "acc")
    if metric == "acc":
        draft.set("filter.names", ["accuracy"], "algorithm.filter_groups: groups with some right and some wrong")
    else:
        draft.set("filter.names", ["zero_variance"], f"algorithm.filter_groups: groups whose {metric} differs")


def _set_correction(verl: VerlSettings, draft: Draft) -> None:
    """Set the correction for the difference between engine and learner."""
    level = verl(f"{CORRECTION}.rollout_is")
    bounds = [float(verl(f"{CORRECTION}.rollout_is_threshold"))]
    mode = "clip"
    upper = verl("algorithm.rollout_is_threshold")
    if verl("algorithm.rollout_is") and upper:  # before there was rollout_correction
        level = verl("algorithm.rollout_is_level")
        bounds = [float(upper)]
        if verl("algorithm.rollout_is_mode") != "truncate":
            mode = "mask"
            lower = verl("algorithm.rollout_is_threshold_lower")
            bounds = [float(1 / upper if lower is None else lower), *bounds]
    cap = float(verl(f"{ACTOR}.tis_imp_ratio_cap"))
    if cap > 0:  # before there was algorithm.rollout_is
        level = "token"
        bounds = [cap]
    if level not in ("token", "sequence", "geometric") or draft.settings["actor.pi_old"] == "engine":
        return
    loss = draft.settings["actor.policy_loss_type"]
    if not LOSSES[loss].is_corrected:
        draft.differs(f"{CORRECTION}.rollout_is={level}: left out, it weighs no token of {loss}.")
        return
    draft.set("algo.advantage.is_correction_level", "token")
    draft.set("algo.advantage.is_correction_mode", mode)
    draft.set("algo.advantage.is_correction_threshold", bounds)
    if level != "token":
        draft.differs(f"rollout_is={level}: a token has its own ratio, where verl has one for its response.")


def _set_kl(verl: VerlSettings, draft: Draft) -> None:
    """Set the KL to the reference: in the loss, or in the reward."""
    in_loss = verl(f"{ACTOR}.use_kl_loss")
    in_reward = verl("algorithm.use_kl_in_reward")
    if in_loss and in_reward:
        draft.differs("A KL in the loss and one in the reward: the one in the loss is kept.")
    if in_loss:
        kind, coefficient = str(verl(f"{ACTOR}.kl_loss_type")), float(verl(f"{ACTOR}.kl_loss_coef"))
    elif in_reward:
        kind, coefficient = str(verl("algorithm.kl_penalty")), float(verl("algorithm.kl_ctrl.kl_coef"))
    else:
        return
    if not coefficient:
        return
    estimator = KL_ESTIMATOR_OF.get(kind.removesuffix("+"))
    if estimator is None:
        draft.differs(f"{kind} is no estimator of the KL here: k3.")
    draft.set("algo.kl.init_coef", coefficient)
    draft.set("algo.kl.estimator", estimator or "k3", kind)
    if in_loss:
        draft.set("algo.kl.use_loss", True)
        draft.set("algo.kl.unbiased_gradient", kind.endswith("+"), "as verl: through the formula")
    elif verl("algorithm.kl_ctrl.type") == "adaptive":
        draft.set("algo.kl.target", float(verl("algorithm.kl_ctrl.target_kl")))
        draft.set("algo.kl.horizon", int(verl("algorithm.kl_ctrl.horizon")))
    if verl("actor_rollout_ref.ref.fsdp_config.param_offload"):
        draft.set("ref.offload", True)
