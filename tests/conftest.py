"""Shared fixtures. Golden vectors live outside the repository; tests that need them skip where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

REPO = Path(__file__).resolve().parents[1]
GOLDEN = REPO.parent / "shared" / "golden"


settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")


@pytest.fixture
def repo() -> Path:
    return REPO


@pytest.fixture
def golden_dir() -> Path:
    if not GOLDEN.is_dir():
        pytest.skip(f"no golden vectors at {GOLDEN}")
    return GOLDEN
