"""benchmarks/learner: the arithmetic between what is timed and what is printed, and the batch that all ways train."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.learner import head, memory, step_time, steps
from benchmarks.learner.__main__ import BARS, reached
from benchmarks.learner.workload import LENGTH_SCALE, MAX_TOKENS, Size, batch


def test_a_ratio_is_the_median_over_rounds_of_the_other_ways_time_over_ours():
    seconds = {
        "packed": [1.0, 2.0, 4.0],
        **{name: [3.0, 3.0, 20.0] for name in ("padded", "bucketed", "bare", "openrlhf", "openrlhf_same_attention")},
    }
    found = steps.ratios(seconds)  # 3, 1.5 and 5: a round in which the machine was busy moves neither
    assert set(found.values()) == {3.0}
    of_other_parts = {
        "logprob_memory_ratio",
        "logprob_time_ratio",
        "openrlhf_flags_honoured",
        "plain_pss_gb",
        "pss_over_plain",
        "pss_two_ranks_over_plain",
        "growth_mb_per_update",
        "step_over_plain",
        "step_over_plain_shared",
    }
    assert set(BARS) - set(found) == of_other_parts


def test_the_table_counts_trained_tokens():
    rows = steps.table(
        {"seconds": {"packed": [2.0, 4.0, 8.0]}, "cpu_s": {"packed": [3.0, 5.0, 7.0]}, "tokens": [100, 100, 100]}
    )
    assert rows == {"packed": {"seconds": 4.0, "tokens_per_s": 25.0, "cpu_s": 5.0}}


def test_a_way_with_another_gradient_is_named():
    norms = {"packed": [1.0, 2.0], "bare": [1.0, 2.001], "padded": [1.0, 2.1]}
    assert steps.differing(norms) == ["padded"]


def test_the_plain_head_runs_on_as_many_tokens_as_there_is_room_for():
    whole = head.PLAIN_ARRAYS * 4 * 8192 * 1000
    assert head.plain_sizes(8192, 1000, 2 * whole) == (8192,)
    assert head.plain_sizes(8192, 1000, whole) == (2048, 4096)
    assert head.plain_sizes(8192, 1000, whole // 4) == (512, 1024)


def test_what_was_measured_on_fewer_tokens_is_drawn_on_as_a_line():
    assert head.at(8192, {8192: 7.0}) == 7.0
    assert head.at(8192, {2048: 3.0, 4096: 5.0}) == 9.0


@pytest.mark.slow
def test_the_heads_memory_is_the_same_whatever_the_process_that_measures_had_before():
    size = ("chunked", 2048, 512, 512)
    small = head.measure(*size)["peak_bytes"]
    before = bytearray(b"x") * 2**30
    del before
    assert head.measure(*size)["peak_bytes"] == pytest.approx(small, rel=0.5)
    assert small > 4 * 2048 * 512


RANK = """
import json, sys, time
rank = int(sys.argv[1])
if rank == 0:
    time.sleep(1.0)
    for update in (1, 2):
        print(json.dumps({"update": update, "seconds": 10.0 * update, "wall": 0.0, "pss": update}), flush=True)
"""


def test_the_updates_of_a_way_count_also_if_another_rank_ends_before(monkeypatch):
    monkeypatch.setattr("openrlhf_tir.weights.rendezvous.served_store", lambda host: SimpleNamespace(port=0))
    monkeypatch.setattr(memory, "command_of", lambda way, work, port: [sys.executable, "-c", RANK])
    found = memory._run("ours", 2, memory.Work("a model"))
    assert (found["seconds"], found["levels"]) == (20.0, [1, 2])
    assert found["peak"] > 0


def test_what_rank_0_tells_just_before_its_end_counts(monkeypatch):
    begun: list[subprocess.Popen] = []
    lines_of, processes = memory._lines, memory.processes

    @contextmanager
    def kept(*given):
        with processes(*given) as running:
            begun.extend(running)
            yield running

    def then_it_ends(stream):
        lines = lines_of(stream)

        def since():
            told = lines()
            with suppress(ChildProcessError):  # its end was seen before
                os.waitid(os.P_PID, begun[0].pid, os.WEXITED | os.WNOWAIT)
            return told

        return since

    monkeypatch.setattr(memory, "processes", kept)
    monkeypatch.setattr(memory, "_lines", then_it_ends)
    monkeypatch.setattr("openrlhf_tir.weights.rendezvous.served_store", lambda host: SimpleNamespace(port=0))
    monkeypatch.setattr(memory, "command_of", lambda way, work, port: [sys.executable, "-c", RANK])
    assert memory._run("ours", 2, memory.Work("a model"))["levels"] == [1, 2]


def test_a_rank_that_fails_ends_its_way(monkeypatch):
    hangs = "import sys, time; sys.exit(3) if sys.argv[1] == '1' else time.sleep(600)"
    monkeypatch.setattr("openrlhf_tir.weights.rendezvous.served_store", lambda host: SimpleNamespace(port=0))
    monkeypatch.setattr(memory, "command_of", lambda way, work, port: [sys.executable, "-c", hangs])
    monkeypatch.setattr(memory, "END_S", 0.1)
    with pytest.raises(SystemExit, match=r"\[None, 3\]"):
        memory._run("ours", 2, memory.Work("a model"))


def test_bars_have_a_sense():
    assert reached("packed_over_padded", 1.8) and not reached("packed_over_padded", 1.79)
    assert reached("logprob_time_ratio", 1.15) and not reached("logprob_time_ratio", 1.16)


def test_batches_have_the_workloads_lengths_and_both_ranks_nearly_as_many_tokens():
    size = Size()
    made, groups = batch(size, 0, 2)
    lengths = np.array([[len(t.token_ids) for t in g.trajectories] for g in groups])
    assert lengths.shape == (size.prompts, size.samples)
    assert lengths.max() > 4 * np.median(lengths)  # the long tail
    assert 700 / LENGTH_SCALE / 2 < np.median(lengths) < 700 / LENGTH_SCALE * 2
    load = [
        sum(
            lengths[b, i] + len(groups[b].trajectories[i].prompt_ids) for (b, i), r in made.rank_of.items() if r == rank
        )
        for rank in (0, 1)
    ]
    assert max(load) <= 1.05 * min(load)
    assert lengths.max() < MAX_TOKENS
    again, other = batch(size, 0, 2)[1], batch(size, 1, 2)[1]
    assert np.array_equal(again[0].trajectories[0].token_ids, groups[0].trajectories[0].token_ids)
    assert other[0].key != groups[0].key


@pytest.mark.parametrize("quick", [True, False])
def test_sizes_divide_over_the_ranks(quick):
    size = Size.quick() if quick else Size()
    assert size.prompts * size.samples % steps.RANKS == 0 and size.hidden % 64 == 0


def test_a_steps_time_is_told_by_the_median_round_over_the_plain_loop_of_the_same_round():
    def round_of(plain: float, ours: float, shared: float) -> dict[str, dict[str, float]]:
        seconds = {"plain": plain, "ours": ours, "shared": shared}
        return {way: {"seconds": s, "wall": 2 * s} for way, s in seconds.items()}

    found = step_time.ratios([round_of(10.0, 11.0, 6.0), round_of(20.0, 24.0, 10.0), round_of(10.0, 30.0, 7.0)])
    assert (found["step_over_plain"], found["step_over_plain_shared"]) == (1.2, 0.6)
    assert found["step_over_plain_by_clock"] == 1.2 and found["plain_step_s"] == 10.0
    assert {"step_over_plain", "step_over_plain_shared"} <= BARS.keys()


def test_the_batch_of_a_steps_time_is_whole_groups_of_as_many_sequences_as_the_plain_loops():
    work = memory.Work("model", micro_batches=step_time.MICRO_BATCHES)
    assert work.sequences_of_whole_groups == work.sequences
