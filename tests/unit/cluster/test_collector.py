"""What a rollout actor's process tells Python's cycle collector when it has started."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import suppress

from openrlhf_tir.cluster.collector import YOUNG, importing

PROBE = """
import gc
from openrlhf_tir.cluster.collector import freeze_what_is_loaded

class Loop:
    def __init__(self):
        self.me = self

    def __del__(self):
        print("collected")

loaded = [[] for _ in range(1000)]
freeze_what_is_loaded()
print("looked through again:", any(o is loaded for o in gc.get_objects()))
started = gc.get_stats()[0]["collections"]
kept = [[] for _ in range(5000)]
print("collections of 5,000 new objects:", gc.get_stats()[0]["collections"] - started)
Loop()
more = [[] for _ in range(20000)]
"""


def test_what_is_loaded_is_not_looked_through_again_and_cycles_are_still_collected():
    said = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=120
    ).stdout.splitlines()
    assert said[:3] == ["looked through again: False", "collections of 5,000 new objects: 0", "collected"], said


def test_imports_are_collected_rarely_and_the_process_has_its_own_threshold_again_after_them():
    given = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        with suppress(ImportError), importing():
            within = gc.get_threshold()
            raise ImportError("not there")
        assert (within, gc.get_threshold()) == ((YOUNG, 10, 10), (700, 10, 10))
    finally:
        gc.set_threshold(*given)
