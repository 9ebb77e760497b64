"""Output whose reader is gone, a full disk behind it, and output that is not kept back."""

from __future__ import annotations

import io
import os
import sys

import pytest

from openrlhf_tir.cluster.lasting_output import lasting_output


@pytest.fixture
def pipe(monkeypatch):
    """Standard output is a pipe; returns its other end, and a function that makes it unbuffered or not."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)

    def standard_output(*, write_through: bool) -> io.TextIOWrapper:
        stream = io.TextIOWrapper(io.FileIO(writing, "w", closefd=False), "utf-8", write_through=write_through)
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    yield reading, standard_output
    os.close(reading)
    os.close(writing)


def test_output_that_was_unbuffered_is_so_within(pipe):
    reading, standard_output = pipe
    before = standard_output(write_through=True)
    with lasting_output():
        sys.stdout.write("half a line, ")
        assert os.read(reading, 100) == b"half a line, "
        sys.stdout.write("x" * 20_000)
        assert os.read(reading, 30_000) == b"x" * 20_000
        assert sys.stdout.write_through
    assert sys.stdout is before


def test_output_that_was_buffered_is_so_within_and_whole_behind_it(pipe):
    reading, standard_output = pipe
    before = standard_output(write_through=False)
    with lasting_output():
        sys.stdout.write("half a line")
        with pytest.raises(BlockingIOError):
            os.read(reading, 100)
    assert os.read(reading, 100) == b"half a line"
    assert sys.stdout is before


@pytest.mark.parametrize("write_through", [True, False])
def test_a_full_disk_loses_lines_and_leaves_the_streams_as_they_were(monkeypatch, write_through):
    with open("/dev/full", "wb", buffering=0) as full:
        before = io.TextIOWrapper(full, "utf-8", write_through=write_through)
        monkeypatch.setattr(sys, "stdout", before)
        errors = sys.stderr
        with lasting_output():
            sys.stdout.write("lost")
            sys.stdout.flush()
        assert (sys.stdout, sys.stderr) == (before, errors)
        before.detach()


def test_a_reader_that_goes_away_costs_nothing(pipe):
    reading, standard_output = pipe
    standard_output(write_through=True)
    other = os.dup(reading)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, reading)
    os.close(null)
    os.close(other)
    with lasting_output():
        sys.stdout.write("nobody reads this")
        sys.stdout.write("nor this")
