"""Lessons: every example is an episode of the method's own turns, right by the method's own reward, and the rows are
the method's own."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from env_servers.calculator import REFUSED, CalculatorEnv
from env_servers.functions.env import FunctionsEnv
from env_servers.python_tir import conventions
from env_servers.python_tir.sandbox import Execution
from env_servers.search.__main__ import make_retriever
from env_servers.search.env import format_passages
from miniatures.rows import write_jsonl
from miniatures.toy import lessons
from miniatures.toy.lessons import (
    artist,
    bookings,
    calculator,
    functions,
    out_of_reach,
    retool,
    search,
    tool_n1,
    toolrl,
    torl,
    torl_calls,
    world_model,
)
from miniatures.toy.task import Problem, make_problems, write_splits
from miniatures.toy.tokenizer import CHARACTERS, EOS_ID, encode
from miniatures.toy.traces import prompt_of, tool_trace
from openrlhf_tir.config import Data
from openrlhf_tir.config.sections.sft import Sft
from openrlhf_tir.data.prompts import problems
from openrlhf_tir.data.schemas import detected
from openrlhf_tir.data.sft.pieces import Reader as SftReader
from openrlhf_tir.data.sft.tokens import Vocabulary, tokenised
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.protocol import StepReply
from openrlhf_tir.rewards import artist as artist_rewards
from openrlhf_tir.rewards.context import RewardContext
from openrlhf_tir.rewards.math_outcome import math_outcome
from openrlhf_tir.rewards.retool import retool as retool_reward
from openrlhf_tir.rewards.searchr1 import searchr1 as searchr1_reward
from openrlhf_tir.rewards.tooln1 import score as n1_score
from openrlhf_tir.rewards.toolrl import score as toolrl_score
from openrlhf_tir.rewards.torl import torl as torl_reward
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols.artist import Artist
from openrlhf_tir.rollout.protocols.retool import ReTool
from openrlhf_tir.rollout.protocols.searchr1 import SearchR1
from openrlhf_tir.rollout.protocols.structured import Tool, ToolN1, ToolRL
from openrlhf_tir.rollout.protocols.torl import ToRL
from openrlhf_tir.rollout.protocols.zerotir import ZeroTir
from openrlhf_tir.types import Completion, Task

MUL = Problem("mul", "What is 7*8?", "print(7*8)", 56, (7, 8))


def text_of(ids) -> str:
    return "".join("" if i == EOS_ID else CHARACTERS[i] for i in ids)


class Writes:
    """An engine that writes what the model wrote in a trace, up to the first stop string or to the end."""

    def __init__(self, ids: list[int]) -> None:
        self.left = ids

    async def generate(self, token_ids, sampling, *, request_id):
        taken: list[int] = []
        for i in self.left:
            taken.append(i)
            if any(text_of(taken).endswith(stop) for stop in sampling.stop):
                break
        self.left = self.left[len(taken) :]
        text = text_of(taken)
        stop = max((s for s in sampling.stop if text.endswith(s)), key=len, default=None)
        ids = np.array(taken, np.int32)
        return Completion(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), text, "stop", stop)


class Answers:
    """The environment of an episode: `replies` one after the other."""

    def __init__(self, *replies: tuple[str, str]) -> None:
        self.replies, self.actions = [*replies], []

    async def reset(self):
        return ""

    async def step(self, action, *, step_id):
        self.actions.append(action.strip())
        observation, outcome = self.replies.pop(0)
        return StepReply(session_id="s", step_id=step_id, observation=observation, outcome=outcome)


class Codec:
    encode = staticmethod(encode)


class AsCodec(Codec):
    encode_prompt = staticmethod(encode)


async def played(trace, question: str, protocol, env: Answers):
    """The trace's own words of the model through the turns; checks that what comes of it is the trace."""
    prompt = encode(prompt_of(question))
    assert trace.token_ids[: len(prompt)].tolist() == prompt and not trace.weights[: len(prompt)].any()
    written = [int(i) for i, weight in zip(trace.token_ids, trace.weights, strict=True) if weight > 0]
    episode = await run_episode(
        prompt,
        index=0,
        engine=Writes(written),
        env=env,
        codec=Codec(),
        protocol=protocol,
        limits=Limits(400),
        request_id="r",
    )
    assert [*prompt, *episode.token_ids] == trace.token_ids.tolist()
    assert episode.is_model.tolist() == (trace.weights[len(prompt) :] > 0).tolist()
    return episode


@pytest.mark.parametrize("calls", [1, 2, 3])
async def test_a_solution_in_torls_turns_is_an_episode_and_right(calls):
    env = Answers(*calls * [("56\n", "ok")])
    episode = await played(torl.tool_trace(MUL, calls), MUL.question, ToRL(max_calls=3), env)
    assert env.actions == calls * ["print(7*8)"]
    assert (await torl_reward(episode, Task("p", "56", "python_tir"), RewardContext())).reward == 1.0


async def test_a_program_without_its_last_bracket_is_answered_with_its_error_and_a_guess_follows():
    env = Answers(("  File 'x', line 1\n" + torl.ERROR, "model_error"))
    trace = torl.tool_trace(MUL, faulty=True)
    await played(trace, MUL.question, ToRL(max_calls=1), env)
    assert env.actions == ["print(7*8"]
    assert text_of(trace.token_ids[np.isclose(trace.weights, 0.2)]) == "56", "the digits of a guess weigh little"


def test_what_cpython_says_of_a_missing_bracket_is_what_the_lesson_says():
    with pytest.raises(SyntaxError) as e:
        compile("print(7*8", "x", "exec")
    assert f"SyntaxError: {e.value.msg}" == torl.ERROR


async def test_a_chain_in_zerotirs_turns_is_an_episode_and_right():
    chain = calculator.Chain("From left to right: 714*3+6", (("714*3", 2142), ("2142+6", 2148)))
    env = Answers(("2142\n", "ok"), ("2148\n", "ok"))
    episode = await played(calculator.tool_trace(chain), chain.question, ZeroTir(max_calls=4), env)
    assert env.actions == ["714*3", "2142+6"]
    assert (await math_outcome(episode, Task("p", "2148", "calculator"), RewardContext())).reward == 1.0


async def test_every_call_of_a_chain_is_one_that_the_calculator_takes_and_answers_so():
    rng, env = Random(0), CalculatorEnv()
    for _ in range(200):
        chain = calculator.draw_chain(rng, "train")
        operands = chain.question.partition(": ")[2]
        assert (
            eval(
                " ".join(
                    [
                        "(" * len(chain.steps),
                        operands[:3],
                        *(f"{operands[i : i + 2]})" for i in range(3, len(operands), 2)),
                    ]
                )
            )
            == chain.answer
        )
        for operation, result in chain.steps:
            reply = await env.step(operation, 1.0)
            assert (reply.observation, reply.outcome) == (f"{result}\n", "ok")


@pytest.mark.parametrize("action", ["1+2+3", "print(1+2)", "", "2**3", "8/2", "9" * 16 + "+1", "1+", "٣+1"])
async def test_the_calculator_refuses_what_is_not_one_operation(action):
    reply = await CalculatorEnv().step(action, 1.0)
    assert (reply.observation, reply.outcome) == (f"{REFUSED}\n", "model_error")


def test_the_world_models_examples_are_the_quickstarts_with_the_output_learned():
    taught, usual = world_model.tool_trace(MUL), tool_trace(MUL)
    assert taught.token_ids.tolist() == usual.token_ids.tolist()
    inserted = (usual.weights == 0) & (np.arange(len(usual.weights)) >= len(encode(prompt_of(MUL.question))))
    assert text_of(taught.token_ids[inserted & (taught.weights == 1)]) == "\n```output\n\n\n```\n\n\n"
    assert text_of(taught.token_ids[np.isclose(taught.weights, 0.2)]) == "56"


def test_two_of_three_training_problems_are_out_of_reach_and_none_that_is_held_out():
    train, usual = out_of_reach.rows(20, "train", 42), make_problems(7, "train", 42)
    assert train[::3] == usual and out_of_reach.rows(20, "test", 0) == make_problems(20, "test", 0)
    for row in train[1::3] + train[2::3]:
        first, last = map(int, re.findall(r"\d+", row["prompt"]))
        assert int(row["label"]) == math.prod(range(first, last + 1)) and last - first >= 2


CALLING = ("quickstart", "world_model", "torl", "torl_calls", "calculator")
BOOKING = bookings.Booking("hotel", "Rome", 3, 2)


@pytest.mark.parametrize("thinks", [True, False])
async def test_a_solution_in_artists_turns_is_an_episode_right_and_strict_iff_it_thinks(thinks):
    episode = await played(
        artist.trace(MUL, thinks=thinks), MUL.question, Artist(max_calls=2), env := Answers(("56\n", "ok"))
    )
    assert env.actions == ["print(7*8)"]
    scored = artist_rewards.artist(episode, Task("p", "56", "python_tir"), RewardContext())
    assert scored.correct and scored.parts["format_ok"] == float(thinks) and scored.parts["tool"] == 1.0


async def test_artists_program_that_does_not_run_reads_its_traceback_as_the_sandbox_says_it(tmp_path):
    gcd = Problem("gcd", "Find the gcd of 4 and 6.", "import math\nprint(math.gcd(4,6))", 2, (4, 6))
    (tmp_path / "x.py").write_text(gcd.code[:-1])
    stderr = subprocess.run([sys.executable, str(tmp_path / "x.py")], capture_output=True).stderr
    seen = conventions.artist(Execution(b"", stderr, 1, 0.0), "exception")
    episode = await played(
        artist.trace(gcd, faulty=True), gcd.question, Artist(max_calls=2), Answers((seen.text, "model_error"))
    )
    assert artist_rewards.artist(episode, Task("p", "2", "python_tir"), RewardContext()).parts["tool"] == 0.0


@pytest.mark.parametrize(("lesson", "protocol"), [(toolrl, ToolRL), (tool_n1, ToolN1)])
async def test_a_booking_is_one_response_without_an_environment(lesson, protocol):
    episode = await played(
        bookings.trace(BOOKING, lesson.said(BOOKING)), BOOKING.question, protocol(max_calls=0), Answers()
    )
    assert episode.text == lesson.said(BOOKING)


def test_a_booking_is_worth_the_more_the_more_of_it_is_right_and_one_only_for_all_of_it():
    wrong = BOOKING._replace(city="Oslo")
    other = BOOKING._replace(name="boat")
    fine = [toolrl_score(toolrl.said(b), toolrl.said(BOOKING)).score for b in (BOOKING, wrong, other)]
    assert fine[0] == 4.0 > fine[1] > fine[2] >= -2.0
    assert [n1_score(tool_n1.said(b), tool_n1.truth(BOOKING)) for b in (BOOKING, wrong)] == [1.0, 0.0]


def test_the_slots_of_toolrls_bookings_are_right_independently_and_n1s_calls_as_a_whole():
    rng = Random(0)
    perfect = [text_of(toolrl.draw_trace(rng, 0.7).token_ids) for _ in range(800)]
    assert np.mean([_is_right(t) for t in perfect]) == pytest.approx(0.7**4, abs=0.05)
    assert np.mean([_is_right(text_of(tool_n1.draw_trace(rng, 0.2).token_ids)) for _ in range(800)]) == pytest.approx(
        0.2, abs=0.05
    )


def _is_right(text: str) -> bool:
    words = text.replace(",", "").replace(".", "").split()
    asked = [words[3], words[5], words[6], words[8]]
    call = json.loads(text[text.index("{") : text.rindex("}") + 1])
    arguments = call.get("parameters") or call["arguments"]
    return asked == [call["name"], arguments["city"], str(arguments["nights"]), str(arguments["guests"])]


@pytest.mark.parametrize("computes", [True, False])
async def test_a_trace_of_retools_cold_start_is_learned_as_an_episode_is_sampled(computes):
    """What `sft` masks of a trace is what the interpreter writes in an episode."""
    row = {"prompt": MUL.question, "response": retool.response(MUL, computes=computes)}
    (chain,) = SftReader(Sft(input_template="user_assistant"), None)("here", row)
    learned = tokenised(chain, Vocabulary(AsCodec(), {}, EOS_ID))
    episode = await played(
        learned, MUL.question, ReTool(max_calls=2), env := Answers(*([("56", "ok")] if computes else []))
    )
    assert env.actions == (["print(7*8)"] if computes else [])
    assert (await retool_reward(episode, Task("p", "56", "python_tir"), RewardContext())).reward == 1.0


def test_retools_base_never_runs_a_program_and_its_cold_start_does_in_a_third_of_the_traces():
    rng = Random(0)
    base = [retool.draw_trace(rng, 0.5) for _ in range(300)]
    learned = [text_of([token for token, weight in zip(*row, strict=True) if weight]) for row in base]
    assert not any("<code>" in text for text in learned)
    assert sum(text.startswith("```python") for text in learned) > 50, "it can go on with one that is begun"
    assert (
        sum(text_of(row.token_ids).endswith("</answer>") and "<interpreter>" in text_of(row.token_ids) for row in base)
        > 25
    )
    traces = retool.examples(600, 42)
    assert np.mean(["<interpreter>" in row["response"] for row in traces]) == pytest.approx(retool.COMPUTES, abs=0.06)


def test_retools_rows_are_dapos_and_the_problem_comes_out_of_its_instructions(tmp_path):
    write_splits(tmp_path, 42, retool.rows, n_train=20, n_test=5)
    found = list(problems(Data(prompt_dataset=str(tmp_path / "train.jsonl"))))
    assert detected(json.loads((tmp_path / "train.jsonl").read_text().splitlines()[0])) == "dapo"
    assert [p.input for p in found] == [row["prompt"] for row in make_problems(20, "train", 42)]


@pytest.mark.parametrize("calls", [1, 3])
async def test_a_search_is_an_episode_of_search_r1s_turns_and_an_exact_match(calls):
    fact = search.of_split("train")[0]
    episode = await played(
        search.search_trace(fact, calls),
        fact.question,
        SearchR1(max_calls=4),
        env := Answers(*calls * [(fact.found, "ok")]),
    )
    assert env.actions == calls * [fact.query]
    scored = searchr1_reward(episode, Task("p", json.dumps({"target": [fact.value]}), "search"), RewardContext())
    assert scored.reward == 1.0 and scored.parts["retrieved"] == 1.0


def test_the_corpus_answers_every_query_of_the_lesson_with_its_own_passage_first(tmp_path):
    path = tmp_path / "corpus.jsonl"
    write_jsonl(search.corpus(), path)
    retriever = make_retriever(path, None, None)
    for fact in Random(0).sample(search.facts(), 60):
        (hit,) = retriever.search(fact.query, 1, lambda: False)
        assert format_passages([hit.document]) == fact.found
    assert len(search.facts()) == 4 * search.COUNTRIES and len({f.country for f in search.facts()}) == search.COUNTRIES


def test_training_and_test_ask_about_different_countries_in_flashrags_rows(tmp_path):
    write_splits(tmp_path, 42, search.rows, n_train=300, n_test=60)
    train, test = (
        list(problems(Data(prompt_dataset=str(tmp_path / f"{split}.jsonl"), row_schema="searchr1")))
        for split in ("train", "test")
    )
    assert not {p.input.split()[-1] for p in train} & {p.input.split()[-1] for p in test}
    assert {p.label for p in train} <= {json.dumps({"target": [f.value]}) for f in search.facts()}


async def test_every_goal_of_the_functions_is_reached_by_its_calls_and_not_by_wrong_ones():
    """In the real environment, which says what the trace has."""
    rng, rows = Random(0), functions.rows(40, "train", 42)
    for row in rows:
        env, goal = FunctionsEnv(), functions.Goal(row["meta"]["kind"], _values(row))
        for calls in (goal.calls, functions.wrong_calls(goal, rng)):
            await env.reset(row["meta"], 0)
            reply = await env.step(json.dumps(calls), 1.0)
            assert (reply.observation, reply.outcome) == (functions.results(calls), "ok")
            assert (reply.signals["functions_matched"] == reply.signals["functions_total"]) == (calls == goal.calls)


def _values(row) -> tuple:
    made = {name: value for call in json.loads(row["label"]) for name, value in call["arguments"].items()}
    return tuple(made[slot] for slot, _ in functions.SLOTS[row["meta"]["kind"]])


async def test_a_goal_is_an_episode_of_artists_turns_and_scores_fully():
    (row,) = functions.rows(1, "train", 42)
    goal = functions.Goal(row["meta"]["kind"], _values(row))
    env = Answers((functions.results(goal.calls), "ok"))
    episode = await played(functions.trace(goal, goal.calls), goal.question, Tool(max_calls=2), env)
    assert json.loads(env.actions[0]) == goal.calls
    assert artist_rewards.is_strict(episode.text, artist_rewards.FUNCTION_TAGS)


def test_examples_for_fine_tuning_are_right_responses_to_training_problems():
    made = tool_n1.examples(50, 42)
    assert made == tool_n1.examples(50, 42) and all(
        _is_right(f"User: {row['prompt']} {row['response']}") for row in made
    )


@pytest.mark.parametrize("name", CALLING)
def test_the_share_of_examples_with_a_call_is_the_tool_ratio(name):
    rng, draw = Random(0), lessons.named(name).draw
    used = ["```python" in text_of(draw(rng, 0.3).token_ids) for _ in range(400)]
    assert np.mean(used) == pytest.approx(0.3, abs=0.06)


@pytest.mark.parametrize(
    ("trace", "first", "again"),
    [
        (torl.tool_trace(MUL, 3), "```python", torl.AGAIN),
        (search.search_trace(search.facts()[0], 3), "<search>", "Check. "),
    ],
)
def test_what_is_done_over_again_does_not_begin_with_the_letters_of_the_first_time(trace, first, again):
    """Else a model that learns to call once learns to call again, and OTC finds no group with a call fewer."""
    said = text_of(trace.token_ids)
    assert said.count(first) == 3 and said.count(again + first) == 2
    assert said.index(first) < said.index(again) and again[0] not in (first[0], "\\", "<")


def test_torls_habit_is_one_to_three_calls_more_than_two_on_average():
    rng = Random(0)
    calls = [text_of(torl_calls.draw_trace(rng, 1.0).token_ids).count("```python") for _ in range(600)]
    assert set(calls) == {1, 2, 3} and np.mean(calls) == pytest.approx(2.2, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CALLING, "artist", "retool"])
def test_the_rows_are_read_by_their_columns_and_no_problem_is_in_both_splits(name, tmp_path):
    lesson = lessons.named(name)
    write_splits(tmp_path, 42, lesson.rows, n_train=600, n_test=100)
    read = {
        split: list(problems(Data(prompt_dataset=str(tmp_path / f"{split}.jsonl"), input_template="user_assistant")))
        for split in ("train", "test")
    }
    assert {split: len(found) for split, found in read.items()} == {"train": 600, "test": 100}
    assert all(int(p.label) == int(p.label) for found in read.values() for p in found)
    asked = {
        split: {json.dumps(p.input) for p in found if "Compute" not in str(p.input) and not _small(p.input)}
        for split, found in read.items()
    }
    assert not asked["train"] & asked["test"]
    again = tmp_path / "again"
    write_splits(again, 42, lesson.rows, n_train=600, n_test=100)
    assert (again / "train.jsonl").read_text() == (tmp_path / "train.jsonl").read_text()


@pytest.mark.parametrize(("lesson", "source"), [(toolrl, "toolrl"), (tool_n1, "tooln1")])
def test_the_rows_of_bookings_are_told_to_be_the_methods_own_and_hold_the_truth(lesson, source, tmp_path):
    write_splits(tmp_path, 42, lesson.rows, n_train=300, n_test=60)
    train, test = (list(problems(Data(prompt_dataset=str(tmp_path / f"{split}.jsonl")))) for split in ("train", "test"))
    assert detected(json.loads((tmp_path / "train.jsonl").read_text().splitlines()[0])) == source
    assert not {p.input[-1]["content"] for p in train} & {p.input[-1]["content"] for p in test}
    assert all("Book a " in p.input[-1]["content"] for p in train)


def _small(asked) -> bool:
    """The sums that can be learned by heart are in both splits."""
    text = asked if isinstance(asked, str) else asked[-1]["content"]
    return "+" in text and len(text) < len("What is 1+2?") + 1 and "left" not in text


def test_an_unknown_lesson_is_refused_with_the_list():
    with pytest.raises(
        ConfigError,
        match=r"--lesson 'nope'.*: artist, calculator, functions, mending, out_of_reach, quickstart, ",
    ):
        lessons.named("nope")


def test_a_base_is_known_by_its_seed_and_lesson(tmp_path):
    figures = tmp_path / lessons.FIGURES
    assert not lessons.is_base(figures, "torl", 42)
    figures.write_text(json.dumps({"seed": 42, "lesson": "torl"}))
    assert (
        lessons.is_base(figures, "torl", 42)
        and not lessons.is_base(figures, "torl", 7)
        and not lessons.is_base(figures, "quickstart", 42)
    )
    figures.write_text(json.dumps(lessons.record("torl", 42)))
    assert lessons.is_base(figures, "torl", 42)
    figures.write_text(json.dumps({"seed": 42}))
    assert lessons.is_base(figures, "quickstart", 42), "one that a quickstart made before there were lessons"


@pytest.mark.parametrize("torn", ["", '{"seed": 4', "[]", "{}"])
def test_a_torn_record_of_a_base_is_no_base_and_no_failure(tmp_path, torn):
    figures = tmp_path / lessons.FIGURES
    figures.write_text(torn)
    assert not lessons.is_base(figures, "quickstart", 42)


@pytest.mark.parametrize(
    ("what", "value"),
    [("WEIGHTS", (9, 1, 1)), ("LESSON", replace(search.LESSON, gates={})), ("AGAIN", "Once more. ")],
)
def test_a_base_of_what_a_lesson_taught_before_is_no_base(what, value, tmp_path, monkeypatch):
    figures = tmp_path / lessons.FIGURES
    figures.write_text(json.dumps(lessons.record("search", 42)))
    assert lessons.is_base(figures, "search", 42)
    monkeypatch.setattr(search, what, value)
    assert not lessons.is_base(figures, "search", 42)


def test_a_base_with_other_problems_beside_it_is_no_base(tmp_path, monkeypatch):
    figures = tmp_path / lessons.FIGURES
    figures.write_text(json.dumps(lessons.record("out_of_reach", 42)))
    monkeypatch.setattr(out_of_reach, "LESSON", replace(out_of_reach.LESSON, rows=make_problems))
    assert not lessons.is_base(figures, "out_of_reach", 42)


def test_lessons_are_told_apart_and_each_is_the_same_every_time():
    assert len({lessons.digest(name) for name in lessons.LESSONS}) == len(lessons.LESSONS)
    assert all(lessons.digest(name) == lessons.digest(name) for name in lessons.LESSONS)
