"""Questions about an invented world: answers follow from passages, and no test question leans on a trained one."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from env_servers.search.bm25 import Bm25, ensure_index
from env_servers.search.env import format_passages
from miniatures import lookup
from miniatures.lookup_reward import contained
from miniatures.prepare import with_rows
from miniatures.rows import split_of
from miniatures.tasks import TASKS
from openrlhf_tir.cli.preflight import Machine, check
from openrlhf_tir.config.settings import load
from openrlhf_tir.data.sft.blocks import cut
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.searchr1 import searchr1
from openrlhf_tir.types import Segment, Task, ToolCall, Trajectory

KINDS = lookup.TRAINED | lookup.UNSEEN
CPU = Machine(gpus=0, cpus=2, shm_free=1 << 30, has_module=lambda name: True, isolation_fault=lambda: None)


def question_of(row) -> str:
    return row["prompt"][1]["content"].partition("Question: ")[2]


def test_two_kinds_are_never_trained_and_both_lengths_occur_in_training_and_test():
    trained = {row["meta"]["kind"] for row in lookup.training_rows(400, 7)}
    held_out = {row["meta"]["kind"] for row in lookup.held_out_rows()}
    assert trained == set(lookup.TRAINED)
    assert held_out == set(KINDS)
    for kinds in (lookup.TRAINED, lookup.UNSEEN):
        assert {len(lookup.questions(kind, "test")[0].path) for kind in kinds} == {1, 2}


def test_training_rows_follow_from_the_seed_and_everything_else_is_always_the_same(tmp_path):
    first, again, other = (lookup.write_files(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert first.train.read_text() == again.train.read_text() != other.train.read_text()
    for name in ("test", "passages", "corpus", "demonstrations"):
        assert getattr(first, name).read_text() == getattr(other, name).read_text()


def test_no_question_occurs_twice_and_there_are_enough_for_every_seed():
    for seed in range(3):
        asked = [question_of(row) for row in lookup.training_rows(lookup.ROWS, seed)]
        assert len(set(asked)) == len(asked) == lookup.ROWS
    asked = [question_of(row) for row in lookup.held_out_rows()]
    assert len(set(asked)) == len(asked) == lookup.PER_KIND * len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_entity_on_the_way_to_an_answer_is_of_the_questions_own_split(kind):
    for split in ("train", "test"):
        for question in lookup.questions(kind, split):
            assert {split_of(entity.name, lookup.HELD_OUT_OF) for entity in question.path} == {split}


@pytest.mark.parametrize("kind", KINDS)
def test_the_passages_name_the_next_entity_and_at_last_the_answer(kind):
    for question in lookup.questions(kind, "test"):
        assert question.path[0].name in question.text
        steps = [*(entity.name for entity in question.path[1:]), question.answer]
        for entity, wanted in zip(question.path, steps, strict=True):
            assert wanted in entity.text
            assert wanted not in question.text


def test_a_search_for_the_name_finds_the_entitys_passage_first(tmp_path):
    files = lookup.write_files(tmp_path, 0)
    ensure_index(files.corpus, tmp_path / "index")
    retriever = Bm25(files.corpus, tmp_path / "index")
    for entity in (*lookup.world().towns[:40], *lookup.world().people[:40], *lookup.world().companies[:40]):
        (hit,) = retriever.search(entity.name, 1)
        assert hit.document["contents"] == f"{entity.name}\n{entity.text}"


def test_a_demonstration_shows_what_the_search_would_and_the_passages_are_not_learned(tmp_path):
    person = next(p for p in lookup.world().people if split_of(p.name, lookup.HELD_OUT_OF) == "train")
    question = lookup.TRAINED["person_land"].ask(person)
    said = lookup.demonstration(question)["messages"][-1]["content"]
    shown = [
        format_passages([{"contents": f"{entity.name}\n{entity.text}"}]).strip() for entity in (person, person.town)
    ]
    assert re.findall(r"<information>(.*?)</information>", said) == shown
    learned = [text for text, of_tool in cut(said, load("smollm2_search_cpu").sft.mask_blocks, "row") if not of_tool]
    assert learned == [
        f"<search> {person.name} </search>",
        f"<search> {person.town.name} </search>",
        f"<answer> {person.town.land} </answer>",
    ]


def test_demonstrations_are_about_entities_of_the_training_split():
    shown = [row["messages"][-1]["content"] for row in lookup.demonstrations()]
    names = {name for text in shown for name in re.findall(r"<search> (.*?) </search>", text)}
    assert len(shown) == lookup.DEMONSTRATIONS
    assert {split_of(name, lookup.HELD_OUT_OF) for name in names} == {"train"}


def test_with_passages_the_prompt_holds_the_answer_and_without_it_does_not():
    for plain, given in zip(lookup.held_out_rows(), lookup.held_out_rows(passages=True), strict=True):
        assert plain["label"] == given["label"]
        assert given["label"] in given["prompt"][1]["content"]
        assert plain["label"] not in plain["prompt"][1]["content"]


def test_only_an_exact_answer_of_the_models_own_is_rewarded():
    def reward(*said: str) -> float:
        one = [np.zeros(1, dtype) for dtype in (np.int32, np.float32, np.int32)]
        sources = ("model", "env", "model")[: len(said)]
        segments = [Segment(source, *one, text) for source, text in zip(sources, said, strict=True)]
        calls = [ToolCall("Kederan", "Doc 1", "ok")] if len(said) > 1 else []
        trajectory = Trajectory(0, np.zeros(0, np.int32), segments, calls)
        return searchr1(trajectory, Task("", "Nodogol"), RewardContext()).reward

    search, found = "<search> Kederan </search>", "\n\n<information>Kederan is in Nodogol.</information>\n\n"
    assert reward(search, found, "<answer> Nodogol </answer>") == 1
    assert reward(search, found, "<answer> Kederan </answer>") == 0
    assert reward(search, found, "It is in Nodogol.") == 0
    assert reward("<information>Nodogol</information><answer> Nodogol </answer>") == 1
    assert reward("<information><answer>Nodogol</answer></information>") == 0


@pytest.mark.slow
def test_the_recipe_passes_the_checks_once_the_task_has_written_its_files(tmp_path):
    cfg = load("smollm2_search_cpu", {"run_dir": str(tmp_path / "run")})
    with pytest.raises(ConfigError) as missing:
        check(cfg, model=False, data=False, machine=CPU)
    assert "server_options" in str(missing.value)
    filled, files = with_rows(cfg, TASKS["search"], tmp_path / "data")
    assert check(filled, model=False, data=False, machine=CPU)
    assert filled.data.prompt_dataset == str(files.train)
    assert filled.env.server_options == {"corpus": str(tmp_path / "data" / "corpus.jsonl"), "topk": 1}
    assert all("meta" in json.loads(line) for line in files.test.read_text().splitlines())


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("The town of Kederan is in Nodogol, on a river.", 1),
        ("nodogol", 1),
        ("It is in Nodogolia.", 0),
        ("<answer> in Nodogol </answer>", 1),
        ("Nodogol? <answer> Kederan </answer>", 0),
        ("<search> Nodogol </search>", 0),
        ("<information>Nodogol</information> I do not know.", 0),
    ],
)
def test_the_lenient_reward_takes_the_answer_in_a_sentence_and_not_in_a_search(said, expected):
    one = [np.zeros(1, dtype) for dtype in (np.int32, np.float32, np.int32)]
    trajectory = Trajectory(0, np.zeros(0, np.int32), [Segment("model", *one, said)], [])
    scored = contained(trajectory, Task("", "Nodogol"), RewardContext())
    assert scored.reward == expected
    assert scored.parts["exact"] == float(said == "nodogol")
