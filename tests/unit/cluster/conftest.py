from __future__ import annotations

import pytest


@pytest.fixture
def ray(monkeypatch, tmp_path):
    from openrlhf_tir.cluster import nodes

    from .fake_ray import Ray

    monkeypatch.chdir(tmp_path)  # run directories are made
    yield Ray(monkeypatch)
    nodes.has_gpus.cache_clear()
