"""The policy objective on three tokens, worked by hand, and the diagnostics it counts. Model: a table of log-probs."""

from __future__ import annotations

import contextlib
import math

import pytest

from openrlhf_tir.algorithms.global_counts import GlobalCounts
from openrlhf_tir.config import Config

pytestmark = pytest.mark.slow  # importing openrlhf, transformers and DeepSpeed takes seconds

RATIOS = (1.5, 0.7, 1.0)
ADVANTAGES = (1.0, -1.0, 1.0)


class TableModel:
    """score() returns what it was made with; the log-probs take a gradient."""

    def __init__(self, log_probs, entropy=(2.0, 3.0, 4.0)):
        import torch

        self.table = torch.tensor([log_probs], requires_grad=True)
        self.entropy = torch.tensor([entropy])

    def score(self, micro, *, entropy_grad=False, wanted=None):
        return self.table * 1.0, self.entropy


def evaluate(cfg: Config, ratios=RATIOS, advantages=ADVANTAGES, sampled=(1, 1, 1), lag=(0, 0, 0), dp_size: int = 1):
    """-> (loss, gradient of each log-prob, metrics). Rollout log-probs are -1; the policy's are log(ratio) - 1."""
    import torch

    from openrlhf_tir.algorithms.losses.diagnostics import Tally
    from openrlhf_tir.learner.objective import PolicyObjective
    from openrlhf_tir.learner.packing import MicroBatch

    model = TableModel([math.log(r) - 1 for r in ratios])
    fields = {
        "advantages": torch.tensor([advantages]),
        "trained": torch.ones(1, 3),
        "sampled": torch.tensor([sampled], dtype=torch.float32),
        "rollout_logprobs": torch.tensor([[-1.0 if s else 0.0 for s in sampled]]),
        "lag": torch.tensor([lag], dtype=torch.int32),
    }
    objective = PolicyObjective(cfg, model, GlobalCounts(3, 1, dp_size), Tally("cpu"))
    loss = objective(MicroBatch(torch.zeros(1, 4), torch.ones(1, 4), fields))
    loss.backward()
    return loss.item(), model.table.grad[0].tolist(), objective.tally.metrics()


def test_clip_higher_acts_on_the_ratio_to_the_rollout_policy():
    # min(1.5, 1.28) = 1.28 clipped; min(-0.7, -0.8) = -0.8 clipped; 1.0 free: -(1.28 - 0.8 + 1) / 3
    loss, grad, metrics = evaluate(Config())
    assert loss == pytest.approx(-1.48 / 3)
    assert grad == pytest.approx([0.0, 0.0, -1 / 3])
    assert (metrics["clip_low"], metrics["clip_high"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_with_is_correction_the_ratio_is_one_and_the_rollout_policy_only_weighs():
    # w = 1.5, 0.7, 1.0, all within the band: -(1.5 * 1 + 0.7 * -1 + 1) / 3
    loss, grad, metrics = evaluate(Config(algo={"advantage": {"is_correction_level": "token"}}))
    assert loss == pytest.approx(-1.8 / 3)
    assert grad == pytest.approx([-1.5 / 3, 0.7 / 3, -1 / 3])
    assert metrics["clip_high"] == metrics["clip_low"] == 0.0


def test_a_dummy_micro_batch_leaves_the_share_outside_the_band_a_number():
    """It has no token: the share is 0 / 0."""
    import torch

    from openrlhf_tir.algorithms.losses.diagnostics import Tally

    tally = Tally("cpu")
    tally.add_gate(torch.tensor(0.25), torch.tensor(8.0))
    tally.add_gate(torch.tensor(torch.nan), torch.tensor(0.0))
    assert tally.gated.tolist() == [2.0, 8.0]


def test_is_correction_masks_a_token_outside_the_band():
    advantage = {"is_correction_level": "token", "is_correction_threshold": (0.8, 1.2)}
    _, grad, metrics = evaluate(Config(algo={"advantage": advantage}))
    assert grad == pytest.approx([0.0, 0.0, -1 / 3])
    assert metrics["is_filtered"] == pytest.approx(2 / 3)


def test_is_correction_rejects_a_sequence_by_its_mean_log_ratio():
    # The geometric mean of 1.5, 0.7, 1.0 is 1.016: within (0.8, 1.02), outside (0.8, 1.01).
    def of(high: float):
        _, grad, metrics = evaluate(
            Config(algo={"advantage": {"is_correction_level": "seq", "is_correction_threshold": (0.8, high)}})
        )
        return grad, metrics["is_filtered"]

    assert of(1.02) == (pytest.approx([-1.5 / 3, 0.7 / 3, -1 / 3]), 0.0)
    assert of(1.01) == ([0.0, 0.0, 0.0], 1.0)


def test_is_correction_clips_a_weight_to_the_band():
    advantage = {"is_correction_level": "token", "is_correction_mode": "clip", "is_correction_threshold": (0.8, 1.2)}
    _, grad, metrics = evaluate(Config(algo={"advantage": advantage}))
    assert grad == pytest.approx([-1.2 / 3, 0.8 / 3, -1 / 3])
    assert metrics["is_filtered"] == pytest.approx(2 / 3)


def test_is_correction_that_would_do_nothing_is_refused():
    with pytest.raises(ValueError, match=r"is_correction_level = 'token' .* actor\.policy_loss_type = 'gspo'"):
        Config(actor={"policy_loss_type": "gspo"}, algo={"advantage": {"is_correction_level": "token"}})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        # Out of the band are the tokens on which both policies agree, of ratio 1: all, at the first update.
        ({"is_correction_threshold": (5.0, 0.5)}, r"threshold = \(5.0, 0.5\) "),
        ({"is_correction_threshold": (0.02,)}, r"threshold = \(0.02,\) "),
        ({"is_correction_threshold": (2.0, 5.0)}, r"threshold = \(2.0, 5.0\) "),
        ({"is_correction_threshold": (0.5,), "is_correction_mode": "clip"}, r"threshold = \(0.5,\) "),
        (
            {"is_correction_threshold": (0.0,), "is_correction_gating": "binary_kl"},
            r"threshold = \(0.0,\) .*binary_kl",
        ),
        ({"is_correction_threshold": (1.0,), "is_correction_gating": "tv"}, r"threshold = \(1.0,\) .*tv"),
    ],
)
def test_a_band_that_leaves_out_everything_or_nothing_is_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Config(algo={"advantage": {"is_correction_level": "token", **settings}})
    assert Config(algo={"advantage": settings}), "without a level nothing looks at it"


@pytest.mark.parametrize("level", ["token", "seq"])
@pytest.mark.parametrize(("gating", "threshold"), [("ratio", (0.8, 1.2)), ("binary_kl", (0.02,)), ("tv", (0.03,))])
def test_only_the_ratio_of_a_token_can_be_clipped(level, gating, threshold):
    """A divergence, or the mean over a sequence, is no importance weight."""
    correction = {
        "is_correction_level": level,
        "is_correction_mode": "clip",
        "is_correction_gating": gating,
        "is_correction_threshold": threshold,
    }
    allowed = (level, gating) == ("token", "ratio")
    with contextlib.nullcontext() if allowed else pytest.raises(ValueError, match="is_correction_mode"):
        Config(algo={"advantage": correction})


def test_without_is_correction_nothing_is_filtered():
    assert "is_filtered" not in evaluate(Config())[2]


def test_a_single_threshold_is_an_upper_bound():
    advantage = {"is_correction_level": "token", "is_correction_threshold": (1.2,)}
    assert evaluate(Config(algo={"advantage": advantage}))[1] == pytest.approx([0.0, 0.7 / 3, -1 / 3])


def test_dual_clip_bounds_the_loss_of_a_negative_advantage():
    # ratio 5, A = -1: min(-5, -1.28) = -5, bounded at 3 * -1
    loss, grad, _ = evaluate(Config(actor={"dual_clip": 3.0}), ratios=(5.0, 1.0, 1.0), advantages=(-1.0, 0.0, 0.0))
    assert loss == pytest.approx(3 / 3)
    assert grad[0] == 0.0


def test_a_trained_tool_token_has_ratio_one_and_stays_out_of_the_rollout_statistics():
    _, grad, metrics = evaluate(Config(), sampled=(0, 1, 1))
    assert grad[0] == pytest.approx(-1 / 3)
    assert metrics["log_ratio_abs_max"] == pytest.approx(-math.log(0.7))
    assert metrics["trained_tokens"] == 3


def test_the_entropy_bonus_is_subtracted_at_the_same_scale():
    plain = evaluate(Config())[0]
    assert evaluate(Config(actor={"entropy_coef": 0.1}))[0] == pytest.approx(plain - 0.1 * 3.0)
    assert evaluate(Config(actor={"entropy_coef": 0.0}))[0] == pytest.approx(plain)


def test_dp_size_scales_what_deepspeed_will_average():
    assert evaluate(Config(), dp_size=2)[0] == pytest.approx(2 * evaluate(Config())[0])


def test_gspo_clips_by_the_sequences_mean_log_ratio():
    # log 2 and -log 2 cancel: the sequence's ratio is 1, nothing is clipped
    metrics = evaluate(Config(actor={"policy_loss_type": "gspo"}), ratios=(2.0, 0.5, 1.0))[2]
    assert metrics["clip_low"] == metrics["clip_high"] == 0.0


def test_gspo_trains_all_tokens_of_a_response_by_the_mean_of_their_advantages():
    """So credit to turns is refused with it, and remarked on what else is of tokens. (3 + 0 - 1.5) / 3 = .5."""
    on_policy = {"ratios": (1.0, 1.0, 1.0), "advantages": (3.0, 0.0, -1.5)}
    assert evaluate(Config(), **on_policy)[1] == pytest.approx([-1.0, 0.0, 0.5])
    of_response = evaluate(Config(actor={"policy_loss_type": "gspo"}), **on_policy)[1]
    assert of_response == pytest.approx([-0.5 / 3] * 3)


def test_the_diagnostics_of_stale_and_fresh_tokens_are_told_apart():
    metrics = evaluate(Config(), lag=(2, 0, 1))[2]
    w = RATIOS
    assert metrics["kl_rollout"] == pytest.approx(sum(r - 1 - math.log(r) for r in w) / 3)
    assert metrics["ess"] == pytest.approx(sum(w) ** 2 / (3 * sum(r * r for r in w)))
    # Engine mismatch: the only token of the current version.
    assert metrics["mismatch_max"] == metrics["mismatch_mean_abs"] == pytest.approx(-math.log(0.7))
    assert metrics["mismatch_kl"] == pytest.approx(0.7 - 1 - math.log(0.7))
    # Version lag: the other two.
    assert metrics["lag_mean_abs"] == pytest.approx((math.log(1.5) + 0.0) / 2, abs=1e-6)
    assert metrics["lag_kl"] == pytest.approx((1.5 - 1 - math.log(1.5) + 0.0) / 2)
    assert metrics["lag_share"] == pytest.approx(2 / 3)
    assert (metrics["staleness_mean"], metrics["staleness_max"]) == (1.0, 2.0)
    assert (metrics["entropy"], metrics["advantage_abs_mean"]) == (3.0, 1.0)


def test_a_half_without_tokens_has_no_figures():
    assert not {"lag_mean_abs", "lag_kl"} & evaluate(Config())[2].keys()
    assert not {"mismatch_mean_abs", "mismatch_kl"} & evaluate(Config(), lag=(1, 1, 1))[2].keys()
