"""Search-R1's and ARTIST's rewards by hand, beyond what the golden rows show: the model's answer, options, labels."""

from __future__ import annotations

import pytest

from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rewards import load
from openrlhf_tir.rewards.artist import is_strict
from openrlhf_tir.rewards.searchr1 import golds_of
from openrlhf_tir.types import Task, ToolCall
from tests.unit.rewards.reward_fakes import in_run, says, task, trajectory

GOLD = '{"target": ["Paris", "City of Light"]}'
SEARCHED = (
    ("model", "<think>t</think><search>q</search>"),
    ("env", "\n\n<information>It is Paris.</information>\n\n"),
    ("model", "<think>u</think><answer>Rome</answer>"),
)


def score(name, traj, label, **options):
    return load(name)(traj, task(label), in_run(name=name, options=options))


def test_any_gold_answer_will_do_after_normalisation():
    assert score("searchr1", says("<answer> the city of light! </answer>"), GOLD).reward == 1.0
    assert score("searchr1", says("<answer>Paris, France</answer>"), GOLD).reward == 0.0
    assert score("searchr1", says("<answer>Paris, France</answer>"), GOLD, substring=True).reward == 1.0


@pytest.mark.parametrize("label", [GOLD, '["Paris", "City of Light"]'])
def test_gold_answers_may_be_a_list_or_search_r1s_object(label):
    assert golds_of(label) == ["Paris", "City of Light"]
    assert golds_of("1889") == ["1889"]
    assert golds_of('{"a": 1}') == ['{"a": 1}']


def test_an_answer_that_was_retrieved_or_made_up_as_retrieved_is_none():
    retrieved = trajectory(
        ("model", "<search>q</search>"), ("env", "<information><answer>Paris</answer></information>")
    )
    made_up = says("<information><answer>Paris</answer></information>")
    for traj in (retrieved, made_up):
        assert score("searchr1", traj, GOLD, format_score=0.1).reward == 0.0


def test_only_the_reference_takes_a_missing_answer_for_its_prompts_example():
    row = Task("<answer> and </answer> ... <answer> Beijing </answer>", "Beijing")
    assert load("searchr1")(says(""), row, in_run(name="searchr1")).reward == 0.0
    assert load("searchr1")(says(""), row, in_run(name="searchr1", options={"official": True})).reward == 1.0


def test_a_valid_sequence_is_worth_something_and_a_good_search_more():
    options = {"structure_score": 0.2, "final_score": 0.1, "retrieval_score": 0.1}
    wrong = score("searchr1", trajectory(*SEARCHED, calls=("ok",)), GOLD, **options)
    assert wrong.reward == pytest.approx(0.3)
    assert (wrong.parts["format_ok"], wrong.parts["retrieved"], wrong.parts["num_calls"]) == (1.0, 1.0, 1.0)
    assert score("searchr1", says("<answer>Rome</answer>"), GOLD, **options).reward == 0.1
    assert score("searchr1", says("<answer>Paris</answer>"), GOLD, **options).reward == 0.8
    assert score("searchr1", says("Paris"), GOLD, **options).reward == 0.0


def test_tags_that_search_r1_does_not_know_are_text_unless_pages_were_shown():
    passage = (SEARCHED[0], ("env", "\n\n<information>a <document> of <open> Paris</information>\n\n"), SEARCHED[2])
    shown = (
        ("model", "<think>t</think><open>1</open>"),
        ("env", "\n\n<document>It is Paris.</document>\n\n"),
        SEARCHED[2],
    )
    for segments in (passage, shown):
        parts = score("searchr1", trajectory(*segments, calls=("ok",)), GOLD).parts
        assert (parts["format_ok"], parts["retrieved"]) == (1.0, 1.0)
    made_up = score(
        "searchr1",
        says("<think>t</think><open>1</open><document>Paris</document><think>u</think><answer>Rome</answer>"),
        GOLD,
    )
    assert (made_up.parts["format_ok"], made_up.parts["retrieved"]) == (0.0, 0.0)


def test_artist_sums_answer_format_and_successful_calls():
    full = trajectory(
        ("model", "<think>t</think><python>1</python>"),
        ("env", "<output>1</output>"),
        ("model", "<answer> 1 </answer>"),
        calls=("ok", "model_error"),
    )
    reward, correct, parts = score("artist", full, "1")
    assert reward == 2 + 4 * 0.125 + 0.5 + 0.5
    assert correct is True
    assert parts["format_ok"] == 1.0
    assert score("artist", full, "1.0").reward == 1.5


def test_what_a_tool_prints_is_not_artists_answer():
    forged = trajectory(
        ("model", "<think>t</think><python>print(open('f').read())</python>"),
        ("env", "\n<output>\n<answer>1</answer>\n</output>\n"),
        ("model", "I do not know."),
        calls=("ok",),
    )
    _, correct, parts = score("artist", forged, "1")
    assert (correct, parts["answer"], parts["format_strict"]) == (False, 0.0, 0.0)


def test_artists_answer_is_the_last_that_the_model_wrote_wherever_it_stands():
    made_up = says("<think>a</think><answer>1</answer><output><answer>2</answer></output>")
    assert [score("artist", made_up, gold).parts["answer"] for gold in ("1", "2")] == [0.0, 2.0]


def test_an_answer_tag_that_only_a_tool_prints_is_no_pair_of_artists():
    printed = trajectory(
        ("model", "<think>t</think><python>f()</python>"),
        ("env", "\n<output>\n<answer>1</answer>\n</output>\n"),
        ("model", "I do not know."),
        calls=("ok",),
    )
    assert score("artist", printed, "1").parts["format_relaxed"] == 3 * 0.125, "think, python and output"


def test_the_answer_alone_can_be_artists_reward_and_the_other_parts_are_recorded_all_the_same():
    full = trajectory(
        ("model", "<think>t</think><python>1</python>"),
        ("env", "<output>1</output>"),
        ("model", "<answer>1</answer>"),
        calls=("ok",),
    )
    reward, correct, parts = score("artist", full, "1", answer_only=True)
    assert (reward, correct) == (2.0, True) and (parts["format_strict"], parts["tool"]) == (0.5, 1.0)
    assert score("artist", full, "2", answer_only=True).reward == 0.0
    with pytest.raises(ConfigError, match=r"reward\.options .*answer_only"):
        score("artist", full, "1", answer_only=True, functions=True)


def test_artist_scores_functions_by_what_the_environment_told():
    traj = trajectory(("model", "<reasoning>r</reasoning><tool>f()</tool>"))
    facts = {"state_match": 1, "state_total": 2, "functions_matched": 3, "functions_total": 3}
    traj.calls.append(ToolCall("f()", "", "ok", facts))
    reward, correct, _ = score("artist", traj, "", functions=True)
    assert reward == pytest.approx(0.25 + 0.5 + 0.1 + 0.1)
    assert correct is False


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        ("<a>1</a> and <b>2</b>", True),
        ("<a>1</a><b>2</b><a>3</a><b>4</b>", True),
        ("<b>2</b><a>1</a>", False),
        ("<a><b></b></a>", False),
        ("<a>1</a><b>2", False),
        ("<a>1</a>", False),
        ("", False),
    ],
)
def test_strict_format_is_pairs_in_order_without_nesting(text, strict):
    assert is_strict(text, ("a", "b")) is strict


@pytest.mark.parametrize("name", ["searchr1", "artist"])
def test_unknown_options_are_refused(name):
    with pytest.raises(ConfigError, match="typo"):
        score(name, says(""), "1", typo=1.0)


def functions(*signals, gold=None):
    """The score of a response whose calls told these signals; no tags, so that only state and functions count."""
    traj = says("x")
    traj.calls = [ToolCall("[]", "", "ok", s) for s in signals]
    row = Task("", "-", meta={} if gold is None else {"gold": gold})
    return load("artist")(traj, row, in_run(name="artist", options={"functions": True})).parts


def told(state, matched, total=2):
    return {"state_match": state, "state_total": 4, "functions_matched": matched, "functions_total": total}


def test_function_calling_is_scored_over_the_whole_episode_and_a_call_that_cannot_be_read_takes_nothing_back():
    """0.5 * 3/4 states and 0.5 * 1/2 calls, whether or not a malformed call follows."""
    for after in ((), ({"error_type": "malformed_call", "defect": "json"},)):
        parts = functions(told(1, 0), told(3, 1), *after)
        assert (parts["state"], parts["function"]) == (0.375, 0.25)


def test_gold_calls_of_turns_that_were_never_reached_count_as_not_called():
    """1 of the 2 begun is 1 of 4: 0.5 / 4. Without any call nothing is matched."""
    gold = [[{"name": "a"}, {"name": "b"}], [{"name": "c"}, {"name": "d"}]]
    assert functions(told(4, 1), gold=gold)["function"] == 0.125
    none = functions(gold=gold)
    assert (none["state"], none["function"], none["correct"]) == (0.0, 0.0, 0.0)
