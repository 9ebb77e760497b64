"""Files that are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from openrlhf_tir.machine.files import replace_text


def test_a_file_that_the_disk_refuses_half_way_keeps_its_old_content(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    replace_text(path, "old")
    written = Path.write_text

    def half(self, text, **options):
        written(self, text[: len(text) // 2], **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match=r"\[Errno 28\]"):
        replace_text(path, "new content")
    assert path.read_text() == "old"


def test_a_replaced_file_has_the_new_content_and_leaves_nothing_beside_it(tmp_path):
    path = tmp_path / "status.json"
    replace_text(path, "old")
    replace_text(path, "new")
    assert path.read_text() == "new" and [*tmp_path.iterdir()] == [path]
