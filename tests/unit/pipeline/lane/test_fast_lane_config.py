"""What a fast lane does not go with is refused at the start."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from openrlhf_tir.config import Config
from openrlhf_tir.config.settings import load
from openrlhf_tir.errors import ConfigError


def config(**overrides) -> Config:
    return load(
        None,
        {
            "vllm.num_engines": 4,
            "actor.num_gpus_per_node": 1,
            **{k.replace("__", "."): v for k, v in overrides.items()},
        },
    )


def test_it_is_off_unless_it_is_asked_for():
    assert Config().pipeline.fast_lane == "off"
    assert config(pipeline__fast_lane="3").pipeline.fast_lane == 3
    assert config(pipeline__fast_lane="auto").pipeline.fast_lane == "auto"


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ({"pipeline__fast_lane": "4"}, r"vllm\.num_engines = 4.* 3"),
        (
            {"pipeline__fast_lane": "auto", "vllm__num_engines": 1},
            r"pipeline\.fast_lane = 'auto' .*vllm\.num_engines = 1\b",
        ),
        (
            {"pipeline__fast_lane": "1", "vllm__num_engines": 1},
            r"pipeline\.fast_lane = 1 .*vllm\.num_engines = 1\b",
        ),
        ({"pipeline__fast_lane": "1", "pipeline__mode": "sync"}, r"pipeline\.fast_lane = 1 .*pipeline\.mode = 'sync'"),
        (
            {"pipeline__fast_lane": "1", "pipeline__mode": "pipeline_drain"},
            r"pipeline\.fast_lane = 1 .*pipeline\.mode = 'pipeline_drain'",
        ),
        ({"pipeline__fast_lane": "1", "rollout__agent": "external"}, r"pipeline\.fast_lane = 1 "),
        ({"pipeline__fast_lane": "fast"}, "'fast'"),
        ({"pipeline__fast_lane": "0"}, r"fast_lane = '?0'? "),
    ],
)
def test_a_lane_that_cannot_be_is_refused_with_a_remedy(overrides, why):
    with pytest.raises((ConfigError, ValidationError), match=why):
        config(**overrides)
