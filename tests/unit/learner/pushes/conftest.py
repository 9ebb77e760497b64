"""What several tests of the learner start from."""

from __future__ import annotations

import pytest


@pytest.fixture
def one_rank(monkeypatch):
    """What is written for a push is agreed upon by one rank, without a process group."""
    from openrlhf_tir.learner import weights_file

    def agree(fault):
        if fault:
            raise fault

    monkeypatch.setattr(weights_file, "agree", agree)
