"""Shared fixtures. Golden vectors live outside the repository; tests that need them skip where they are not."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import settings

REPO = Path(__file__).resolve().parents[1]
GOLDEN = REPO.parent / "shared" / "golden"


settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")
logging.getLogger("openrlhf_tir").setLevel(logging.WARNING)  # of its own: a test that imports vLLM sets the root logger to ERROR


@pytest.fixture(autouse=True)
def own_logger_as_it_was():
    """A command that a test runs in this process takes our logger for itself (logs/own_log.py); the next test's caplog must see it."""
    logger = logging.getLogger("openrlhf_tir")
    before = logger.level, logger.propagate, logger.handlers[:], logger.disabled
    yield
    logger.setLevel(before[0])
    logger.propagate, logger.handlers[:], logger.disabled = before[1:]


@pytest.fixture
def repo() -> Path:
    return REPO


@pytest.fixture
def golden_dir() -> Path:
    if not GOLDEN.is_dir():
        pytest.skip(f"no golden vectors at {GOLDEN}")
    return GOLDEN
