"""The configuration that a run keeps holds no key of a logging service, and still says where the key is."""

import pytest

from openrlhf_tir.config import Config
from openrlhf_tir.config.secrets import without_keys


@pytest.mark.parametrize(("key", "kept"), [(w, w) for w in ("env", "login", "offline")] + [("0123abc", None)])
def test_a_word_for_where_the_key_is_stays_and_the_key_does_not(key, kept):
    assert without_keys(Config(logger={"wandb": {"key": key}})).logger.wandb.key == kept
