"""The house stays tidy: no folder holds more modules than one sees at a glance, and the main loop fits its screen."""

from __future__ import annotations

from collections import Counter

from tests.conftest import REPO

ROOMS = ("openrlhf_tir", "env_servers", "benchmarks", "tests", "examples")
MOST, LOOP_LINES = 20, 200


def test_no_folder_has_more_than_twenty_modules():
    held = Counter(
        path.parent.relative_to(REPO).as_posix()
        for room in ROOMS
        for path in (REPO / room).rglob("*.py")
        if path.name != "__init__.py"
    )
    assert {folder: n for folder, n in held.items() if n > MOST} == {}, "give a group of them a folder of their own"
    assert len(held) > 40


def test_the_main_loop_fits_its_screen():
    assert len((REPO / "openrlhf_tir/pipeline/loop.py").read_text().splitlines()) <= LOOP_LINES
