"""What benchmarks write at their end is tried out at their start, and what they wait for may fail."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import re
from types import SimpleNamespace

import pytest

from benchmarks.command import output_file
from benchmarks.pipeline import __main__ as pipeline
from benchmarks.pipeline import ledger
from openrlhf_tir.simulation.workload import SEED_WORKLOAD, Workload


def test_the_directory_of_an_output_file_is_made(tmp_path):
    path = tmp_path / "a" / "b.json"
    assert output_file(str(path)) == path
    path.write_text("{}")
    assert output_file(str(path)).read_text() == "{}"


def test_an_output_file_that_cannot_be_written_is_refused_before_the_run(tmp_path):
    with pytest.raises(argparse.ArgumentTypeError, match=rf"^{re.escape(str(tmp_path))} .*{os.strerror(errno.EISDIR)}"):
        output_file(str(tmp_path))


def test_a_part_of_the_ledger_benchmark_that_dies_ends_it(tmp_path):
    with pytest.raises(SystemExit, match=r"^replay .* 1\b"):
        ledger.measured(ledger.replay, tmp_path)


def test_the_figures_of_an_earlier_benchmark_are_not_left_as_those_of_one_without_runs(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text('{"1 sync": []}')
    args = argparse.Namespace(
        json=path, rollout_s=10.0, ratios=[1.0], modes=[pipeline.ADVISED], repeats=1, steps=6, time_scale=1.0,
        markdown=None, plot=None, late=None, quick=True,
    )  # fmt: skip
    asyncio.run(pipeline.measure(SimpleNamespace(workload=Workload.read(SEED_WORKLOAD)), args))
    assert path.read_text() == "{}"
