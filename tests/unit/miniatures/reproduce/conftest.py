"""Pages without curves: drawing takes most of the time of a miniature whose commands are played."""

from __future__ import annotations

import pytest

from miniatures.reproduce import page


@pytest.fixture
def undrawn(monkeypatch):
    """Put a few bytes in the place of each picture; test_page.py draws them."""
    monkeypatch.setattr(page, "curves", lambda *of: None)
    monkeypatch.setattr(page, "png", lambda figure: b"a picture")
