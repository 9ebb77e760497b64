"""Shared fixtures. Golden vectors live outside the repository; tests that need them skip where they are not."""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

REPO = Path(__file__).resolve().parents[1]
GOLDEN = REPO.parent / "shared" / "golden"


settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")
# of its own: a test that imports vLLM sets the root logger to ERROR
logging.getLogger("openrlhf_tir").setLevel(logging.WARNING)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected, and leave what was loaded then out of every later collection.

    Thousands of modules and tests stay for good. Looking through them again and again took a third of the 30 CPU
    seconds that each process of xdist needs to collect the unit tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the files with the most slow tests to xdist's processes first: one that begins last would be waited for.

    Takes effect with --no-loadscope-reorder; without it xdist sorts by the number of tests, whatever they cost. The end
    to end tests keep the order of their names, because one file breaks the engine that the others share (e2e/conftest).
    """
    if not hasattr(config, "workerinput") or getattr(config.option, "loadscopereorder", True):
        return
    end_to_end = Path(__file__).parent / "e2e"
    slow_tests = Counter(
        item.path for item in items if item.get_closest_marker("slow") and end_to_end not in item.path.parents
    )
    items.sort(key=lambda item: -slow_tests[item.path])  # stable: a file's tests, and equal files, keep their order


@pytest.fixture(autouse=True)
def own_loggers_as_in_a_fresh_process():
    """A command that runs in this process takes our logger for itself (telemetry/own_log.py), and importing vLLM
    silences the root, what existed before and every handler of the root, caplog's own among them: a test's caplog must
    see our loggers all the same, whatever ran before it."""
    root = logging.getLogger()
    for handler in root.handlers:
        handler.setLevel(logging.NOTSET)
    ours = [
        (logger, logging.NOTSET)
        for name, logger in [*root.manager.loggerDict.items()]
        if name.partition(".")[0] == "openrlhf_tir" and isinstance(logger, logging.Logger)
    ]
    for logger, level in [(root, logging.WARNING), *ours]:
        if logger.level != level:  # setting it empties the caches of every logger that there is
            logger.setLevel(level)
    for logger, _ in ours:
        logger.propagate, logger.disabled = True, False
        logger.handlers.clear()


@pytest.fixture
def repo() -> Path:
    return REPO


@pytest.fixture
def golden_dir() -> Path:
    if not GOLDEN.is_dir():
        pytest.skip(f"no golden vectors at {GOLDEN}")
    return GOLDEN
