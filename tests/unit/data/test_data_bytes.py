"""Rows of any bytes and any types: what can be read is, what the run could not use later is refused at load with file,
line and field."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_tir.config import Data
from openrlhf_tir.data import json_rows, load_prompts
from openrlhf_tir.errors import ConfigError, DataError

GOOD = b'{"prompt": "1+1?", "label": "2"}\n'


def load(path, **data):
    return load_prompts(Data(prompt_dataset=str(path), **data))


def refused(path, kind=DataError, **data) -> str:
    with pytest.raises(kind) as e:
        load(path, **data)
    message = str(e.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 700
    return message


@pytest.fixture
def file(tmp_path):
    def write(raw: bytes, name: str = "d.jsonl"):
        path = tmp_path / name
        path.write_bytes(raw)
        return path

    return write


def test_a_byte_order_mark_is_read_at_the_start_and_where_files_were_joined(file):
    mark = b"\xef\xbb\xbf"
    assert len(load(file(mark + GOOD + mark + GOOD))) == 2
    assert len(load(file(mark + b'[{"prompt": "x", "label": "1"}]', "d.json"))) == 1


def test_an_array_after_blank_lines_is_an_array(file):
    assert len(load(file(b' \r\n\n[{"prompt": "x", "label": "1"}]'))) == 1


@pytest.mark.parametrize(
    ("raw", "fact"),
    [
        (
            GOOD + b'{"prompt": "caf\xe9", "label": "1"}',
            r"d\.jsonl line 2 .*UTF-8.*0xe9.*16 \(.*Latin-1.*'é'\)",
        ),
        (b'{"prompt": "x", "label": "\\ud800"}', r"d\.jsonl line 1: label.*\\ud800.*1"),
        (b'{"prompt": "a\\udc00", "label": "1"}', r"line 1: prompt.*\\udc00.*2"),
        (b'{"prompt": "x", "label": "1", "meta": {"k": ["\\ud800"]}}', r"line 1: meta\.k\[0\]"),
        (b'{"prompt": "x", "label": "1", "meta": {"\\ud800": 1}}', r"line 1: .*meta .*\\ud800"),
        (b'{"prompt": "x", "label": "1", "env": "\\ud800"}', "line 1: env"),
        (b'{"prompt": "x", "label": "1", "datasource": "\\ud800"}', "line 1: datasource"),
        (b'{"prompt": "x", "label": NaN}', "line 1 .*NaN.*JSON"),
        (b'{"prompt": "x", "label": "1", "meta": {"k": -Infinity}}', "line 1 .*-Infinity"),
        (
            b'{"prompt": "x", "label": "1", "meta": {"k": 1e999}}',
            r"line 1: meta\.k = inf.*JSON",
        ),
        (b'{"prompt": "x", "label": ' + b"9" * 5000 + b"}", "line 1 .*4,300"),
        (
            b'{"prompt": "x", "label": ' + b"9" * 30 + b"}",
            "label = 999999999999999999999999999999.*64",
        ),
        (b'{"prompt": "x", "label": "1", "label": "2"}', "line 1 .*'label'"),
        (b'{"prompt": "x", "label": ' + b"[" * 10**5 + b"]" * 10**5 + b"}", "line 1 "),
        (b'{"prompt": "x", "label": ' + b"[" * 99 + b"]" * 99 + b"}", r"line 1: label\[.* 64 "),
        (b'{"prompt": 5, "label": "1"}', "line 1: prompt = 5.*int"),
        (b'{"prompt": {"a": 1}, "label": "1"}', r"line 1: prompt = .*\bdict\b"),
        (b'{"prompt": [1], "label": "1"}', r"line 1: prompt\[0\] = 1"),
        (b'{"prompt": [{"role": "user", "content": 3}], "label": "1"}', r"line 1: prompt\[0\] = "),
        (b'{"prompt": " \\n", "label": "1"}', "line 1 .*'prompt'"),
        (b'{"prompt": "x", "label": "  "}', "line 1 .*'label'"),
        (b'{"prompt": "x", "label": "1", "env": 7}', "line 1: env = 7.*int"),
        (b'{"prompt": "x", "label": "1", "meta": "text"}', "line 1: .*'text' .*str"),
        (b'["prompt", "x"]\n', r"d\.jsonl item 1 .*\bstr\b"),
        (b'"prompt"\n', r"d\.jsonl line 1 .*\bstr\b"),
        (
            b'{\n "prompt": "x",\n "label": "1"\n}',
            "line 1 .*JSON.*JSON",
        ),
        (b"prompt,label\n1+1?,2\n", r"d\.jsonl line 1 .*JSON: Expecting value.*1"),
        ('{"prompt": "x"}'.encode("utf-16"), r"d\.jsonl.*UTF-16, not UTF-8.*-f UTF-16 -t UTF-8"),
        (b"\x1f\x8b\x08\x00", r"d\.jsonl.*gzip-compressed"),
        (b"PAR1....", r"d\.jsonl.*parquet"),
        (b'[{"prompt": "x", "label": "1"}', r"d\.jsonl.*JSON"),
    ],
)
def test_a_bad_row_is_refused_with_file_line_and_field(file, raw, fact):
    assert re.search(fact, refused(file(raw)))


def test_a_zerotir_label_is_checked_inside(file):
    row = {"prompt": "x", "label": '{"gold_ans": "1", "k": NaN}'}
    assert "line 1: label.k = nan" in refused(file(json.dumps(row).encode()))
    row["label"] = '{"gold_ans": "1", "env_func": ["math_tir"]}'
    assert "env_func ['math_tir']" in refused(file(json.dumps(row).encode()))


def test_a_huge_line_is_refused_before_it_is_read_whole(file, monkeypatch):
    monkeypatch.setattr(json_rows, "MAX_ROW_BYTES", 1 << 10)
    path = file(GOOD + b'{"prompt": "' + b"x" * 2000 + b'", "label": "1"}')
    assert re.search(r"d\.jsonl line 2 ", refused(path))


def test_a_huge_prompt_is_dropped_without_asking_the_tokenizer(file):
    class Counting:
        chat_template = None

        def __call__(self, texts, add_special_tokens):
            assert max(map(len, texts)) < 10**5
            return {"input_ids": [[0] * len(t) for t in texts]}

    path = file(GOOD + json.dumps({"prompt": "x" * 10**6, "label": "1"}).encode())
    prompts = load_prompts(Data(prompt_dataset=str(path), max_len=10), Counting())
    assert (len(prompts), prompts.dropped) == (1, {"prompt_too_long": 1})


def test_an_empty_file_has_no_problems(file):
    assert len(load(file(b""))) == len(load(file(b"\n \n"))) == len(load(file(b"\xef\xbb\xbf"))) == 0


@pytest.mark.parametrize(
    ("name", "raw", "fact"),
    [
        (
            "d.csv",
            b"prompt,label\n",
            r"'\.csv'.*jsonl, \.json, \.parquet.*JSONL",
        ),
        ("d", GOOD, r"'',? .*\.jsonl"),
    ],
)
def test_a_file_of_another_kind_says_what_is_read(file, name, raw, fact):
    assert re.search(fact, refused(file(raw, name), ConfigError))


def test_a_parquet_file_that_is_none_or_was_cut_is_refused(file, tmp_path):
    assert "d.parquet" in refused(file(GOOD, "d.parquet"))
    assert "d.parquet" in refused(file(b"", "d.parquet"))
    pq.write_table(
        pa.Table.from_pylist([{"prompt": "a" * 50, "label": "1"}] * 50),
        tmp_path / "whole.parquet",
        compression="none",
        use_dictionary=False,
    )
    raw = (tmp_path / "whole.parquet").read_bytes()
    assert "d.parquet" in refused(file(raw[:-20], "d.parquet"))
    garbled = raw[:10] + b"\xff" * 200 + raw[210:]
    assert "d.parquet" in refused(file(garbled, "d.parquet"))


@pytest.mark.parametrize(
    ("column", "value", "fact"),
    [
        ("label", b"\xff", r"row 1: label = b'\\xff'.*JSON"),
        ("label", float("nan"), "row 1: label = nan"),
        ("label", datetime.date(2026, 1, 1), r"\bdate\b.*JSON"),
        ("meta", {"t": decimal.Decimal("1.5")}, r"row 1: meta\.t = Decimal\('1\.5'\).*Decimal"),
        ("prompt", b"x", "row 1: prompt = b'x'"),
    ],
)
def test_parquet_columns_of_other_types_are_refused(tmp_path, column, value, fact):
    pq.write_table(pa.Table.from_pylist([{"prompt": "x", "label": "1", column: value}]), tmp_path / "d.parquet")
    assert re.search(fact, refused(tmp_path / "d.parquet"))


def test_directories_and_names_that_no_file_has(tmp_path):
    assert ".jsonl, .json, .parquet" in refused(tmp_path, ConfigError)
    (tmp_path / "d.jsonl").mkdir()
    assert "d.jsonl" in refused(tmp_path / "d.jsonl", ConfigError)
    assert "NUL" in refused("a\0.jsonl", ConfigError)
    assert "udcff.jsonl'" in refused("\udcff.jsonl", ConfigError)
    assert "~no-such-user-here" in refused("~no-such-user-here/d.jsonl", ConfigError)
    os.mkfifo(tmp_path / "pipe")
    assert "pipe" in refused(tmp_path / "pipe", ConfigError)
    assert "File name too long" in refused("/" + "n" * 300 + ".jsonl", ConfigError)


def test_a_file_that_the_system_refuses_is_named(file, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    path = file(GOOD)
    monkeypatch.setattr(type(path), "open", denied)
    assert re.search(r"d\.jsonl.*Permission denied", refused(path, ConfigError))


def test_an_input_template_is_rendered_inside_the_user_message_of_a_chat(file):
    class Tokenizer:
        chat_template = "yes"

        def __call__(self, texts, add_special_tokens):
            return {"input_ids": [[0]] * len(texts)}

        def apply_chat_template(self, chat, tokenize, add_generation_prompt, tools=None):
            return "|".join(f"{m['role']}:{m['content']}" for m in chat)

    data = Data(prompt_dataset=str(file(GOOD)), apply_chat_template=True, input_template="Q: {}")
    assert load_prompts(data, Tokenizer())[0].prompt == "user:Q: 1+1?"


def test_a_chat_template_that_raises_names_the_row(file):
    class Strict:
        chat_template = "yes"

        def apply_chat_template(self, chat, tokenize, add_generation_prompt, tools=None):
            raise ValueError("roles must alternate")

    with pytest.raises(
        DataError,
        match=(r"d\.jsonl line 1: .*ValueError: roles must alternate.*'prompt'"),
    ):
        load_prompts(Data(prompt_dataset=str(file(GOOD)), apply_chat_template=True), Strict())


@pytest.mark.parametrize("template", ["{0.__class__}", "{:>99999999999}", "{!r}", "{0}", "{}{}", "{", "}"])
def test_a_template_that_does_more_than_put_the_input_in_is_refused(file, template):
    assert "data.input_template" in refused(file(GOOD), ConfigError, input_template=template)
