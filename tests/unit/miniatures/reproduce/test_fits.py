"""What a miniature asks for fits together: its flags are flags, its prompts are those of its lesson, its responses fit
into its lengths."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from miniatures.reproduce import bases, methods
from miniatures.reproduce.arms import Place
from miniatures.reproduce.commands import How
from miniatures.rows import write_jsonl
from miniatures.toy import lessons
from miniatures.toy.model import save_model
from miniatures.toy.task import write_splits
from miniatures.toy.tokenizer import build_tokenizer, encode
from openrlhf_tir.cli.command_line import build_parser
from openrlhf_tir.cli.configuration import config_of
from openrlhf_tir.config.fine_tuning import config_of as sft_config_of
from openrlhf_tir.config.problems import Problems
from openrlhf_tir.data.prompts import load_prompts

from .fakes import Fake

pytestmark = pytest.mark.extended


def place_of(miniature, root: Path) -> Place:
    """With a base whose data are real and whose model is random."""
    base = bases.made(miniature.base, 42, root / "bases", How(9, lambda line: None, Fake()))
    lesson = lessons.named(miniature.base.lesson)
    write_splits(base / "data", 42, lesson.rows, n_train=200, n_test=40)
    if lesson.examples:
        write_jsonl(lesson.examples(100, 42), base / "data/sft.jsonl")
    save_model(base / "base", 42)
    return Place(
        root / "out/seed-42/arm", root / "out/seed-42", base, bases.flags_of(miniature.base, 42, root / "bases"), 42
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.NAMES)
def test_every_command_of_every_arm_is_one_that_the_program_takes(name, tmp_path):
    miniature = methods.named(name)
    place = place_of(miniature, tmp_path)
    for arm in miniature.arms.values():
        for command in arm.commands(place):
            args, extra = build_parser(command.words[0]).parse_known_args(command.words)
            assert not extra
            problems = Problems()
            cfg = sft_config_of(args, problems) if command.words[0] == "sft" else config_of(args)
            problems.raise_any()
            assert cfg.train.seed == 42 and cfg.run_dir.is_relative_to(tmp_path)


def test_a_model_that_is_destroyed_without_the_mask_still_trains_to_the_end(tmp_path):
    miniature = methods.named("zero_tir_rl")
    place = place_of(miniature, tmp_path)
    orders = {}
    for name, arm in miniature.arms.items():
        (command,) = arm.commands(place)
        args, _ = build_parser("train").parse_known_args(command.words)
        orders[name] = config_of(args).filter.order
    assert orders["off"] == [] and orders["on"] == orders["off_then_on"] == ["accuracy", "zero_variance"]


@pytest.mark.slow
@pytest.mark.parametrize("name", methods.NAMES)
def test_its_prompts_are_written_as_its_lesson_teaches_them_and_its_responses_fit(name, tmp_path):
    miniature = methods.named(name)
    place = place_of(miniature, tmp_path)
    args, _ = build_parser("train").parse_known_args(
        ["train", *place.started, "--actor.model_name_or_path", str(place.base / "base")]
    )
    cfg = config_of(args)
    most = cfg.data.max_len - cfg.rollout.max_new_tokens
    prompts = load_prompts(cfg.data, build_tokenizer(), env=cfg.env.name, max_prompt_tokens=most)
    assert len(prompts) == 200 and not prompts.dropped
    assert all(
        task.prompt.startswith("User: ") and task.prompt.endswith("\nAssistant:") and task.prompt.count(":") <= 3
        for task in prompts.tasks
    )
    rng, draw, end = Random(0), lessons.named(miniature.base.lesson).draw, encode("\nAssistant:")
    for _ in range(300):
        ids = draw(rng, 0.9).token_ids.tolist()
        at = next(i for i in range(len(ids)) if ids[i : i + len(end)] == end) + len(end)
        assert at <= most and len(ids) - at < cfg.rollout.max_new_tokens, "an episode as it is taught is not cut"
