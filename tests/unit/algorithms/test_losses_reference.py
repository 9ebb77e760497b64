"""Every loss, aggregation and correction against the reference implementation, value and gradient, in float64."""

from __future__ import annotations

import numpy as np
import pytest

from openrlhf_tir.algorithms.losses import LOSSES
from openrlhf_tir.config import Config

pytestmark = pytest.mark.slow  # importing openrlhf, transformers and DeepSpeed takes seconds

B, L = 4, 7


class Table:
    """score() returns what it was made with."""

    def __init__(self, log_probs):
        self.table = log_probs

    def score(self, micro, *, entropy_grad=False, wanted=None):
        return self.table * 1.0, -self.table.detach()


@pytest.fixture
def data():
    """Log-probs of pi, pi_old and mu, advantages and a mask with an environment token of weight 1 in each row; the last
    row is shorter."""
    import torch

    rng = np.random.default_rng(3)
    log_pi = torch.tensor(rng.normal(-2, 0.5, (B, L)), requires_grad=True)
    old = torch.tensor(log_pi.detach().numpy() + rng.normal(0, 0.3, (B, L)))
    mu = torch.tensor(old.numpy() + rng.normal(0, 0.5, (B, L)))
    mask = torch.tensor(rng.random((B, L)) < 0.8, dtype=torch.float64)
    mask[-1, 2:] = 0
    return {"log_pi": log_pi, "old": old, "mu": mu, "adv": torch.tensor(rng.normal(0, 1, (B, L))), "mask": mask}


def ours(cfg: Config, data, parts=1):
    """(loss, gradient) of the learner's objective over one update; `parts`: micro batches."""
    import torch

    from openrlhf_tir.algorithms.global_counts import GlobalCounts
    from openrlhf_tir.algorithms.losses.diagnostics import Tally
    from openrlhf_tir.learner.objective import PolicyObjective
    from openrlhf_tir.learner.packing import MicroBatch

    mask = data["mask"]
    counts = GlobalCounts(float(mask.sum()), float((mask.sum(-1) > 0).sum()), 1, sum_norm=cfg.loss_sum_norm)
    total = 0.0
    for rows in torch.arange(B).chunk(parts):
        fields = {
            "advantages": data["adv"][rows],
            "trained": mask[rows],
            "sampled": torch.ones(len(rows), L, dtype=torch.float64),
            "rollout_logprobs": data["mu"][rows],
            "old_logprobs": data["old"][rows],
            "lag": torch.zeros(len(rows), L, dtype=torch.int32),
        }
        objective = PolicyObjective(cfg, Table(data["log_pi"][rows]), counts, Tally("cpu"))
        total = total + objective(MicroBatch(torch.zeros(len(rows), L + 1), torch.ones(len(rows), L + 1), fields))
    return total, torch.autograd.grad(total, data["log_pi"])[0]


def reference(data, loss, mode, *, old="old", dual=None, correction=None, bounds=(0.5, 2.0), constant=None):
    import torch

    from . import reference as ref

    low, high = 0.2, 0.28
    rows = range(B)
    if loss == "gspo":
        value = sum(ref.gspo_rows(data["log_pi"], data[old], data["adv"], data["mask"], low, high)) / B
        return value, torch.autograd.grad(value, data["log_pi"])[0]
    extra = {"dual": dual} if dual else {}
    per_token = [
        [
            ref.TOKEN[loss](data["log_pi"][r, t], data[old][r, t].item(), data["adv"][r, t].item(), low, high, **extra)
            for t in range(L)
        ]
        for r in rows
    ]
    if correction:
        w = [
            [ref.is_weight(correction, data["old"][r, t].item(), data["mu"][r, t].item(), bounds) for t in range(L)]
            for r in rows
        ]
        per_token = [[w[r][t] * per_token[r][t] for t in range(L)] for r in rows]
    value = ref.aggregated(per_token, data["mask"], mode, constant)
    return value, torch.autograd.grad(value, data["log_pi"])[0]


def assert_same(found, wanted):
    import torch

    for ours_, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours_, theirs, rtol=1e-8, atol=1e-9)  # OpenRLHF adds 1e-8 to a row's tokens


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
@pytest.mark.parametrize("pi_old", ["engine", "learner"])
@pytest.mark.parametrize("loss", [name for name, loss in LOSSES.items() if not loss.over_sequences])
def test_losses_and_aggregations_are_their_formulas(data, loss, pi_old, mode, parts):
    cfg = Config(actor={"policy_loss_type": loss, "pi_old": pi_old, "loss_agg_mode": mode})
    wanted = reference(data, loss, mode, old={"engine": "mu", "learner": "old"}[pi_old], constant=8192.0)
    assert_same(ours(cfg, data, parts), wanted)


@pytest.mark.parametrize("pi_old", ["engine", "learner"])
def test_gspo_clips_the_geometric_mean_of_a_sequence(data, pi_old):
    cfg = Config(actor={"policy_loss_type": "gspo", "pi_old": pi_old})
    assert_same(ours(cfg, data, 2), reference(data, "gspo", None, old={"engine": "mu", "learner": "old"}[pi_old]))


def test_dual_clip_bounds_the_loss_of_bad_tokens(data):
    assert_same(ours(Config(actor={"dual_clip": 1.1}), data), reference(data, "ppo", "token-mean", old="mu", dual=1.1))


def test_the_constant_of_the_sum_norm_can_be_set(data):
    cfg = Config(actor={"loss_agg_mode": "seq-mean-token-sum-norm", "loss_agg_constant": 100.0})
    assert_same(ours(cfg, data), reference(data, "ppo", "seq-mean-token-sum-norm", old="mu", constant=100.0))


@pytest.mark.parametrize("kind", ["tis", "icepop"])
@pytest.mark.parametrize("loss", [name for name, loss in LOSSES.items() if loss.is_corrected])
def test_corrections_weigh_every_loss_by_what_learner_and_engine_differ_in(data, loss, kind):
    """With ppo this is decoupled PPO: the ratio to pi_old is clipped, and pi_old / mu weighs."""
    advantage = {
        "is_correction_level": "token",
        "is_correction_mode": {"tis": "clip", "icepop": "mask"}[kind],
        "is_correction_threshold": (0.5, 2.0),
    }
    cfg = Config(actor={"policy_loss_type": loss}, algo={"advantage": advantage})
    assert_same(ours(cfg, data, 2), reference(data, loss, "token-mean", correction=kind))


SETTINGS = [
    {
        "is_correction_level": level,
        "is_correction_mode": mode,
        "is_correction_gating": gating,
        "is_correction_threshold": bounds,
    }
    for level in ("token", "seq")
    for mode in ("mask", "clip")
    for gating, bounds in (("ratio", (0.8, 1.2)), ("binary_kl", (0.02,)), ("tv", (0.03,)))
    if mode == "mask" or (level == "token" and gating == "ratio")
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_our_weights_are_those_inside_openrlhfs_policy_loss(data, settings):
    """Its loss with our weights left out, times our weights, is its loss with them: to 1e-7."""
    import torch

    from openrlhf_tir.algorithms.losses.is_correction import importance_weights
    from openrlhf_tir.learner.openrlhf_adapter import aggregate_loss, policy_loss

    cfg = Config(algo={"advantage": settings})
    mask, old, mu, adv = data["mask"], data["old"], data["mu"], data["adv"]
    mask[:, 0] = 1  # OpenRLHF divides by a row's tokens
    theirs, _, _, _, share = policy_loss(cfg)(data["log_pi"], old, adv, action_mask=mask, rollout_log_probs=mu)
    advantage = cfg.algo.advantage
    weights, outside = importance_weights(
        old,
        mu,
        mask,
        level=advantage.is_correction_level,
        mode=advantage.is_correction_mode,
        gating=advantage.is_correction_gating,
        threshold=advantage.is_correction_threshold,
    )
    ratio = (data["log_pi"] - old).exp()
    plain = -torch.minimum(ratio * adv, ratio.clamp(0.8, 1.28) * adv)
    assert aggregate_loss(weights * plain, mask).item() == pytest.approx(theirs.item(), abs=1e-7)
    assert outside.item() == pytest.approx(share.item(), abs=1e-7) and 0 < outside < 1


def test_a_ratio_beyond_float32_is_masked_and_does_not_become_nan():
    """exp(100) is infinite in float32; outside of the band its weight is 0, and that of its neighbour exp(0) = 1."""
    import torch

    from openrlhf_tir.algorithms.losses.is_correction import importance_weights

    old = torch.tensor([[0.0, 0.0]])
    mu = torch.tensor([[-100.0, 0.0]])
    band = {"mode": "mask", "gating": "ratio", "threshold": (0.5, 2.0)}
    weights, outside = importance_weights(old, mu, torch.ones(1, 2), level="token", **band)
    assert weights.tolist() == [[0.0, 1.0]] and outside.item() == 0.5


def test_a_weight_of_tool_output_is_one_of_the_mean(data):
    """Weights go into numerator and denominator: with one that vanishes, tool output is as good as masked."""
    import torch

    whole = data["mask"].clone()
    env = torch.zeros_like(whole)
    env[:, 1::3] = 1
    data["mask"] = whole * torch.where(env > 0, 1e-12, 1.0)
    faint = ours(Config(), data)
    data["mask"] = whole * (1 - env)
    assert_same(faint, ours(Config(), data))
