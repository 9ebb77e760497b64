"""Prepared data: repeated problems are done once, rows stay rows, and later starts take what an earlier one left."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import pwd
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_tir.config import Data
from openrlhf_tir.data import cache, load_prompts
from openrlhf_tir.data.bad_rows import BadRows
from openrlhf_tir.data.identity import tasks_digest
from openrlhf_tir.data.prompts import distinct_problems
from openrlhf_tir.data.stored_rows import ROWS_A_BATCH, RowWriter, StoredRows
from openrlhf_tir.errors import DataError
from openrlhf_tir.rewards import toolrl
from openrlhf_tir.rewards.checking.answer_text import last_boxed
from openrlhf_tir.types import Task

DAPO = (
    "Solve the following math problem step by step. Some words.\n\n{}\n\nRemember to put your answer on its own line."
)


class Backend:
    def __init__(self, name):
        self.name = name

    def to_str(self):
        return self.name


class CountingTokenizer:
    """One token per character; counts the prompts that it is asked for."""

    chat_template = None

    def __init__(self, name="a"):
        self.backend_tokenizer = Backend(name)
        self.asked = []

    def __call__(self, texts, add_special_tokens):
        self.asked += texts
        return {"input_ids": [[0] * len(text) for text in texts]}


def dapo(path, copies=3, problems=("1+1?", "2+2?", "much too long a question")):
    """The parquet file of DAPO-Math-17k in small: its columns, and every problem several times."""
    rows = [
        {
            "data_source": "math_dapo",
            "prompt": [{"content": DAPO.format(problem), "role": "user"}],
            "ability": "MATH",
            "reward_model": {"ground_truth": str(number), "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"{copy}-{number}"},
        }
        for copy in range(copies)
        for number, problem in enumerate(problems)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Every data set is large enough for the cache, which is in a directory of the test."""
    monkeypatch.setattr(cache, "CACHED_FROM_BYTES", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def prompts_of(source, tokenizer, **data):
    return load_prompts(Data(prompt_dataset=source, **data), tokenizer, max_prompt_tokens=10)


def test_a_problem_is_tokenised_once_and_stays_as_many_rows_as_it_has(tmp_path):
    tokenizer = CountingTokenizer()
    prompts = prompts_of(dapo(tmp_path / "d.parquet"), tokenizer)
    assert tokenizer.asked == ["1+1?", "2+2?", "much too long a question"]
    assert [(task.prompt, task.label) for task in prompts.tasks] == [("1+1?", "0"), ("2+2?", "1")] * 3
    assert prompts.dropped == {"prompt_too_long": 3} and len(prompts.tasks.rows) == 2 and len(prompts) == 6


def test_small_data_leaves_nothing_on_disk(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    prompts_of(dapo(tmp_path / "d.parquet"), CountingTokenizer())
    assert not (tmp_path / "cache").exists()


def test_a_later_start_gives_the_same_prompts_and_asks_no_tokenizer(tmp_path, cached):
    source = dapo(tmp_path / "d.parquet")
    first, later = CountingTokenizer(), CountingTokenizer()
    before, after = prompts_of(source, first), prompts_of(source, later)
    assert [*before.tasks] == [*after.tasks] and len(after) == 6
    assert (before.dropped, len(before.tasks.rows)) == (after.dropped, len(after.tasks.rows))
    assert len(first.asked) == 3 and later.asked == []


@pytest.mark.parametrize("change", ["content", "template", "tokenizer", "limit", "labels"])
def test_whatever_a_prompt_is_made_of_makes_it_anew(tmp_path, cached, change):
    source = dapo(tmp_path / "d.parquet")
    prompts_of(source, CountingTokenizer())
    again = CountingTokenizer("b" if change == "tokenizer" else "a")
    if change == "content":
        dapo(tmp_path / "d.parquet", problems=("3+3?", "2+2?", "1+1?"))
    data = Data(prompt_dataset=source, input_template="Q {}" if change == "template" else None)
    limit = 11 if change == "limit" else 10
    free = ("python_tir",) if change == "labels" else ()
    prompts = load_prompts(data, again, max_prompt_tokens=limit, unlabelled=free)
    assert len(again.asked) == 3
    assert prompts[0].prompt == {"content": "3+3?", "template": "Q 1+1?"}.get(change, "1+1?")


@pytest.mark.parametrize("reads", [load_prompts, last_boxed, toolrl.gold_calls, Task])
def test_all_code_that_reads_rows_is_part_of_an_entrys_name(reads):
    assert Path(inspect.getfile(reads)) in cache.code_files()


def test_an_entrys_name_changes_with_that_code(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "code_files", lambda: [tmp_path / "code.py"])
    digests = []
    for code in ("a = 1", "a = 2"):
        (tmp_path / "code.py").write_text(code)
        cache.code_digest.cache_clear()
        digests.append(cache.Entry(tmp_path, "prompts", "x").digest)
    cache.code_digest.cache_clear()
    assert digests[0] != digests[1]


def of_two_levels(path):
    path.write_text("".join(json.dumps({"prompt": "Q", "label": "1", "env": "a", "level": n}) + "\n" for n in (1, 2)))
    return str(path)


def test_a_column_that_only_a_later_starts_template_names_tells_its_rows_apart(tmp_path, cached):
    source = of_two_levels(tmp_path / "d.jsonl")
    for template, prompts in ((None, ["Q", "Q"]), ("{} {level}", ["Q 1", "Q 2"])):
        assert [task.prompt for task in prompts_of(source, None, input_template=template).tasks] == prompts


def test_a_column_that_an_environments_template_names_tells_its_rows_apart(tmp_path):
    data = Data(prompt_dataset=of_two_levels(tmp_path / "d.jsonl"))
    prompts = load_prompts(data, templates_of={"a": "{} {level}", "b": None})
    assert [task.prompt for task in prompts.tasks] == ["Q 1", "Q 2"]


def test_bad_rows_are_told_by_a_later_start_as_by_the_first(tmp_path, cached):
    path = tmp_path / "d.jsonl"
    path.write_text('{"prompt": "a", "label": "1"}\n{"prompt": "b"}\n{"prompt": "b"}\n')
    data = Data(prompt_dataset=str(path), on_bad_row="skip")
    told = []
    for _ in range(2):
        bad = BadRows("skip")
        problems = distinct_problems(data, bad, ())
        told.append((len(problems.distinct), bad.count, bad.listed))
    assert told[0] == told[1] and told[0][:2] == (1, 2) and len(told[0][2]) == 2
    with pytest.raises(DataError):
        distinct_problems(data.model_copy(update={"on_bad_row": "error"}), BadRows("error"), ())


def test_a_bad_problem_counts_as_often_as_it_stands_in_the_data(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"prompt": "p", "label": "1", "env": env}) + "\n" for env in "axxa"))
    data = Data(prompt_dataset=str(path), on_bad_row="skip")
    prompts = load_prompts(data, templates_of={"a": None, "b": None})
    assert prompts.dropped == {"bad_row": 2} and len(prompts) == 2


def test_a_later_start_counts_the_problems_that_make_no_prompt_as_the_first_does(tmp_path, cached):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"prompt": "p", "label": "1", "env": env}) + "\n" for env in "axxa"))
    data = Data(prompt_dataset=str(path), on_bad_row="skip")
    for _ in range(2):
        prompts = load_prompts(data, CountingTokenizer(), templates_of={"a": None, "b": None})
        assert prompts.dropped == {"bad_row": 2} and len(prompts) == 2


def test_of_the_bad_rows_that_are_added_as_many_are_listed_as_there_is_room_for():
    bad = BadRows("skip", most=3)
    bad(DataError("a"))
    bad.add(5, ["b", "c", "d"])
    assert (bad.count, bad.listed) == (6, ["a", "b", "c"])


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "CACHED_FROM_BYTES", 1)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    prompts = prompts_of(dapo(tmp_path / "d.parquet"), CountingTokenizer())
    assert len(prompts) == 6


def test_a_user_without_a_home_directory_has_no_cache(tmp_path, monkeypatch):
    """A container runs as a user that it has no name for."""
    monkeypatch.setattr(cache, "CACHED_FROM_BYTES", 1)
    for variable in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    nobody = max(user.pw_uid for user in pwd.getpwall()) + 1
    monkeypatch.setattr(os, "getuid", lambda: nobody)
    assert len(prompts_of(dapo(tmp_path / "d.parquet"), CountingTokenizer())) == 6


def test_an_entry_that_fails_half_way_is_not_there(tmp_path):
    entry = cache.Entry(tmp_path / "cache", "prompts", "x")

    def write(building):
        (building / "half").write_text("")
        raise DataError("a bad row")

    with pytest.raises(DataError):
        entry.make(write)
    assert entry.existing() is None and [*(tmp_path / "cache").iterdir()] == []


def test_the_digest_of_stored_tasks_is_that_of_a_list_and_is_kept(tmp_path, cached):
    source = dapo(tmp_path / "d.parquet")
    stored = prompts_of(source, CountingTokenizer()).tasks
    assert tasks_digest(stored, "asked", lambda t: t.prompt) == tasks_digest([*stored], "asked", lambda t: t.prompt)
    again = prompts_of(source, CountingTokenizer()).tasks
    asked = []
    tasks_digest(again, "asked", asked.append)
    assert not asked, "the digest was taken from the cache"


@pytest.mark.parametrize("on_disk", [True, False])
def test_stored_rows_are_a_sequence_whatever_batch_they_are_in(tmp_path, on_disk):
    rows = [(str(i), None if i % 2 else "x") for i in range(ROWS_A_BATCH * 2 + 3)]
    with RowWriter(tmp_path / "rows" if on_disk else None, ("a", "b")) as writer:
        places = [writer.append(row) for row in rows]
    stored = StoredRows(writer.source, tuple)
    assert places == [*range(len(rows))] and [*stored] == rows and len(stored) == len(rows)
    assert (stored[ROWS_A_BATCH], stored[-1], stored[2:4]) == (rows[ROWS_A_BATCH], rows[-1], rows[2:4])
    assert stored.column("a").to_pylist() == [a for a, _ in rows]
    assert [*pickle.loads(pickle.dumps(stored))] == rows
    with pytest.raises(IndexError):
        stored[len(rows)]
