from __future__ import annotations

import pytest


@pytest.fixture
def ray(monkeypatch):
    from openrlhf_tir.cluster import nodes

    from .fake_ray import Ray

    yield Ray(monkeypatch)
    nodes.has_gpus.cache_clear()
