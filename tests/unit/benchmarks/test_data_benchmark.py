"""benchmarks.data measures a start on the data set that its last line names."""

from __future__ import annotations

import pytest

from benchmarks import data


def test_a_data_set_of_another_size_or_one_that_was_cut_off_is_not_used_again(tmp_path, monkeypatch):
    written = []

    def write(path, rows, distinct):
        path.write_text("begun")
        if rows == 3:
            raise KeyboardInterrupt
        written.append((rows, distinct))

    monkeypatch.setattr(data, "write_data_set", write)
    for rows in (5, 5, 7):
        assert data.made_data_set(tmp_path, rows, 2) == tmp_path / data.DATA_SET
    with pytest.raises(KeyboardInterrupt):
        data.made_data_set(tmp_path, 3, 2)
    data.made_data_set(tmp_path, 7, 2)
    assert written == [(5, 2), (7, 2), (7, 2)]


def test_the_first_start_finds_an_empty_cache_also_in_a_directory_that_was_used_before(tmp_path, monkeypatch):
    found = []

    def measured(directory, model):
        cache = directory / data.CACHE
        found.append(cache.exists())
        cache.mkdir(exist_ok=True)
        return {}

    monkeypatch.setattr(data, "write_data_set", lambda path, rows, distinct: path.touch())
    monkeypatch.setattr(data, "measured", measured)
    monkeypatch.setattr("sys.argv", ["benchmarks.data", "--directory", str(tmp_path), "--model", "m"])
    data.main()
    data.main()
    assert found == [False, True, False, True]
