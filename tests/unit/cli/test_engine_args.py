"""vllm.engine_args: a name that vLLM does not have is refused before anything is loaded."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from openrlhf_tir.cli.checks.engine_args import _known, check_engine_args
from openrlhf_tir.config import Config
from openrlhf_tir.config.engine_args import BREAKING, FAMILIES, NEEDED, OWN
from openrlhf_tir.errors import ConfigError


def test_a_name_that_vllm_does_not_have_is_refused_with_the_one_that_it_has():
    cfg = Config(vllm={"engine_args": {"max_num_batched_token": 8192}})
    with pytest.raises(ConfigError, match=r"vllm\.engine_args.* max_num_batched_token .*max_num_batched_tokens\b"):
        check_engine_args(cfg, frozenset({"max_num_batched_tokens"}))


def test_what_is_passed_on_is_said():
    cfg = Config(vllm={"engine_args": {"max_num_batched_tokens": 8192}})
    (fact,) = check_engine_args(cfg)
    assert fact.endswith("max_num_batched_tokens = 8192")
    assert check_engine_args(Config()) == []


def test_another_engine_takes_none():
    with pytest.raises(ConfigError, match=r"vllm\.engine_args .*rollout\.engine = 'torch'"):
        check_engine_args(Config(rollout={"engine": "torch"}, vllm={"engine_args": {"max_num_batched_tokens": 8192}}))


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_every_argument_that_is_refused_is_one_of_the_installed_vllm():
    """One that vLLM renames would be let through under its new name."""
    assert not [prefix for prefix in FAMILIES.values() if not any(name.startswith(prefix) for name in _known())]
    assert (OWN.keys() | NEEDED.keys() | BREAKING.keys()) - _known() == set()
