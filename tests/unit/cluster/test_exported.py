"""What an export says of the run that made it: prompt, stop strings, end tokens."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from miniatures.toy.model import save_model
from miniatures.toy.tokenizer import EOS_ID
from openrlhf_tir.cluster.jobs.exported import TEMPLATE, answer_stops, block_of, complete, models, say_where
from openrlhf_tir.config import Config
from openrlhf_tir.data.export_template import Block
from openrlhf_tir.rollout import protocols

OWN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def config(**sections) -> Config:
    return Config.model_validate({"data": {"input_template": "user_assistant"}, **sections})


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("export") / "base"
    save_model(directory, seed=0)
    return directory


@pytest.fixture
def exported(base, tmp_path):
    """As the learner leaves it."""
    from transformers import AutoConfig

    from openrlhf_tir.learner.export import write_model_files

    write_model_files(AutoConfig.from_pretrained(base), str(base), tmp_path / "model")
    return tmp_path / "model"


def generation(directory) -> dict:
    return json.loads((directory / "generation_config.json").read_text())


def test_the_average_beside_an_export_is_asked_in_the_same_way(exported):
    import shutil

    average = exported.with_name("model_ema")
    shutil.copytree(exported, average)
    cfg = config(train={"ema_beta": 0.992})
    complete(cfg, exported)
    assert models(cfg, exported) == [exported, average] and models(config(), exported) == [exported]
    assert all(
        (average / name).read_text() == (exported / name).read_text() for name in (TEMPLATE, "generation_config.json")
    )


def test_the_directories_of_an_export_are_printed_as_they_are(tmp_path):
    console = Console(file=io.StringIO(), width=20)
    directory = tmp_path / "a [/b] model"
    say_where(console, config(train={"ema_beta": 0.992}), directory)
    lines = console.file.getvalue().splitlines()
    assert [line.partition(" /")[2] for line in lines] == [f"{directory}"[1:], f"{directory}_ema"[1:]]
    say_where(console, config(), directory)
    assert len(console.file.getvalue().splitlines()) == 3


def test_the_export_asks_as_the_run_asked_and_ends_where_it_ended(exported):
    from transformers import AutoTokenizer

    complete(config(), exported)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+1?"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "User: 1+1?\nAssistant:"
    assert generation(exported)["eos_token_id"] == EOS_ID
    assert generation(exported)["answer_stop_strings"] == ["User:", "Human:", "Assistant:", "</answer>"]
    assert "split_special_tokens" not in (exported / "tokenizer_config.json").read_text()


def test_every_token_that_ended_a_response_is_an_end_token_of_the_export(base, tmp_path):
    """Chat models have two: the turn's end in generation_config.json, the text's in the tokenizer."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    from openrlhf_tir.learner.export import end_tokens

    source, cfg = tmp_path / "source", AutoConfig.from_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    assert end_tokens(cfg, str(source), tokenizer) == EOS_ID
    GenerationConfig(eos_token_id=[5, 6]).save_pretrained(source)
    assert end_tokens(cfg, str(source), tokenizer) == [5, 6, EOS_ID]


def test_with_the_models_own_template_the_question_goes_inside_of_it(exported):
    (exported / TEMPLATE).write_text(OWN)
    complete(config(data={"input_template": "Q: {}", "apply_chat_template": True}), exported)
    from transformers import AutoTokenizer

    assert (
        AutoTokenizer.from_pretrained(exported).apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
        == "<user>Q: x"
    )


def test_agents_of_ones_own_keep_the_models_template(exported):
    (exported / TEMPLATE).write_text(OWN)
    complete(config(rollout={"agent": "external"}), exported)
    assert (exported / TEMPLATE).read_text() == OWN and "answer_stop_strings" not in generation(exported)


def test_the_block_of_every_protocol_is_found_or_said_not_to_be_one():
    blocks = {name: block_of(config(env={"protocol": name})) for name in protocols.PROTOCOLS}
    assert blocks["zerotir"] == Block("\n```output\n", "\n```\n\n\n", strips=False)
    assert blocks["artist"] == Block("\n<output>\n", "\n</output>\n", strips=True)
    assert blocks["searchr1"] == Block("\n\n<information>", "</information>\n\n", strips=True)
    assert [name for name, block in blocks.items() if block is None] == [
        "function",
        *(n for n in protocols.PROTOCOLS if protocols.of_messages(protocols.load(n))),
    ]


def test_a_protocol_of_ones_own_that_reads_the_output_has_no_block(tmp_path):
    (tmp_path / "own.py").write_text(
        "class Counts:\n"
        "    stops = ()\n"
        "    def __init__(self, *, max_calls, budget_message): pass\n"
        "    def advance(self, completion): pass\n"
        "    def insertion(self, observation): return f'{int(observation)} lines'\n"
        "    def too_long(self): return None\n"
        "    def after_insertion(self): return ''\n"
    )
    cfg = config(env={"protocol": f"{tmp_path}/own.py:Counts"})
    assert block_of(cfg) is None and answer_stops(cfg) == ()
