"""The scripted engine writes a turn in the policy's tokens, stops where an engine would, and goes on behind a stop."""

from __future__ import annotations

from openrlhf_tir.cli.rehearsal.engine import ScriptedEngine
from openrlhf_tir.types import Sampling


class Letters:
    """A codec whose tokens are characters."""

    def encode(self, text):
        return [ord(c) for c in text]

    encode_rendered = encode

    def decode(self, ids):
        return "".join(map(chr, ids))


def engine(*turns):
    scripted = ScriptedEngine(Letters(), eos=0)
    scripted.begin([list(turns)])
    return scripted


async def test_a_turn_ends_with_the_end_token_unless_a_stop_string_or_the_limit_ends_it():
    scripted = engine("abc", "abXcd", "abcdef")
    whole = await scripted.generate([], Sampling(10), request_id="k#0/0")
    assert (whole.text, whole.token_ids.tolist(), whole.finish_reason) == ("abc", [97, 98, 99, 0], "stop")
    stopped = await scripted.generate([], Sampling(10, ("X",)), request_id="k#0/1")
    assert (stopped.text, stopped.stop_reason, len(stopped.token_ids)) == ("abX", "X", 3)
    behind = await scripted.generate([], Sampling(10, ("X",)), request_id="k#0/2")
    assert (behind.text, behind.finish_reason) == ("cd", "stop")
    cut = await scripted.generate([], Sampling(4), request_id="k#0/3")
    assert (cut.text, cut.finish_reason, len(cut.token_ids)) == ("abcd", "length", 4)


async def test_who_has_no_turn_left_writes_nothing():
    scripted = engine("a")
    await scripted.generate([], Sampling(4), request_id="k#0/0")
    silent = await scripted.generate([], Sampling(4), request_id="k#0/1")
    assert (silent.text, silent.token_ids.tolist()) == ("", [0])


def test_of_several_stop_strings_the_first_in_the_text_counts():
    completion, left = engine().complete("a YY b X", ("X", "YY"))
    assert (completion.stop_reason, completion.text, left) == ("YY", "a YY", " b X")
