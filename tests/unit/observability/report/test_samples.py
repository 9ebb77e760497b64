"""Kept trajectories: what a step trained, what was dropped before it and why, and how they are shown."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from openrlhf_tir.algorithms.advantages.preview import group_advantages
from openrlhf_tir.cli import main
from openrlhf_tir.cli.play import show
from openrlhf_tir.config import Logger
from openrlhf_tir.errors import DataError
from openrlhf_tir.observability.report import samples as samples_module
from openrlhf_tir.observability.report import samples_page
from openrlhf_tir.observability.report.build import build_report
from openrlhf_tir.observability.report.samples import ANY, Sample, samples_of, spread_over_groups, untrained_of
from openrlhf_tir.pipeline.ledger.ledger import Ledger
from openrlhf_tir.telemetry.metrics import MetricsLog
from openrlhf_tir.telemetry.trajectories import TrajectoryLog, read
from openrlhf_tir.types import KEEP, Group, GroupKey, RunFacts, Segment, Task, ToolCall, Trajectory, Verdict
from tests.pipeline.fakes import group_of


def member(index: int, text: str, *, version: int = 3, **fields) -> Trajectory:
    """Model text, then the environment's " 42", one token per character."""
    ids = np.array([ord(c) for c in text], np.int32)
    model = Segment("model", ids, np.zeros(len(ids), np.float32), np.full(len(ids), version, np.int32), text)
    t = Trajectory(
        index,
        ids[:1],
        [model, Segment.of_env([32, 52, 50], " 42")],
        finish_reason="stop",
        reward=1.0,
        parts={"correct": 1.0},
    )
    t.calls = [ToolCall("6*7", "42", "ok", {"odd": float("nan"), "set": {1}}, reward=0.5, done=True)]
    for name, value in fields.items():
        setattr(t, name, value)
    return t


@pytest.fixture
def run_dir(tmp_path):
    """Step 1 trains prompts 0 and 1, then 2 is dropped and 3 fails, step 2 trains 4."""
    ledger, log = Ledger(tmp_path / "ledger.jsonl"), TrajectoryLog(tmp_path, "rollout-0", 1.0)
    verdicts = {2: Verdict(False, "accuracy_high")}
    for prompt in range(5):
        key = GroupKey(0, prompt)
        ledger.issued(key, 0)
        meta, _ = group_of(key, 3, verdicts.get(prompt, KEEP), failed="timeout" if prompt == 3 else None)
        members = [
            member(0, f"p{prompt}a"),
            member(1, f"p{prompt}b", version=4, masked="faked_output" if prompt == 4 else ""),
        ]
        log.write(meta, Group(key, Task("Q: ", "42"), members))
    for prompt in (0, 1):
        ledger.ended("trained", GroupKey(0, prompt), step=0)
    ledger.ended("filtered", GroupKey(0, 2), reason="accuracy_high")
    ledger.ended("failed", GroupKey(0, 3), reason="timeout")
    ledger.ended("trained", GroupKey(0, 4), step=1)
    ledger.close()
    log.close()
    return tmp_path


def found(run_dir, step, dropped=None) -> list[tuple[int, int, str]]:
    return [(s.row["key"][1], s.row["index"], s.reason) for s in samples_of(run_dir, step, dropped)]


def test_a_step_shows_what_it_trained_and_what_was_dropped_before_it(run_dir):
    assert found(run_dir, 1) == [(0, 0, ""), (0, 1, ""), (1, 0, ""), (1, 1, "")]
    assert found(run_dir, 2) == [(4, 0, ""), (4, 1, "")]
    assert found(run_dir, 2, "accuracy_high") == [(2, 0, "accuracy_high"), (2, 1, "accuracy_high")]
    assert [p for p, _, _ in found(run_dir, 2, ANY)] == [2, 2, 3, 3]


def test_a_step_of_several_updates_has_the_number_that_its_metrics_have(tmp_path):
    """Batches of four updates: the first is step 4, the second 8."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for prompt in range(2):
        ledger.issued(GroupKey(0, prompt), 0)
        ledger.ended("trained", GroupKey(0, prompt), step=4 * prompt)
    ledger.close()
    with MetricsLog(tmp_path, Logger(tensorboard_dir=None)) as log:
        for step in (4, 8):
            log.log(step, {"accuracy": 0.5})
    assert samples_module.ends_by_step(tmp_path) == {4: {(0, 0, 0): ""}, 8: {(0, 1, 0): ""}}


def test_lines_of_a_file_that_are_no_trajectories_are_left_out(run_dir):
    before = found(run_dir, 1)
    lines = ("null", '{"a": 1}', '{"key": 5}', '{"key": [0, 1, 0]}')
    (run_dir / "trajectories" / "other.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert before and found(run_dir, 1) == before


def test_a_row_says_who_produced_each_run_of_tokens_and_by_which_versions(run_dir):
    row = next(r for r in read(run_dir) if r["index"] == 1)
    model_run = {"source": "model", "text": "p0b", "tokens": 3, "versions": [4, 4], "end": ""}
    assert row["runs"] == [model_run, {"source": "env", "text": " 42", "tokens": 3, "versions": None}]
    assert (row["versions"], row["calls"][0]["reward"], row["calls"][0]["signals"]) == (
        [4, 4],
        0.5,
        {"odd": "nan", "set": "{1}"},
    )


@pytest.mark.parametrize(
    ("step", "dropped", "said"),
    [
        (9, None, r" 9\. .*: 1 \w+ 2\b"),
        (2, "stale", r" 'stale'\. .*: accuracy_high, timeout"),
        (1, ANY, rf" 1 .*'{ANY}'\. \w+: (?!accuracy_high|timeout)\w+\.$"),
    ],
)
def test_what_is_not_there_is_said(run_dir, step, dropped, said):
    with pytest.raises(DataError, match=said):
        samples_of(run_dir, step, dropped)


def test_a_run_that_kept_nothing_says_how_to(run_dir):
    (run_dir / "trajectories/rollout-0.jsonl").write_text("")
    with pytest.raises(DataError, match=r"--logger\.trajectories 1"):
        samples_of(run_dir, 1)


def test_only_trained_tokens_are_green(run_dir):
    trained, masked = samples_of(run_dir, 2)
    for sample, colour in ((trained, "\x1b[32m"), (masked, "\x1b[36m")):
        console = Console(force_terminal=True, color_system="standard", width=200)
        with console.capture() as shown:
            show(console, sample)
        assert f"{colour}p4{'ab'[sample.row['index']]}" in shown.get() and "\x1b[33m 42" in shown.get()
    assert "faked_output" in shown.get()


def test_the_page_of_samples_shows_trained_and_dropped_text_by_who_produced_it(run_dir):
    page = samples_page.write(run_dir).read_text()
    parts = samples_page.parts_of(run_dir)
    assert [re.findall(r"\d+", part.title) for part in parts] == [["1"], ["2"], ["2"]]
    assert ["p2a" in str(part.samples) for part in parts] == [False, False, True], "dropped"
    assert '<span class="trained">p0a</span><span class="env"> 42</span>' in page
    assert '<span class="untrained">p4b</span><span class="env"> 42</span>' in page, "masked"
    assert '<span class="untrained">p2a</span>' in page and re.search(r"accuracy_high; reward 1\.0", page)
    assert re.search(r" 0: &#39;6\*7&#39; .* ok, reward 0\.5, ", page) and "correct 1" in page


def test_what_a_model_writes_is_text_on_the_page_and_nothing_else(run_dir):
    file = run_dir / "trajectories/rollout-0.jsonl"
    file.write_text(file.read_text().replace('"p0a"', '"<script>alert(1)</script>"'))
    page = samples_page.write(run_dir).read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_of_a_group_the_best_and_the_worst_sample_are_shown():
    rows = [Sample("", {"reward": reward, "index": i}) for i, reward in enumerate((0.5, 1.0, None, 0.2))]
    assert [s.row["index"] for s in samples_page._best_and_worst(rows)] == [1, 2]
    assert [s.row["index"] for s in samples_page._best_and_worst(rows[:1])] == [0]
    assert samples_page.spread_over(set(range(1, 11))) == [1, 6, 10] and samples_page.spread_over(set()) == []


@pytest.mark.slow
def test_the_report_links_the_page_of_samples_where_there_is_one(run_dir):
    with MetricsLog(run_dir, Logger(tensorboard_dir=None)) as log:
        log.log(1, {"drops/zero_variance": 1})
    assert 'href="samples.html"' in build_report(run_dir).read_text() and (run_dir / "samples.html").exists()
    (run_dir / "trajectories/rollout-0.jsonl").unlink()
    assert "samples.html" not in build_report(run_dir).read_text() and not (run_dir / "samples.html").exists()


def test_the_command_shows_a_step(run_dir, capsys):
    assert main(["play", str(run_dir), "--step", "2", "--dropped", "accuracy_high"]) == 0
    out = capsys.readouterr().out
    assert "p2a 42" in out and re.search(r"accuracy_high; reward 1\.0", out) and re.search(r"(?m)\b2 \w+ 2 .* 2$", out)
    assert main(["play", "--step", "2"]) == 2


def test_a_share_of_groups_is_chosen_by_the_key(tmp_path):
    log = TrajectoryLog(tmp_path, "rollout-0", 0.25)
    kept = [log.keeps(GroupKey(0, i)) for i in range(2000)]
    assert 400 < sum(kept) < 600 and kept == [
        TrajectoryLog(tmp_path, "other", 0.25).keeps(GroupKey(0, i)) for i in range(2000)
    ]
    assert (
        not (tmp_path / "none").exists()
        and TrajectoryLog(tmp_path / "none", "rollout-0", 0.0).write(*group_of(GroupKey(0, 0), 0)) is None
    )


def test_before_the_first_update_what_was_dropped_can_be_read(tmp_path, capsys):
    """Two groups dropped, one failed twice and is issued again; no learner step yet, and no share of groups is kept."""
    ledger, log = Ledger(tmp_path / "ledger.jsonl"), TrajectoryLog(tmp_path, "rollout-0", 0.0, sampled=8)
    for prompt, verdict in ((0, Verdict(False, "accuracy_low")), (1, Verdict(False, "too_long")), (2, KEEP)):
        key = GroupKey(0, prompt)
        ledger.issued(key, 0)
        meta, _ = group_of(key, 3, verdict)
        log.write(meta, Group(key, Task("Q: ", "42"), [member(0, f"p{prompt}a"), member(1, f"p{prompt}b")]))
    ledger.ended("filtered", GroupKey(0, 0), reason="accuracy_low")
    ledger.ended("filtered", GroupKey(0, 1), reason="too_long")
    for attempt in range(2):
        key = GroupKey(0, 3, attempt)
        ledger.issued(key, 0)
        ledger.ended("requeued", key, reason="env_error")
    ledger.close()
    log.close()

    found = untrained_of(tmp_path)
    assert found.counts == {"failed: env_error": 2, "accuracy_low": 1, "too_long": 1}
    assert [(s.row["key"][1], s.reason) for s in found.samples] == [
        (1, "too_long"),
        (1, "too_long"),
        (0, "accuracy_low"),
        (0, "accuracy_low"),
    ], "the latest first; what was kept by the filters is no sample"
    assert untrained_of(tmp_path, "env_error").counts == {"failed: env_error": 2}
    (tmp_path / "sampled").rename(tmp_path / "dropped")
    assert untrained_of(tmp_path) == found, "a run of a former version"
    assert main(["play", str(tmp_path), "--dropped", "--limit", "2"]) == 0
    out = capsys.readouterr().out
    assert "p0a 42" in out and "p1a 42" in out and "p0b" not in out, "one of each reason"
    assert re.search(r"\b2 \w+: .*env_error", out) and re.search(r"\b2 \w+ 4 ", out)
    assert main(["play", str(tmp_path), "--dropped", "nonsense"]) != 0
    assert main(["play", str(tmp_path)]) != 0, "no step to show"
    assert main(["play", str(tmp_path / "nowhere"), "--dropped"]) != 0


def test_play_without_a_step_shows_the_last_one(run_dir, capsys):
    assert main(["play", str(run_dir)]) == 0
    out = capsys.readouterr().out
    assert "p4a 42" in out and "p0a" not in out and re.search(r"(?m)\b\d \w+ \d .* 2$", out)


def test_of_what_is_dropped_a_few_groups_are_kept_however_many_there_are(tmp_path):
    """The first 8, all up to 16, then each second, fourth, eighth: 8 more each time that the count has doubled."""
    log = TrajectoryLog(tmp_path, "rollout-0", 0.0, sampled=8)
    for prompt in range(64):
        meta, _ = group_of(GroupKey(0, prompt), 0, Verdict(False, "accuracy_low"))
        log.write(meta, Group(meta.key, Task("Q", "1"), [member(i, "x") for i in range(9)]))
    log.close()
    rows = list(read(tmp_path, "sampled"))
    assert [prompt for prompt in range(64) if any(r["key"][1] == prompt for r in rows)] == [
        *range(16),
        *range(16, 32, 2),
        *range(32, 64, 4),
    ]
    assert {r["index"] for r in rows} == {0, 1, 2, 3} and list(read(tmp_path)) == []


def test_of_what_the_filters_keep_the_first_group_of_some_updates_is_a_sample_whatever_the_share(tmp_path):
    """Three groups of each update, and one of an older update: the updates are thinned as dropped groups are."""
    log = TrajectoryLog(tmp_path, "rollout-0", 0.0, sampled=8)
    for prompt in range(3 * 40):
        for update in {prompt // 3, 0}:
            meta, _ = group_of(GroupKey(update == 0, prompt), 0, KEEP)
            task = Task("Q", "1", run=RunFacts(update=update))
            log.write(meta, Group(meta.key, task, [member(i, "x") for i in range(9)]))
    log.close()
    rows = list(read(tmp_path, "sampled"))
    assert [row["update"] for row in rows if row["index"] == 0] == [*range(16), *range(16, 32, 2), 32, 36]
    assert {row["index"] for row in rows} == {0, 1, 2, 3}
    assert list(read(tmp_path)) == [], "the share, which fine-tuning and selection read, has none of them"


def test_a_run_without_a_share_shows_the_last_step_of_which_a_sample_was_trained(tmp_path, capsys):
    ledger, log = Ledger(tmp_path / "ledger.jsonl"), TrajectoryLog(tmp_path, "rollout-0", 0.0, sampled=8)
    for prompt, update in enumerate((0, 1, 1)):
        key = GroupKey(0, prompt)
        ledger.issued(key, update)
        meta, _ = group_of(key, update, KEEP)
        log.write(meta, Group(key, Task("Q: ", "42", run=RunFacts(update=update)), [member(0, f"p{prompt}a")]))
        ledger.ended("trained", key, step=prompt)
    ledger.close()
    log.close()
    assert main(["play", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "p1a 42" in out and "p0a" not in out and re.search(r"(?m)\b1 \w+ 1 .* 2$", out)
    assert [s.row["key"][1] for s in samples_of(tmp_path, 1)] == [0]
    assert main(["play", str(tmp_path), "--step", "3"]) != 0, "no group of it was kept"
    assert [re.findall(r"\d+", part.title) for part in samples_page.parts_of(tmp_path)] == [["1"], ["2"]]


def test_samples_say_environment_advantage_branches_and_why(tmp_path):
    log = TrajectoryLog(tmp_path, "rollout-0", 1.0, advantages=lambda meta, group: [0.75, -0.25])
    key = GroupKey(0, 0)
    meta = replace(group_of(key, 0, KEEP)[0], index=[0, 1])
    members = [member(0, "a", branches=[member(0, "another chain")]), member(1, "b"), member(2, "c", failed="timeout")]
    members[2].why = "the sandbox did not answer"
    log.write(meta, Group(key, Task("Q: ", "42", env="guess"), members))
    log.close()
    first, second, third = (samples_module.facts_of(Sample("", row)) for row in read(tmp_path))
    assert "advantage 0.75" in first[0] and "guess" in first[1]
    assert any(re.match(r"\w+ 0: 16 .*another chain", fact) for fact in first)
    assert "advantage -0.25" in second[0]
    assert not re.search(r"advantage -?\d", third[0]) and "timeout" in third[0]
    assert "the sandbox did not answer" in third[-1]


def test_the_advantage_is_the_estimators_and_unknown_where_only_the_learner_has_it():
    """Rewards 1, 0, 0: minus the mean of the others, 1, -1/2, -1/2."""
    members = [member(i, "ab", reward=reward) for i, reward in enumerate((1.0, 0.0, 0.0))]
    meta = replace(group_of(GroupKey(0, 0), 0, KEEP)[0], rewards=[1.0, 0.0, 0.0], index=[0, 1, 2])
    group = Group(GroupKey(0, 0), Task("Q", "1"), members)

    def given(estimator):
        return group_advantages(estimator, credit="trajectory", gamma=1.0, options={})(meta, group)

    assert given("rloo") == [1.0, -0.5, -0.5]
    assert given("reinforce_baseline") == pytest.approx([2 / 3, -1 / 3, -1 / 3]), "before the batch is whitened"
    assert given("gae") is None, "it has a critic"
    assert given("flash_reinforce") is None, "it compares with the whole batch"


def test_samples_to_show_are_of_several_reasons_and_groups_before_a_second_of_any():
    samples = [
        Sample(reason, {"key": [0, prompt, 0], "index": index})
        for prompt, reason in ((0, "low"), (1, "low"), (2, "long"))
        for index in (0, 1)
    ]
    chosen = [(s.row["key"][1], s.row["index"]) for s in spread_over_groups(samples, 5)]
    assert chosen == [(0, 0), (2, 0), (1, 0), (2, 1), (0, 1)]
