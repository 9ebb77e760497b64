"""Rows -> Tasks: formats, columns, templates, and what a bad row says."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openrlhf_tir.config import Data
from openrlhf_tir.data import load_prompts
from openrlhf_tir.data.templates import TEMPLATES, render, resolve
from openrlhf_tir.errors import ConfigError, DataError

ROWS = [{"prompt": "1+1?", "label": "2"}, {"prompt": "2+2?", "label": 4}]


class CharTokenizer:
    """One token per character; a chat template that shows its roles."""

    chat_template = "yes"

    def __call__(self, texts, add_special_tokens):
        assert not add_special_tokens
        return {"input_ids": [list(map(ord, t)) for t in texts]}

    def apply_chat_template(self, chat, tokenize, add_generation_prompt, tools=None):
        return "|".join(f"{m['role']}:{m['content']}" for m in chat) + "|assistant:"


def jsonl(path, rows):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(path)


def tasks(source, tokenizer=None, **data):
    return load_prompts(Data(prompt_dataset=str(source), **data), tokenizer)


def pairs(prompts):
    return [(t.prompt, t.label) for t in prompts.tasks]


def test_jsonl_rows_become_tasks_and_labels_text(tmp_path):
    prompts = tasks(jsonl(tmp_path / "d.jsonl", ROWS), input_template="user_assistant")
    assert pairs(prompts) == [("User: 1+1?\nAssistant:", "2"), ("User: 2+2?\nAssistant:", "4")]
    assert {t.env for t in prompts.tasks} == {"python_tir"}


def test_a_json_array_reads_like_jsonl(tmp_path):
    path = tmp_path / "d.json"
    path.write_text(json.dumps(ROWS))
    assert pairs(tasks(path)) == [("1+1?", "2"), ("2+2?", "4")]


def test_parquet_reads_like_jsonl(tmp_path):
    pq.write_table(
        pa.Table.from_pylist([{"prompt": "a", "label": "1"}, {"prompt": "b", "label": "2"}]), tmp_path / "d.parquet"
    )
    assert pairs(tasks(tmp_path / "d.parquet")) == [("a", "1"), ("b", "2")]


def test_a_directory_gives_the_files_of_its_split(tmp_path):
    jsonl(tmp_path / "train-1.jsonl", ROWS[:1])
    jsonl(tmp_path / "train-0.jsonl", ROWS[1:])
    jsonl(tmp_path / "test.jsonl", [{"prompt": "t", "label": "t"}])
    assert pairs(tasks(tmp_path)) == [("2+2?", "4"), ("1+1?", "2")]
    assert pairs(tasks(tmp_path, prompt_split="test")) == [("t", "t")]
    with pytest.raises(ConfigError, match=r"'validation'.*test.jsonl, train-0"):
        tasks(tmp_path, prompt_split="validation")


def test_a_saved_datasets_directory_is_read_by_split(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.DatasetDict({"train": datasets.Dataset.from_list([{"prompt": "a", "label": "1"}])}).save_to_disk(
        tmp_path / "d"
    )
    assert pairs(tasks(tmp_path / "d")) == [("a", "1")]
    with pytest.raises(ConfigError, match=r"'test'.*train"):
        tasks(tmp_path / "d", prompt_split="test")


def test_zerotir_rows_give_gold_answer_environment_and_facts(tmp_path):
    label = json.dumps({"uuid": "u", "env_func": "math_tir_async", "gold_ans": "\\frac{1}{2}", "task": "math_tir"})
    [task] = tasks(
        jsonl(tmp_path / "d.jsonl", [{"prompt": "half?", "query": "Q: half?", "label": label}]), input_key="query"
    ).tasks
    assert (task.prompt, task.label, task.env) == ("Q: half?", "\\frac{1}{2}", "python_tir")
    assert task.meta["uuid"] == "u"


def test_a_label_that_is_json_by_accident_stays_an_answer(tmp_path):
    assert [
        p[1]
        for p in pairs(
            tasks(
                jsonl(tmp_path / "d.jsonl", [{"prompt": "x", "label": '{"a": 1}'}, {"prompt": "y", "label": "{1, 2}"}])
            )
        )
    ] == ['{"a": 1}', "{1, 2}"]


def test_the_env_column_names_the_environment(tmp_path):
    assert tasks(jsonl(tmp_path / "d.jsonl", [{"prompt": "x", "label": "1", "env": "search"}]))[0].env == "search"


def test_a_nested_column_is_reached_by_dots(tmp_path):
    source = jsonl(tmp_path / "d.jsonl", [{"prompt": "x", "reward_model": {"ground_truth": "7"}}])
    assert tasks(source, label_key="reward_model.ground_truth")[0].label == "7"


def test_max_samples_takes_the_first_rows(tmp_path):
    assert len(tasks(jsonl(tmp_path / "d.jsonl", ROWS), max_samples=1)) == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"prompt": "x"},
        {"prompt": "x", "label": None},
        {"prompt": "x", "label": ""},
        {"prompt": "x", "label": {}},
        {"prompt": "x", "label": json.dumps({"gold_ans": None})},
    ],
)
def test_a_row_without_a_label_names_file_and_line(tmp_path, bad):
    source = jsonl(tmp_path / "d.jsonl", [*ROWS, bad])
    with pytest.raises(DataError, match=r"d\.jsonl line 3 .*'label'"):
        tasks(source)


def test_a_message_of_a_role_that_no_template_knows_is_refused(tmp_path):
    chat = [{"role": "user", "content": "a"}, {"role": "x", "content": "b"}]
    with pytest.raises(
        DataError,
        match=r"d\.jsonl line 1: prompt\[1\].*'x'",
    ):
        tasks(jsonl(tmp_path / "d.jsonl", [{"prompt": chat, "label": "1"}]))


def test_a_label_of_zero_is_a_label(tmp_path):
    assert tasks(jsonl(tmp_path / "d.jsonl", [{"prompt": "1-1?", "label": 0}]))[0].label == "0"


def test_a_row_without_input_names_file_and_line(tmp_path):
    with pytest.raises(DataError, match=r"line 2 .*'prompt'"):
        tasks(jsonl(tmp_path / "d.jsonl", [ROWS[0], {"prompt": "", "label": "1"}]))


def test_broken_json_names_file_and_line(tmp_path):
    (tmp_path / "d.jsonl").write_text('{"prompt": "x", "label": "1"}\n\n{"prompt": \n')
    with pytest.raises(DataError, match=r"d\.jsonl line 3 .*JSON"):
        tasks(tmp_path / "d.jsonl")


def test_an_unknown_env_func_is_refused_not_guessed(tmp_path):
    label = json.dumps({"env_func": "web_search", "gold_ans": "1"})
    with pytest.raises(DataError, match="env_func 'web_search'"):
        tasks(jsonl(tmp_path / "d.jsonl", [{"prompt": "x", "label": label}]))


def test_an_unknown_column_lists_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.input_key = 'question'.*prompt, label"):
        tasks(jsonl(tmp_path / "d.jsonl", ROWS), input_key="question")


@pytest.mark.parametrize("source", ["/nowhere/x.jsonl", "./nowhere", "nowhere.parquet"])
def test_a_local_path_that_does_not_exist_is_not_looked_up_on_the_hub(source):
    with pytest.raises(ConfigError, match=re.escape(source)):
        tasks(source)


def test_too_long_prompts_are_dropped_and_counted(tmp_path):
    source = jsonl(tmp_path / "d.jsonl", [{"prompt": "abc", "label": "1"}, {"prompt": "abcd", "label": "2"}])
    prompts = load_prompts(Data(prompt_dataset=source, max_len=100), CharTokenizer(), max_prompt_tokens=3)
    assert pairs(prompts) == [("abc", "1")]
    assert prompts.dropped == {"prompt_too_long": 1}


def test_the_chat_template_takes_text_and_messages(tmp_path):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    prompts = tasks(
        jsonl(tmp_path / "d.jsonl", [ROWS[0], {"prompt": chat, "label": "1"}]),
        CharTokenizer(),
        apply_chat_template=True,
        max_len=1000,
    )
    assert [p[0] for p in pairs(prompts)] == ["user:1+1?|assistant:", "system:s|user:u|assistant:"]


def test_a_tokenizer_without_chat_template_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"data\.apply_chat_template"):
        tasks(jsonl(tmp_path / "d.jsonl", ROWS), apply_chat_template=True)


def test_a_text_template_takes_the_last_user_message_of_a_chat(tmp_path):
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    source = jsonl(tmp_path / "d.jsonl", [{"prompt": chat, "label": "1"}])
    assert tasks(source, input_template="Q {}")[0].prompt == "Q u"
    with pytest.raises(DataError, match=r"d\.jsonl line 1 "):
        tasks(source)


def test_openrlhfs_format_string_and_the_named_templates():
    assert render(resolve("Q: {}\nA: \\boxed{{}}"), "2{x}") == "Q: 2{x}\nA: \\boxed{}"
    assert render(resolve("user_assistant"), "{}") == "User: {}\nAssistant:"
    assert render(None, "x") == "x"
    assert resolve(None) is None


def test_the_papers_templates_are_verbatim_at_their_ends():
    assert TEMPLATES["zerotir"].startswith("A conversation between User and Assistant. The User asks a question")
    assert render(resolve("zerotir"), "1+1?").endswith(
        "automatically by the \\boxed{} tag.\nThis is the problem:1+1?\nAssistant: <think>"
    )
    assert (
        "In your reasoning-process, You can use python-code to solve your problem. User: You must"
        in TEMPLATES["zerotir"]
    )
    assert render(resolve("torl"), "P").endswith("within \\boxed{}.\nP\nAssistant:\n")


@pytest.mark.parametrize("template", ["no place", "two {} {}", "{name}", "open {"])
def test_a_template_without_one_place_for_the_input_is_refused(template):
    with pytest.raises(ConfigError, match=r"data\.input_template"):
        resolve(template)


class Refusing(CharTokenizer):
    def apply_chat_template(self, chat, tokenize, add_generation_prompt, tools=None):
        if "2+2" in chat[0]["content"]:
            raise ValueError("no sums of twos")
        return chat[0]["content"]


def test_a_prompt_that_the_chat_template_refuses_is_a_bad_row(tmp_path):
    source = jsonl(tmp_path / "d.jsonl", [{"prompt": f"{n}+{n}?", "label": 2 * n} for n in range(30)])
    prompts = tasks(source, Refusing(), apply_chat_template=True, on_bad_row="skip")
    assert [t.prompt for t in prompts.tasks] == [f"{n}+{n}?" for n in range(30) if n not in (2, 22)]
    assert prompts.dropped == {"bad_row": 2}


@pytest.mark.parametrize("chat", [True, False])
def test_a_special_token_in_a_rows_text_stays_its_characters_in_the_prompt(tmp_path, chat):
    from openrlhf_tir.engines.codec import HfCodec
    from tests.unit.rollout.protocols.chat_models import tokenizer

    hf = tokenizer("qwen2_5")
    row = {"prompt": "What does <|im_start|> mean?", "label": "2"}
    (task,) = tasks(jsonl(tmp_path / "d.jsonl", [row]), hf, apply_chat_template=chat, max_len=999).tasks
    ids = HfCodec(hf).encode_prompt(task.prompt)
    start = hf.convert_tokens_to_ids("<|im_start|>")
    template = hf.apply_chat_template([{"role": "user", "content": "hm"}], tokenize=False, add_generation_prompt=True)
    assert ids.count(start) == (template.count("<|im_start|>") if chat else 0)
    assert "What does <|im_start|> mean?" in HfCodec(hf).spell(ids)


def test_a_text_that_is_said_to_be_rendered_has_the_tokens_that_its_template_wrote(tmp_path):
    """As if the messages had been given: no token more, none less."""
    from openrlhf_tir.engines.codec import HfCodec
    from tests.unit.rollout.protocols.chat_models import tokenizer

    for name in ("qwen2_5", "llama3"):
        hf = tokenizer(name)
        chat = [{"role": "user", "content": "1+1?"}]
        text = hf.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        source = jsonl(tmp_path / f"{name}.jsonl", [{"prompt": text, "label": "2"}])
        (task,) = tasks(source, hf, rendered=True, max_len=999).tasks
        expected = hf.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert HfCodec(hf).encode_prompt(task.prompt) == expected


def test_a_base_models_text_prompt_begins_with_the_token_that_its_tokenizer_puts_there(tmp_path):
    from openrlhf_tir.engines.codec import HfCodec
    from tests.unit.engines.test_codec import byte_tokenizer, llama2_tokenizer

    source = jsonl(tmp_path / "d.jsonl", ROWS[:1])
    (task,) = tasks(source, llama2_tokenizer(), max_len=999).tasks
    ids = HfCodec(llama2_tokenizer()).encode_prompt(task.prompt)
    assert ids == llama2_tokenizer()("1+1?")["input_ids"] and ids[0] == llama2_tokenizer().bos_token_id
    (other,) = tasks(source, byte_tokenizer(), max_len=999).tasks
    assert other.prompt == "1+1?"


def test_a_chat_whose_calls_the_template_drops_is_refused(tmp_path):
    call = {"type": "function", "function": {"name": "python", "arguments": {"code": "print(1)"}}}
    chat = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    source = jsonl(tmp_path / "d.jsonl", [{"prompt": chat, "label": "2"}])
    with pytest.raises(DataError):
        tasks(source, CharTokenizer(), apply_chat_template=True)
