"""Shared fixtures. Golden vectors live outside the repository; tests that need them skip where they are not."""

from __future__ import annotations

import functools
import gc
import logging
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.logging import catching_logs
from hypothesis import HealthCheck, settings

REPO = Path(__file__).resolve().parents[1]
GOLDEN = REPO.parent / "shared" / "golden"


LEFT_OUT = re.compile(r"not \w+( and not \w+)*")
MARKS_OF_A_FILE = re.compile(r"^pytestmark = (\[\n(    .*\n)*\]|.*)", re.MULTILINE)
settings.register_profile(
    "shared machine", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")
# of its own: a test that imports vLLM sets the root logger to ERROR
logging.getLogger("openrlhf_tir").setLevel(logging.WARNING)


def attach_to_the_root_logger(self: catching_logs) -> logging.Handler:
    """Do what `catching_logs.__enter__` does, for the root logger alone.

    pytest's own also looks for loggers that do not propagate, six times a test, among the thousands that vLLM,
    transformers and torch make: a tenth of what the unit tests cost. Ours propagate (see the fixture below).
    """
    root = logging.getLogger()
    root.addHandler(self.handler)
    self.attached_loggers.append(root)
    if self.level is not None:
        self.handler.setLevel(self.level)
        self.orig_level = root.level
        root.setLevel(min(self.orig_level, self.level))
    return self.handler


catching_logs.__enter__ = attach_to_the_root_logger


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file if all of its tests have a mark that is left out, as by -m "not slow and not long".

    What else -m may say, such as "long or not long", leaves out no file.
    """
    if collection_path.suffix != ".py" or collection_path in named_by(tuple(config.args)):
        return None
    of_the_file = MARKS_OF_A_FILE.search(collection_path.read_text())
    left_out = re.findall(r"not (\w+)", config.option.markexpr) if LEFT_OUT.fullmatch(config.option.markexpr) else []
    named = of_the_file and any(re.search(rf"pytest\.mark\.{mark}\b", of_the_file[0]) for mark in left_out)
    return True if named else None


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


@functools.cache
def named_by(arguments: tuple[str, ...]) -> set[Path]:
    """Return the paths of the files and folders that pytest was asked for; it takes long, and files are many."""
    return {Path(argument.partition("::")[0]).resolve() for argument in arguments}


@functools.lru_cache(1)
def our_names(among: int) -> list[str]:
    """Return the names of the package's loggers; they are looked for anew when there are others than `among` in all."""
    return [name for name in logging.getLogger().manager.loggerDict if name.partition(".")[0] == "openrlhf_tir"]


@pytest.fixture(autouse=True)
def own_loggers_as_in_a_fresh_process():
    """A command that runs in this process takes our logger for itself (telemetry/own_log.py), and importing vLLM
    silences the root, what existed before and every handler of the root, caplog's own among them: a test's caplog must
    see our loggers all the same, whatever ran before it."""
    root = logging.getLogger()
    for handler in root.handlers:
        handler.setLevel(logging.NOTSET)
    loggers = root.manager.loggerDict
    ours = [logger for name in our_names(len(loggers)) if isinstance(logger := loggers[name], logging.Logger)]
    for logger, level in [(root, logging.WARNING), *((logger, logging.NOTSET) for logger in ours)]:
        if logger.level != level:  # setting it empties the caches of every logger that there is
            logger.setLevel(level)
    for logger in ours:
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
