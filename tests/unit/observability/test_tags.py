"""Tags: every metric of docs/metrics.md is in one of a dozen groups, and in the one where it is looked for."""

import pytest

from openrlhf_tir.observability.tags import GROUPS, tag
from tests.contract.docs.docs_blocks import glossary


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("eval/accuracy", "eval/accuracy"),
        ("eval/guess/pass_at_4", "eval/guess/pass_at_4"),
        ("env/guess/drops/too_long", "env/guess/drops/too_long"),
        ("reward_mean", "reward/reward_mean"),
        ("reward/format", "reward/format"),
        ("drops/too_long", "groups/drops/too_long"),
        ("failed/timeout", "groups/failed/timeout"),
        ("accuracy", "rollout/accuracy"),
        ("code_ratio", "rollout/code_ratio"),
        ("kl_rollout", "off_policy/kl_rollout"),
        ("kl_ref", "learner/kl_ref"),
        ("grad_norm", "learner/grad_norm"),
        ("critic_loss", "critic/critic_loss"),
        ("canary_level", "weights/canary_level"),
        ("push_mib", "weights/push_mib"),
        ("push_write_s", "weights/push_write_s"),
        ("push_s", "time/push_s"),
        ("wall_s", "time/wall_s"),
        ("tokens_per_s", "engines/tokens_per_s"),
        ("gpu_memory_gib", "engines/gpu_memory_gib"),
        ("of_a_learner_of_ones_own", "learner/of_a_learner_of_ones_own"),
    ],
)
def test_a_metric_is_where_it_is_looked_for(name, expected):
    assert tag(name) == expected


def test_all_metrics_are_in_a_dozen_groups_and_no_two_have_one_tag():
    names = sorted(glossary())
    tags = [tag(name) for name in names]
    assert len(names) > 100 and len(set(tags)) == len(tags)
    assert {t.partition("/")[0] for t in tags} <= set(GROUPS) and len(GROUPS) <= 12
