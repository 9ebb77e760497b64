"""What `play` asks: a question of the command line, inside the run's template."""

from __future__ import annotations

import pytest

from openrlhf_tir.cluster.jobs.play import pick_task
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError


def test_a_question_goes_through_the_template_unless_that_takes_more_from_a_row():
    assert pick_task(Config(data={"input_template": "Q: {}"}), "1+1?", 0).prompt == "Q: 1+1?"
    with pytest.raises(ConfigError, match="level"):
        pick_task(Config(data={"input_template": "{level}: {}"}), "1+1?", 0)
