"""The runner counts, prints and exits as it promises."""

from __future__ import annotations

import json

import pytest

from tests.golden.__main__ import main
from tests.golden._compare import mismatches, same


@pytest.fixture
def rows(tmp_path):
    def write(stem, *rows):
        path = tmp_path / f"{stem}.jsonl"
        path.write_text("".join(json.dumps(r) + "\n" for r in rows))
        return str(path)

    return write


def overlong(expected, **more):
    return {
        "id": "r",
        "kind": "soft_overlong",
        "length": 7936,
        "max_length": 8192,
        "cache": 512,
        "expected": expected,
        **more,
    }


def test_failures_are_named_and_set_the_exit_code(rows, capsys):
    assert main([rows("zerotir", overlong(-0.5), {**overlong(-0.4), "id": "bad"})]) == 1
    out = capsys.readouterr().out
    assert "zerotir bad" in out
    assert "-0.5 is not -0.4" in out
    assert out.endswith("1 passed, 1 failed, 0 skipped\n")


def test_rows_that_expect_a_defect_need_compat(rows, capsys):
    path = rows("zerotir", overlong(-0.5, compat_only=True))
    assert main([path]) == 0
    assert capsys.readouterr().out == "0 passed, 0 failed, 1 skipped\n"
    assert main(["--compat", path]) == 0
    assert capsys.readouterr().out == "1 passed, 0 failed, 0 skipped\n"


def test_unknown_files_and_kinds_are_skipped(rows, capsys):
    assert main([rows("nobody_knows", {"id": "x"}), rows("zerotir", {"id": "y", "kind": "new"})]) == 0
    assert capsys.readouterr().out == "0 passed, 0 failed, 2 skipped\n"


def test_a_check_that_raises_is_a_failure(rows, capsys):
    assert main([rows("zerotir", {"id": "z", "kind": "soft_overlong"})]) == 1
    assert "raised KeyError: 'length'" in capsys.readouterr().out


def test_floats_agree_within_1e_9_and_bools_are_not_numbers():
    assert same(0.1 + 0.2, 0.3)
    assert not same(0.3, 0.3 + 1e-8)
    assert same(-0.0, 0)
    assert same((1, [2.0]), [1.0, [2]])
    assert not same(True, 1)
    assert not same(None, 0)
    assert mismatches({"a": 1}, {"a": 1, "b": 2}) == ["b: 'nothing' is not 2"]
    assert mismatches({"a": 1}, {"a": 1, "b": 2}, skip=["b"]) == []
