"""Rows that cannot be used: by default the first ends the reading, with data.on_bad_row = skip they are left out,
counted and listed."""

from __future__ import annotations

import json
import re

import pytest

from openrlhf_tir.cli.checks.data import check_data
from openrlhf_tir.config import Data
from openrlhf_tir.config.settings import load
from openrlhf_tir.data import load_prompts
from openrlhf_tir.data.bad_rows import MOST_LISTED, BadRows
from openrlhf_tir.data.identity import row_id
from openrlhf_tir.data.prompts import problems
from openrlhf_tir.errors import ConfigError, DataError
from tests.data.make_samples import rows
from tests.unit.data.test_data_prompts import CharTokenizer

GOOD = '{"prompt": "1+1?", "label": "2"}'
BAD = {
    "no JSON": '{"prompt": "1+1?", ',
    "no object": "3",
    "no input": '{"prompt": "", "label": "2"}',
    "no label": '{"prompt": "2+2?"}',
    "NaN": '{"prompt": "2+2?", "label": NaN}',
    "a chat without content": '{"prompt": [{"role": "user"}], "label": "2"}',
    "a list as environment": '{"prompt": "2+2?", "label": "4", "env": []}',
}


def data_set(tmp_path, lines):
    path = tmp_path / "d.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return str(path)


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_ends_the_reading_unless_it_may_be_skipped(tmp_path, kind):
    path = data_set(tmp_path, [GOOD, BAD[kind], GOOD])
    with pytest.raises(DataError, match=r"d\.jsonl line 2"):
        list(problems(Data(prompt_dataset=path)))
    bad = BadRows("skip")
    found = list(problems(Data(prompt_dataset=path, on_bad_row="skip"), bad))
    assert [p.where.rpartition("/")[2] for p in found] == ["d.jsonl line 1", "d.jsonl line 3"]
    assert bad.count == 1 and "d.jsonl line 2" in bad.listed[0]


def test_every_bad_row_is_counted_and_the_first_are_listed(tmp_path):
    path = data_set(tmp_path, [GOOD, *BAD.values(), *BAD.values()])
    prompts = load_prompts(Data(prompt_dataset=path, on_bad_row="skip"))
    assert len(prompts) == 1 and prompts.dropped == {"bad_row": 2 * len(BAD)}
    bad = BadRows("skip")
    assert len(list(problems(Data(prompt_dataset=path, on_bad_row="skip"), bad))) == 1
    assert (bad.count, len(bad.listed)) == (2 * len(BAD), MOST_LISTED)
    first, *others = bad.facts()
    assert re.match(r"14 .*\(data\.on_bad_row = skip\).* 10 ", first) and len(others) == MOST_LISTED


def test_rows_that_their_template_or_environments_refuse_are_bad_rows_too(tmp_path):
    chat = json.dumps({"prompt": [{"role": "system", "content": "x"}], "label": "1"})
    prompts = load_prompts(
        Data(prompt_dataset=data_set(tmp_path, [chat, GOOD]), on_bad_row="skip", input_template="{}")
    )
    assert [t.prompt for t in prompts.tasks] == ["1+1?"]
    named = json.dumps({"prompt": "2+2?", "label": "4", "env": "search"})
    path = data_set(tmp_path, [named, '{"prompt": "3?", "label": "3", "env": "python_tir"}'])
    prompts = load_prompts(
        Data(prompt_dataset=path, on_bad_row="skip"), templates_of={"python_tir": None, "guess": None}
    )
    assert [t.env for t in prompts.tasks] == ["python_tir"] and prompts.dropped == {"bad_row": 1}


def test_a_set_of_which_every_row_is_bad_is_refused_all_the_same(tmp_path):
    with pytest.raises(DataError, match=r" 1 .*d\.jsonl .*line 1 "):
        load_prompts(Data(prompt_dataset=data_set(tmp_path, ['{"prompt": "2+2?", "label": ""}']), on_bad_row="skip"))


def test_columns_that_no_row_has_are_a_mistake_of_the_settings(tmp_path):
    path = data_set(tmp_path, ['{"problem": "1"}', '{"problem": "2"}'])
    with pytest.raises(ConfigError, match=r"data\.input_key = 'prompt'"):
        load_prompts(Data(prompt_dataset=path, on_bad_row="skip"))
    odd_first = data_set(tmp_path, ['{"problem": "1"}', GOOD])
    assert len(load_prompts(Data(prompt_dataset=odd_first, on_bad_row="skip"))) == 1


def test_a_task_carries_the_name_of_its_row_which_no_file_or_schema_changes(tmp_path):
    (plain,) = load_prompts(
        Data(prompt_dataset=data_set(tmp_path, ['{"prompt": "What is 17 + 25?", "label": "42"}']))
    ).tasks
    orz = tmp_path / "orz.json"
    orz.write_text(json.dumps(rows()["orz.json"]))
    other = load_prompts(Data(prompt_dataset=str(orz), input_template="zerotir"), CharTokenizer()).tasks
    assert plain.row == other[0].row == row_id("What is 17 + 25?", "42") != other[1].row


def test_the_check_before_a_run_counts_and_lists_what_will_be_left_out(tmp_path):
    path = data_set(tmp_path, [GOOD, BAD["no label"], GOOD.replace("1+1", "2+0")])
    given = {"run_dir": str(tmp_path / "run"), "data.prompt_dataset": path, "rollout.batch_size": 2}
    with pytest.raises(DataError, match=r"d\.jsonl line 2 "):
        check_data(load(None, given), training=True)
    facts = check_data(load(None, {**given, "data.on_bad_row": "skip"}), training=True)
    assert facts[0].startswith("2 ") and path in facts[0]
    assert re.match(r"1 .*\(data\.on_bad_row = skip\)", facts[1]) and "d.jsonl line 2 " in facts[2]
