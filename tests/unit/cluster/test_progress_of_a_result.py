"""A command that prints its result leaves standard output to it in a pipe."""

from __future__ import annotations

import io

import pytest

from openrlhf_tir.cluster.jobs.main import _progress


@pytest.mark.parametrize(
    ("is_terminal", "out", "err"), [(False, "result\n", "progress\n"), (True, "progress\nresult\n", "")]
)
def test_progress_goes_to_standard_error_unless_a_person_reads_the_output(monkeypatch, is_terminal, out, err):
    streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}
    streams["stdout"].isatty = lambda: is_terminal
    for name, stream in streams.items():
        monkeypatch.setattr(f"sys.{name}", stream)
    with _progress():
        print("progress")
    print("result")
    assert (streams["stdout"].getvalue(), streams["stderr"].getvalue()) == (out, err)
