"""Search-R1, ToRL and ReTool turns by hand, on the real episode loop: stops, calls, insertions, budgets."""

from __future__ import annotations

import pytest

from openrlhf_tir.config import Env
from openrlhf_tir.config.settings import load as load_settings
from openrlhf_tir.errors import ConfigError
from openrlhf_tir.rollout.episode import Limits, run_episode
from openrlhf_tir.rollout.protocols import PROTOCOLS, check, load, make
from openrlhf_tir.rollout.protocols.retool import SILENT, ReTool
from openrlhf_tir.rollout.protocols.searchr1 import INVALID, SearchR1
from openrlhf_tir.rollout.protocols.tagged import Tagged
from openrlhf_tir.rollout.protocols.torl import ToRL, last_program, shown
from tests.unit.rollout.test_episode import CharCodec, PlayedEngine, PlayedEnv


async def play(protocol, answers, *outputs, output_max=500):
    engine, env = PlayedEngine(*answers), PlayedEnv(*outputs)
    limits = Limits(2000, output_max)
    traj = await run_episode(
        [0], index=0, engine=engine, env=env, codec=CharCodec(), protocol=protocol, limits=limits, request_id="r"
    )
    assert engine.answers == []
    return traj, [action for _, action in env.steps]


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_registered_protocol_can_be_made_from_the_config(name):
    assert isinstance(make(Env(protocol=name)), load(name))


def test_an_unknown_protocol_is_named_with_those_known():
    with pytest.raises(ConfigError, match="torl"):
        load("trol")


async def test_a_search_is_answered_inside_information_tags():
    turns = [("<search> who? </search>", "</search>"), ("<answer> me </answer>", "</answer>")]
    traj, queries = await play(SearchR1(max_calls=2), turns, "Doc 1(Title: T) b\n")
    assert queries == ["who?"]
    assert (
        traj.text == "<search> who? </search>\n\n<information>Doc 1(Title: T) b</information>\n\n<answer> me </answer>"
    )


async def test_a_turn_without_a_tag_is_told_so_and_counts():
    turns = [("hm </answer>", "</answer>"), ("<search> a </search>", "</search>")]
    traj, queries = await play(SearchR1(max_calls=1), turns)
    assert queries == []
    assert [s.text for s in traj.segments] == ["hm </answer>", INVALID, "<search> a </search>"]


async def test_a_search_in_the_last_segment_is_not_run():
    turns = [("<search>a</search>", "</search>"), ("<search>b</search>", "</search>")]
    assert (await play(SearchR1(max_calls=1), turns, "A"))[1] == ["a"]
    assert (await play(SearchR1(max_calls=0), turns[:1]))[1] == []


async def test_the_length_limit_ends_a_search_without_a_message():
    traj, _ = await play(SearchR1(max_calls=2), [("<search> a", None)])
    assert [s.source for s in traj.segments] == ["model"]


async def test_a_document_is_opened_by_its_number_and_shown_inside_document_tags():
    turns = [
        ("<search>a</search>", "</search>"),
        ("<open> 2 page 3 </open>", "</open>"),
        ("<answer> me </answer>", "</answer>"),
    ]
    traj, actions = await play(
        SearchR1(max_calls=3, pages=True), turns, "Doc 1(Title: T) b\n", "Doc 2(Title: U) page 3 of 3\nend\n"
    )
    assert actions == ["a", '{"open": "2 page 3"}']
    assert traj.segments[1].text == "\n\n<information>Doc 1(Title: T) b</information>\n\n"
    assert traj.segments[3].text == "\n\n<document>Doc 2(Title: U) page 3 of 3\nend</document>\n\n"


async def test_without_pages_an_open_tag_is_no_action_and_no_stop():
    traj, actions = await play(SearchR1(max_calls=1), [("<open>1</open> hm </answer>", "</answer>"), ("x", "eos")])
    assert (actions, traj.segments[1].text) == ([], INVALID)
    assert SearchR1(max_calls=1).stops == ("</search>", "</answer>")


async def test_a_turn_without_a_tag_is_told_of_opening_too_where_there_are_pages():
    traj, _ = await play(SearchR1(max_calls=1, pages=True), [("hm </answer>", "</answer>"), ("x", "eos")])
    assert "I should put its number between <open> and </open>" in traj.segments[1].text


async def test_a_long_dialogue_is_sampled_from_its_last_tokens_and_kept_as_a_whole():
    """8 tokens of context: the second turn sees the last 8 of 1 + 3 + 4; the response is all of them."""
    engine, env = PlayedEngine(("abcdef</search>", "</search>"), ("xy", "eos")), PlayedEnv()
    protocol, limits = SearchR1(max_calls=1, max_context_tokens=8), Limits(2000, 500)
    traj = await run_episode(
        [0], index=0, engine=engine, env=env, codec=CharCodec(), protocol=protocol, limits=limits, request_id="r"
    )
    assert traj.segments[1].text == INVALID
    first, second = engine.contexts
    assert first == [0]
    assert second == traj.token_ids[: -len("xy")][-8:].tolist()
    assert traj.text == "abcdef</search>" + INVALID + "xy"


@pytest.mark.parametrize("option", ["max_turn_tokens", "max_context_tokens"])
def test_limits_that_leave_no_token_are_refused_before_a_run(option):
    check(Env(protocol="searchr1", options={option: 1}))
    for value in (0, -1):
        with pytest.raises(ConfigError, match=option):
            check(Env(protocol="searchr1", options={option: value}))


class Searching(PlayedEngine):
    """Thinks as long as it may, then searches."""

    async def generate(self, token_ids, sampling, *, request_id):
        call = "<search>a</search>"
        self.answers.append(("-" * (sampling.max_tokens - len(call)) + call, "</search>"))
        return await super().generate(token_ids, sampling, request_id=request_id)


async def test_the_recipe_of_search_r1_bounds_turns_passages_and_the_context_as_the_method_does():
    """500 tokens a turn, 500 a block, 4 searches, no turn from a context of 4,096: a model that always searches, and
    passages without end."""
    cfg, prompt, engine = load_settings("search_r1_7b"), [0] * 400, Searching()
    limits = Limits(min(cfg.rollout.max_new_tokens, cfg.data.max_len - 400), cfg.env.output_max_tokens)
    env = PlayedEnv(*["p" * 9000] * 4)
    traj = await run_episode(
        prompt,
        index=0,
        engine=engine,
        env=env,
        codec=CharCodec(),
        protocol=make(cfg.env),
        limits=limits,
        request_id="r",
    )
    assert [len(segment.token_ids) for segment in traj.segments] == [500] * 8
    assert [len(context) for context in engine.contexts] == [400, 1400, 2400, 3400]
    assert (traj.finish_reason, len(env.steps), cfg.data.max_len) == ("length", 4, 4096)


async def test_passages_that_are_too_long_are_cut_inside_their_tag():
    turns = [("<search>a</search>", "</search>"), ("<answer>x</answer>", "</answer>")]
    traj, _ = await play(SearchR1(max_calls=2), turns, "p" * 100, output_max=50)
    block = traj.segments[1].text
    assert len(block) == 50
    assert block == "\n\n<information>" + "p" * 19 + "</information>\n\n"


async def test_torl_runs_the_last_block_of_the_segment_and_closes_the_output():
    turns = [("```python\n1\n```\n```python\n2\n```\n```output", "```output"), ("so 2", "eos")]
    traj, programs = await play(ToRL(max_calls=1), turns, "2\n")
    assert programs == ["2\n"]
    assert traj.text == "```python\n1\n```\n```python\n2\n```\n```output\n2\n```\nso 2"
    assert traj.segments[1].text == "\n2\n```\n"


async def test_torl_an_output_without_a_program_is_empty_and_uses_up_a_call():
    protocol = ToRL(max_calls=1)
    traj, programs = await play(protocol, [("```output", "```output"), ("x", "eos")])
    assert programs == []
    assert traj.text == "```output\n```\nx"
    assert protocol.stops == ()


@pytest.mark.parametrize(
    ("segment", "program"),
    [
        ("```python\na\n```", "a\n"),
        ("see ```python\na\n```", "a\n"),
        ("```python\na", ""),
        ("```py\na\n```", ""),
        ("```python\na\n```\n```python\nb\n", ""),
        ("  ```python\n a\n```x", " a\n"),
    ],
)
def test_torls_blocks_open_and_close_by_line(segment, program):
    assert last_program(segment) == program


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("42\n", "42"),
        ("Traceback\n  1/0\nZeroDivisionError: x\n", "ZeroDivisionError: x"),
        (" \n", "nothing"),
        ("a" * 255, "a" * 255),
        ("a" * 128 + "b" * 128, "a" * 128 + "..." + "b" * 128),
    ],
)
def test_what_torl_shows_of_an_output(output, text):
    assert shown(output, "nothing") == text


async def test_retool_runs_what_stands_between_its_tags():
    turns = [
        ("think <code>\n```python\nprint(1)\n```\n</code>", "</code>"),
        ("<code>2</code>", "</code>"),
        ("<answer>1</answer>", "eos"),
    ]
    traj, programs = await play(ReTool(max_calls=2), turns, "1\n", "")
    assert programs == ["print(1)", "2"]
    assert traj.segments[1].text == "\n<interpreter>\n1</interpreter>\n\n"
    assert traj.segments[3].text == f"\n<interpreter>\n{SILENT}</interpreter>\n\n"


async def test_text_that_looks_like_retools_tag_is_code_behind_its_fence():
    turns = [('<code>\n```python\ns = "<code>x"\nprint(s)\n```\n</code>', "</code>"), ("x", "eos")]
    assert (await play(ReTool(max_calls=1), turns, "<code>x\n"))[1] == ['s = "<code>x"\nprint(s)']


def test_retool_without_calls_left_does_not_stop():
    assert ReTool(max_calls=0).stops == ()


async def test_what_stands_between_the_tags_is_the_action_whatever_it_is():
    """The last opening counts: what was thought about tags before is no part of an answer."""
    end = "</answer>"
    turns = [(f"<answer> is where it goes <answer> a\nb {end}", end), (f"<answer>{end}", end), ("x", "eos")]
    traj, actions = await play(Tagged(max_calls=3), turns, " no\n", "well")
    assert actions == ["a\nb", ""]
    assert [s.text for s in traj.segments if s.source == "env"] == [
        "\n<reply>\nno\n</reply>\n",
        "\n<reply>\nwell\n</reply>\n",
    ]


async def test_a_closing_tag_without_its_opening_is_told_and_uses_up_a_call_and_then_the_next_one_ends_the_response():
    end = "</answer>"
    traj, actions = await play(Tagged(max_calls=1, budget_message=True), [(f"7{end}", end), (f"<answer>7{end}", end)])
    assert actions == [] and traj.calls[0].signals["defect"] == "unclosed"
    assert (
        traj.segments[1].text
        == "\n<reply>\n</answer> closes nothing: write <answer> first.\n</reply>\nThere are no more tries.\n"
    )
    assert traj.segments[-1].text == f"<answer>7{end}"


async def test_the_texts_around_an_action_and_a_reply_can_be_any():
    options = {"opening": "\\boxed{", "closing": "}", "before": " -> ", "after": "\n"}
    check(Env(protocol="tagged", options=options))
    traj, actions = await play(Tagged(max_calls=1, **options), [("It is \\boxed{ 42}", "}"), ("x", "eos")], "no")
    assert actions == ["42"] and traj.segments[1].text == " -> no\n"
    _, actions = await play(Tagged(max_calls=1, opening="", closing="\n"), [(" north\n", "\n"), ("x", "eos")], "")
    assert actions == ["north"]
    with pytest.raises(ConfigError, match=r"'closing': ''"):
        check(Env(protocol="tagged", options={"closing": ""}))


async def test_a_search_turn_that_is_cut_at_its_limit_is_told_so_and_counts():
    """5 tokens a turn: the first is cut at "<sear" and told; the second answers within its room."""
    engine, env = PlayedEngine(("<sear", None), ("hm", "eos")), PlayedEnv()
    protocol, limits = SearchR1(max_calls=1, max_turn_tokens=5), Limits(2000, 500)
    traj = await run_episode(
        [0], index=0, engine=engine, env=env, codec=CharCodec(), protocol=protocol, limits=limits, request_id="r"
    )
    assert [s.text for s in traj.segments] == ["<sear", INVALID, "hm"]
    assert (traj.finish_reason, protocol.turns_left) == ("stop", 0)


async def test_a_turn_limit_beyond_the_responses_room_is_none():
    """3 tokens are left of the budget and a turn may have 5: the response is over, as without a limit of turns."""
    engine = PlayedEngine(("abc", None))
    protocol, limits = SearchR1(max_calls=1, max_turn_tokens=5), Limits(3, 500)
    traj = await run_episode(
        [0],
        index=0,
        engine=engine,
        env=PlayedEnv(),
        codec=CharCodec(),
        protocol=protocol,
        limits=limits,
        request_id="r",
    )
    assert (traj.text, traj.finish_reason, traj.stop_reason) == ("abc", "length", None)


def test_torl_compat_tells_silent_code_that_it_timed_out():
    assert (
        ToRL(max_calls=1, torl_compat=True).insertion(" ")
        == "\ntimeout_decorator.timeout_decorator.TimeoutError: 'Timed Out'\n```\n"
    )
    assert ToRL(max_calls=1).insertion(" ") == "\n(no output: print what you want to see)\n```\n"


async def test_a_plain_response_is_one_text_whatever_looks_like_a_call_in_it():
    text = "```python\nprint(1)\n```\n<answer>2</answer> <tool_call>{}</tool_call>"
    traj, actions = await play(make(Env(protocol="plain", max_calls=0)), [(text, None)])
    assert actions == [] and traj.calls == [] and traj.text == text
    assert make(Env(protocol="plain", max_calls=0)).stops == ()
