"""A response that goes on at another engine is what it would have been: tokens, log-probs, versions, stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from openrlhf_tir.errors import EngineGone, RequestRefused
from openrlhf_tir.rollout.request_queue import RequestQueue
from openrlhf_tir.rollout.sequence_migration import SequenceMigration
from openrlhf_tir.types import Completion, Sampling

PROMPT = [1, 2, 3]
SAYS = "think <code>print(1)</code> and more"
KEY = "0/7/0#2"


class Speaker:
    """An engine that goes on with SAYS where the prompt ends; one character is one token. Like a real one it sees stop
    strings in its own text only.

    `at[n]` is awaited when the response has n tokens.
    """

    def __init__(self, version: int = 0) -> None:
        self.version, self.asked = version, []
        self.at: dict[int, Callable] = {}
        self.stopped: set[str] = set()
        self.dies_at: int | None = None

    async def abort(self, request_id: str) -> None:
        self.stopped.add(request_id)

    def progress(self) -> dict[str, int]:
        return {}

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, *, request_id: str) -> Completion:
        self.asked.append((len(token_ids), sampling))
        written, text = len(token_ids) - len(PROMPT), ""
        while True:
            text += SAYS[written + len(text)]
            n = written + len(text)
            stop = next((s for s in sampling.stop if text.endswith(s)), None)
            if n == self.dies_at:
                raise EngineGone("dead")
            if n in self.at:
                await self.at.pop(n)()
            if stop or n == len(SAYS):
                return self.said(text, written, "stop", stop)
            if len(text) == sampling.max_tokens:
                return self.said(text, written, "length")
            if request_id in self.stopped:
                return self.said(text, written, "abort")

    def said(self, text: str, before: int, finish, stop: str | None = None) -> Completion:
        n = len(text)
        return Completion(
            np.array([ord(c) for c in text], np.int32),
            -np.arange(before, before + n, dtype=np.float32),
            np.full(n, self.version),
            text,
            finish,
            stop,
        )


def text_of(prompt: Sequence[int], ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def written(
    sampling: Sampling, here: Speaker, moves: dict[int, Speaker | None], there: dict[Speaker, str]
) -> tuple[Completion, SequenceMigration]:
    """The segment, moved after so many tokens to these engines; None is home."""
    migration = SequenceMigration(here, text_of)

    def mover(to: Speaker | None):
        async def move() -> None:
            assert await migration.move(KEY, "" if to is None else there[to], to)

        return move

    for n, to in moves.items():
        for engine in (here, *there):
            engine.at[n] = mover(to)

    async def main() -> Completion:
        with migration.writing(KEY):
            return await migration.around(here).generate(PROMPT, sampling, request_id=f"{KEY}/0")

    return asyncio.run(main()), migration


def same(a: Completion, b: Completion) -> bool:
    arrays = all(np.array_equal(getattr(a, f), getattr(b, f)) for f in ("token_ids", "logprobs"))
    return arrays and (a.text, a.finish_reason, a.stop_reason) == (b.text, b.finish_reason, b.stop_reason)


@pytest.mark.parametrize("after", range(1, SAYS.index("</code>") + len("</code>") - 1))
def test_wherever_it_is_cut_the_response_is_the_same(after):
    """Also in the middle of the stop string, of which neither engine then sees the whole."""
    sampling = Sampling(100, ("</code>",))
    whole, _ = written(sampling, Speaker(), {}, {})
    lane = Speaker(version=1)
    moved, _ = written(sampling, Speaker(), {after: lane}, {lane: "lane"})
    assert same(moved, whole) and whole.stop_reason == "</code>"
    assert moved.versions.tolist() == [0] * after + [1] * (len(whole.token_ids) - after)
    assert lane.asked[0][0] == len(PROMPT) + after


def test_the_budget_is_of_both_parts_together():
    lane = Speaker()
    moved, _ = written(Sampling(9), Speaker(), {4: lane}, {lane: "lane"})
    assert moved.text == SAYS[:9] and moved.finish_reason == "length"
    assert lane.asked[0][1].max_tokens == 5


def test_a_second_move_goes_on_from_the_first():
    one, two = Speaker(1), Speaker(2)
    moved, _ = written(Sampling(20), Speaker(), {4: one, 11: two}, {one: "one", two: "two"})
    assert moved.text == SAYS[:20]
    assert moved.versions.tolist() == [0] * 4 + [1] * 7 + [2] * 9


def test_an_engine_that_dies_gives_the_response_back():
    lane = Speaker(1)
    lane.dies_at = 12
    moved, _ = written(Sampling(20), Speaker(), {4: lane}, {lane: "lane"})
    assert moved.text == SAYS[:20] and moved.versions.tolist() == [0] * 20


def test_an_error_of_the_own_engine_is_raised_and_not_tried_again():
    class Dying(Speaker):
        async def generate(self, token_ids, sampling, *, request_id):
            assert not self.asked, "it was tried again"
            return await super().generate(token_ids, sampling, request_id=request_id)

    here = Dying()
    here.dies_at = 5
    with pytest.raises(EngineGone):
        written(Sampling(100), here, {}, {})


def test_what_another_engine_refuses_is_refused_here_too_without_another_try():
    """No engine could answer it: a prompt that is too long, say."""

    class Refusing(Speaker):
        async def generate(self, token_ids, sampling, *, request_id):
            raise RequestRefused("longer than the context")

    here, lane = Speaker(), Refusing()
    with pytest.raises(RequestRefused):
        written(Sampling(100), here, {5: lane}, {lane: "lane"})
    assert len(here.asked) == 1


def test_the_tokens_of_a_trajectory_count_over_its_segments():
    migration = SequenceMigration(Speaker(), text_of)

    async def main() -> list[int]:
        with migration.writing(KEY):
            engine = migration.around(migration.engine)
            counts = []
            for turn in range(2):
                await engine.generate(PROMPT, Sampling(4), request_id=f"{KEY}/{turn}")
                [(_, location)] = migration.under_way()
                counts.append(location.tokens)
            return counts

    assert asyncio.run(main()) == [4, 8]


def test_an_engine_that_ends_its_guests_gives_back_what_it_wrote():
    """It is shut down in good order: nobody moved the response, and it is no abort of this actor's own."""
    lane = Speaker(1)
    lane.at[9] = lambda: lane.abort(f"{KEY}/0~1")
    moved, _ = written(Sampling(20), Speaker(), {4: lane}, {lane: "lane"})
    assert (moved.text, moved.finish_reason) == (SAYS[:20], "length")
    assert moved.versions.tolist() == [0] * 4 + [1] * 5 + [0] * 11


def test_one_that_waits_for_a_place_goes_at_once_with_the_bare_prompt():
    here, lane = Speaker(), Speaker(1)
    queue = RequestQueue(here, max_running=1)
    migration, free = SequenceMigration(queue, text_of), asyncio.Event()
    here.at[1] = free.wait

    async def main() -> Completion:
        holding = asyncio.create_task(queue.generate(PROMPT, Sampling(5), request_id="holds the place"))
        with migration.writing(KEY):
            waiting = asyncio.create_task(
                migration.around(queue.of_group("env", "group")).generate(PROMPT, Sampling(5), request_id=f"{KEY}/0")
            )
            while not queue.waiting:
                await asyncio.sleep(0)
            assert await migration.move(KEY, "lane", lane)
            moved = await waiting
        assert not holding.done() and (queue.running, queue.waiting) == (1, 0)
        free.set()
        await holding
        return moved

    moved = asyncio.run(main())
    assert moved.text == SAYS[:5] and moved.versions.tolist() == [1] * 5
    assert len(here.asked) == 1 and [(n, asked.max_tokens) for n, asked in lane.asked] == [(len(PROMPT), 5)]


def test_one_that_is_at_home_is_not_moved_home():
    here = Speaker()
    migration, moves = SequenceMigration(here, text_of), []

    async def home() -> None:
        moves.append(await migration.move(KEY, "rollout-0", None))

    async def main() -> Completion:
        here.at[4] = home
        with migration.writing(KEY):
            return await migration.around(here).generate(PROMPT, Sampling(9), request_id=f"{KEY}/0")

    assert asyncio.run(main()).finish_reason == "length"
    assert moves == [False] and not here.stopped


def test_the_next_turn_is_sampled_where_the_last_one_was():
    here, lane = Speaker(), Speaker(1)
    migration = SequenceMigration(here, text_of)

    async def main() -> None:
        with migration.writing(KEY):
            assert await migration.move(KEY, "lane", lane)
            await migration.around(here).generate(PROMPT, Sampling(5), request_id=f"{KEY}/1")
            assert migration.locations[KEY].tokens == 5 and migration.locations[KEY].moves == 1
            assert not await migration.move(KEY, "lane", lane), "it is there"
        assert not await migration.move(KEY, "lane", lane), "it has ended"

    asyncio.run(main())
    assert not here.asked and len(lane.asked) == 1


def test_a_continuation_says_which_version_the_trajectory_began_with():
    """Of the part before the move; of an earlier turn it is known already."""
    for first_version in (None, 0):
        here, lane = Speaker(), Speaker(1)
        written(Sampling(9, first_version=first_version), here, {4: lane}, {lane: "lane"})
        assert here.asked[0][1].first_version == first_version and lane.asked[0][1].first_version == 0


def test_a_continuation_draws_other_numbers():
    """With the seed of the whole it would draw those of the beginning again."""
    lane = Speaker()
    written(Sampling(9, seed=5), Speaker(), {4: lane}, {lane: "lane"})
    assert lane.asked[0][1].seed not in (None, 5)


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("from_the_start", [False, True])
def test_what_is_lost_with_an_engine_is_drawn_with_the_same_numbers_again(seed, from_the_start):
    """Else a long rest, which is lost more often, would be drawn more often. A request that nobody moves has the seed
    that it came with, or none."""
    here, lane = Speaker(), Speaker(1)
    lane.dies_at = 12
    if from_the_start:
        migration = SequenceMigration(here, text_of)

        async def main() -> None:
            with migration.writing(KEY):
                await migration.move(KEY, "lane", lane)
                await migration.around(here).generate(PROMPT, Sampling(20, seed=seed), request_id=f"{KEY}/1")

        asyncio.run(main())
    else:
        written(Sampling(20, seed=seed), here, {4: lane}, {lane: "lane"})
        assert here.asked[0][1].seed == seed
    assert lane.asked[0] == here.asked[-1] and lane.asked[0][1].seed is not None
    assert (lane.asked[0][1].seed == seed) == (from_the_start and seed is not None), (
        "at its beginning the request's own, later another"
    )


def test_an_abort_that_is_no_move_is_told_as_one():
    here = Speaker()
    migration = SequenceMigration(here, text_of)
    here.stopped.add(f"{KEY}/0")

    async def main() -> Completion:
        with migration.writing(KEY):
            return await migration.around(here).generate(PROMPT, Sampling(9), request_id=f"{KEY}/0")

    assert asyncio.run(main()).finish_reason == "abort"
