"""Router: where groups go, and what happens while members come and go. Members are strings here."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from openrlhf_tir.errors import EngineGone, PipelineError, VersionGone
from openrlhf_tir.pipeline.router import BALANCE, Router

PROMPTS = [f"p{i}" for i in range(60)]


def router(*names: str) -> Router[str]:
    r: Router[str] = Router()
    for name in names:
        r.join(name, name)
    return r


async def home(r: Router[str], prompt: str) -> str:
    async with r.place(prompt) as member:
        return member


async def run(r: Router[str], prompts: list[str], n: int = 16) -> list[str]:
    """All prompts at once; where each went."""
    async with AsyncExitStack() as held:
        return [await held.enter_async_context(r.place(p, n)) for p in prompts]


async def test_new_prompts_spread_evenly():
    r = router("a", "b", "c")
    assert Counter(await run(r, PROMPTS)) == {"a": 20, "b": 20, "c": 20}
    assert {s.assigned for s in r.engines.values()} == {0}


async def test_prompts_that_come_again_go_where_they_were_in_whatever_order():
    r = router("a", "b", "c")
    homes = dict(zip(PROMPTS, await run(r, PROMPTS), strict=True))
    again = PROMPTS[::-1]
    assert await run(r, again) == [homes[p] for p in again]


async def test_a_member_that_joins_is_filled_at_once_by_prompts_whose_homes_are_overloaded():
    r = router("a", "b")
    homes = await run(r, PROMPTS)
    r.join("c", "c")
    again = await run(r, PROMPTS)
    stayed = sum(x == y for x, y in zip(homes, again, strict=True))
    assert stayed + Counter(again)["c"] == len(PROMPTS)
    assert Counter(again)["c"] >= 8 and stayed >= 45


async def test_the_prompts_of_a_member_that_left_find_a_new_home_and_stay_there():
    r = router("a", "b", "c")
    before = await run(r, PROMPTS)
    r.leave("c")
    after = await run(r, PROMPTS)
    assert [y for x, y in zip(before, after, strict=True) if x != "c"] == [x for x in before if x != "c"]
    assert Counter(after) == {"a": 30, "b": 30}
    assert await run(r, PROMPTS) == after


async def test_no_home_is_more_than_one_group_above_the_bound():
    r = router("a", "b", "c", "d")
    loads = Counter(await run(r, ["the same"] * 100))
    assert max(loads.values()) <= BALANCE * 100 / 4 + 2
    assert sum(loads.values()) == 100


async def test_a_suspect_gets_nothing_until_it_answers_again():
    r = router("a", "b")
    r.set_silent("a", True)
    assert {await home(r, f"p{i}") for i in range(20)} == {"b"}
    r.set_silent("a", False)
    assert set(await run(r, PROMPTS)) == {"a", "b"}


async def test_an_evaluation_goes_only_where_its_weights_are():
    """b came up with younger ones. While a is silent, the group waits for it; when a is gone, there is none."""
    r = router("a", "b")

    async def placed() -> str:
        async with r.place("p", 1, lambda member: member == "a") as member:
            return member

    assert [await placed() for _ in range(3)] == ["a"] * 3
    r.set_silent("a", True)
    waiting = asyncio.create_task(placed())
    await asyncio.sleep(0.01)
    r.leave("a")
    with pytest.raises(VersionGone):
        await waiting
    r.leave("b")
    waiting = asyncio.create_task(placed())
    await asyncio.sleep(0.01)
    assert not waiting.done(), "with nobody left it waits, as every group does, for whoever comes"
    r.join("a", "a")
    assert await waiting == "a"


async def test_a_draining_member_ends_its_groups_and_gets_no_more():
    """Though the other one has the greater load."""
    r = router("a", "b")
    async with r.place("p") as mine, r.place("q", 16) as other:
        leaving = asyncio.create_task(r.wait_until_drained(mine))
        await asyncio.sleep(0)
        assert {mine, other} == {"a", "b"}
        assert {await home(r, f"p{i}") for i in range(20)} == {other}
        assert not leaving.done()
    await asyncio.wait_for(leaving, 60)


async def test_a_draining_member_that_stays_gets_the_groups_that_wait_for_one():
    r = router("a")
    await r.wait_until_drained("a")
    waiting = asyncio.create_task(home(r, "p"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    r.keep("a")
    assert await asyncio.wait_for(waiting, 60) == "a"


async def test_the_prompts_that_came_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr("openrlhf_tir.pipeline.router.MAX_PROMPTS", 3)
    r = router("a", "b")
    await run(r, PROMPTS[:5])
    assert len(r._homes) == 3


async def test_groups_wait_for_a_member_to_join():
    r = router()
    waiting = [asyncio.create_task(home(r, f"p{i}")) for i in range(3)]
    await asyncio.sleep(0.01)
    assert not any(w.done() for w in waiting)
    r.join("a", "a")
    assert await asyncio.gather(*waiting) == ["a"] * 3


async def test_waiting_groups_hear_that_nobody_will_come():
    r = router("a")
    r.leave("a")
    r.leave("a")
    waiting = asyncio.create_task(home(r, "p"))
    await asyncio.sleep(0)
    r.set_launch_error(RuntimeError("no GPU"))
    with pytest.raises(PipelineError, match="no GPU"):
        await waiting


async def failed(r: Router[str], prompt: str) -> str:
    """Its member dies or hangs under the prompt; which one that was."""
    with pytest.raises(EngineGone):
        async with r.place(prompt) as member:
            raise EngineGone("no answer")
    return member


async def test_a_prompt_does_not_go_back_to_the_member_that_it_failed_on_while_there_is_another():
    r = router("a", "b", "c")
    first = await failed(r, "p")
    second = await failed(r, "p")
    third = await failed(r, "p")
    assert {first, second, third} == {"a", "b", "c"}
    assert await home(r, "p") in "abc"  # all failed: any of them is better than none


async def test_a_member_that_takes_the_name_of_one_that_failed_is_not_trusted_with_that_prompt_either():
    r = router("a", "b")
    bad = await failed(r, "p")
    r.leave(bad)
    r.join(bad, bad)
    assert await home(r, "p") != bad


async def test_a_prompt_that_was_answered_is_free_to_go_anywhere_again():
    r = router("a", "b")
    bad = await failed(r, "p")
    good = await home(r, "p")
    r.leave(good)
    r.join(good, good)
    async with r.place("other", 100), r.place("p") as member:  # "other" is at the one, "p" at its home, whichever
        assert member in (bad, good)
    r.set_silent(good, True)
    assert await home(r, "p") == bad
    r.set_silent(good, False)
    assert await home(r, "p") == bad, "its home is where it was answered last"


def busy(running: float, waiting: float = 0.0) -> dict[str, float]:
    return {"running": running, "waiting": waiting, "width": 64.0}


async def test_what_a_member_told_is_kept_with_what_was_placed_there_since():
    r = router("a", "b")
    assert r.stats() == []
    async with r.place("p", 16) as member:
        r.record_report(member, busy(40))
        async with r.place("p", 16):
            assert r.stats() == [{**busy(40), "placed": 16.0, "aside": 0.0, "open": 1.0}]
        r.record_report(member, busy(30))
        assert r.stats() == [{**busy(30), "placed": 0.0, "aside": 0.0, "open": 1.0}]
    r.leave(member)
    assert r.stats() == []


async def test_what_is_held_follows_every_change_however_often_it_is_asked():
    r, seen = router("a"), []

    def look() -> None:
        (first,), (again,) = r.stats(), r.stats()
        assert first == again
        seen.append((first["running"], first["width"], first["placed"], first["aside"], first["open"]))

    async with r.place("p", 16):
        r.record_report("a", busy(16))
        look()
        async with r.place("q", 8):
            look()
            async with r.place("e", 4, for_evaluation=True):
                look()
            look()
            r.record_report("a", busy(24))
            look()
        r.set_silent("a", True)
        look()
        r.set_silent("a", False)
        look()
        r.reserve(["a"])
        look()
        r.reserve([])
    look()
    assert seen == [
        (16, 64, 0, 0, 1),
        (16, 64, 8, 0, 1),
        (16, 64, 8, 4, 1),
        (16, 64, 8, 0, 1),
        (24, 64, 0, 0, 1),
        (24, 24, 0, 0, 0),
        (24, 64, 0, 0, 1),
        (24, 24, 0, 0, 0),
        (0, 64, 0, 0, 1),
    ]


async def test_nothing_runs_where_no_group_is_whatever_was_told_last():
    """An evaluation was given up, or its groups ended elsewhere: nobody tells."""
    r = router("a")
    async with r.place("p", 16, for_evaluation=True):
        r.record_report("a", busy(64, 175))
        assert r.stats()[0]["waiting"] == 175
    assert r.stats() == [{**busy(0), "placed": 0.0, "aside": 0.0, "open": 1.0}]


async def test_an_evaluations_trajectories_are_aside_and_not_placed():
    r = router("a")
    async with r.place("p", 16), r.place("q", 8, for_evaluation=True):
        r.record_report("a", busy(24))
        async with r.place("q", 8, for_evaluation=True):
            assert r.stats() == [{**busy(24), "placed": 0.0, "aside": 16.0, "open": 1.0}]
        assert r.stats()[0]["aside"] == 8


async def test_a_group_that_failed_or_was_refused_is_not_placed_any_more_and_another_one_is():
    r = router("a")
    async with r.place("p", 16):
        r.record_report("a", busy(16))
        async with r.place("q", 8):
            with pytest.raises(ValueError, match="failed"):
                async with r.place("r", 16):
                    raise ValueError("failed")
            async with r.place("r", 16):
                pass  # as the pool does where the queue was full
            assert r.stats()[0]["placed"] == 8
            async with r.place("r", 16):
                r.record_report("a", busy(24))
            assert r.stats()[0]["placed"] == 0


async def test_totals_are_sums_over_the_members_that_have_told():
    r = router("a", "b", "c")
    assert r.total_stats() == {"actors": 3.0}
    async with r.place("p", 8), r.place("q", 8):
        r.record_report("a", {**busy(10, 2), "hits": 3.0})
        r.record_report("b", busy(20))
        found = r.total_stats()
    assert (found["actors"], found["running"], found["waiting"], found["hits"]) == (3, 30, 2, 3)


async def test_a_members_width_narrows_while_others_wait_and_comes_back():
    r = router("a")
    free, full, widths = busy(10), busy(10, 5), []
    async with r.place("p"):
        for told in (free, full, full, free, busy(63, 5), *300 * [full], *300 * [free]):
            r.record_report("a", told)
            widths.append(r.stats()[0]["width"])
    assert widths[:5] == pytest.approx([64, 62, 62 * 31 / 32, 62 * 31 / 32 + (64 - 62 * 31 / 32) / 32, 63])
    assert widths[304] == 10 and widths[-1] == pytest.approx(64, rel=1e-3)


async def test_a_member_that_gets_no_new_groups_is_as_wide_as_what_runs_there():
    r = router("a", "b", "c", "d")
    async with r.place("p"), r.place("q"), r.place("r"), r.place("s"):
        for name in "abcd":
            r.record_report(name, busy(40))
        r.reserve(["a"])
        r.set_silent("b", True)
        r.engines["c"].draining = True
        assert [h["width"] for h in r.stats()] == [40, 40, 40, 64]
        assert r.total_stats()["open"] == 1


@pytest.mark.parametrize("figures", [{}, {"running": 1.0}, {"running": 1.0, "waiting": 0.0, "preemptions": 0.0}])
async def test_a_member_that_says_less_has_told_nothing(figures):
    r = router("a")
    r.record_report("a", figures)
    r.record_report("gone", busy(1))
    assert r.stats() == []
