"""The emulated cluster's workload: distributions, the decode curve, draws that depend on seed and prompt alone."""

from __future__ import annotations

import math
import statistics

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Acceptance, EngineSpec, Lognormal, Workload
from openrlhf_tir.types import GroupKey

SEED_FILE = SEED_WORKLOAD


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload.read(SEED_FILE)


def test_the_seed_file_is_read_as_it_stands(workload):
    assert (workload.prompts, workload.samples_per_prompt, workload.steps, workload.tool_calls) == (128, 16, 12, 2)
    assert (workload.engine.count, workload.engine.max_running, workload.env_capacity) == (8, 256, 256)
    assert workload.learner_seconds_per_step == "match"
    assert (workload.late.start, workload.late.end, workload.late.steps) == (0.8, 0.1, 40)


def test_decode_rate_is_linear_between_the_points_and_constant_beyond():
    engine = EngineSpec(1, 4, 100, ((1.0, 60.0), (32.0, 1500.0)), 1e4, 1.0)
    assert engine.decode_rate(1) == 60
    assert engine.decode_rate(32) == 1500
    assert engine.decode_rate(2) == pytest.approx(60 + 1440 / 31)
    assert engine.decode_rate(500) == 1500
    assert engine.saturated_tokens_per_s == pytest.approx(60 + 3 * 1440 / 31)  # four sequences at most


def test_a_lognormal_has_its_median_p99_and_mean():
    d = Lognormal(700, 6000, 8192)
    assert d.sigma == pytest.approx(math.log(6000 / 700) / 2.3263, rel=1e-4)
    assert Lognormal(1, math.e**2.3263478740408408).mean == pytest.approx(math.exp(0.5))  # sigma = 1

    class Fixed:
        def lognormvariate(self, mu, sigma):
            return math.exp(mu + 10 * sigma)

    assert d.draw(Fixed()) == 8192


def test_draws_follow_the_distribution_and_not_the_order_of_calls(workload):
    scripts = [workload.script(GroupKey(0, p), i) for p in range(200) for i in range(16)]
    assert workload.script(GroupKey(0, 7), 3) == scripts[7 * 16 + 3]
    assert workload.script(GroupKey(0, 7, attempt=2), 3) == scripts[7 * 16 + 3]
    tokens = [s.model_tokens for s in scripts]
    assert statistics.median(tokens) == pytest.approx(700, rel=0.06)
    assert statistics.mean(tokens) == pytest.approx(workload.response_tokens.mean, rel=0.06)
    assert max(tokens) <= 8192 + 3
    assert all(
        len(s.segments) == 3 and min(s.segments) >= 1 and len(s.latencies_s) == len(s.observations) == 2
        for s in scripts
    )


def test_acceptance_falls_in_a_line_or_jumps_at_half_time():
    fall, jump = Acceptance(0.8, 0.1, 8), Acceptance(0.1, 0.5, 8, jump=True)
    assert [round(fall.at(s), 2) for s in (0, 1, 7, 100)] == [0.8, 0.7, 0.1, 0.1]
    assert [jump.at(s) for s in (0, 3, 4, 7)] == [0.1, 0.1, 0.5, 0.5]


def test_the_accepted_share_is_the_one_asked_for_and_grows_with_it(workload):
    keys = [GroupKey(0, p) for p in range(2000)]
    few, many = ({k for k in keys if workload.accepted(k, share)} for share in (0.1, 0.5))
    assert len(few) == pytest.approx(200, abs=45) and len(many) == pytest.approx(1000, abs=90)
    assert few < many


def test_saturated_rate_is_all_engines_at_their_best_over_a_groups_tokens(workload):
    assert workload.saturated_groups_per_s == pytest.approx(8 * 5500 / (16 * workload.response_tokens.mean))


def test_a_workload_that_cannot_be_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml"):
        Workload.read(tmp_path / "none.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text(SEED_FILE.read_text().replace("segments = 3", "segments = 5"))
    with pytest.raises(ConfigError, match=r"tool_calls \+ 1"):
        Workload.read(bad)
    bad.write_text("seed = 1\n")
    with pytest.raises(ConfigError, match=r"bad\.toml .*'engine'"):
        Workload.read(bad)
