"""A damaged checkpoint is refused or repaired by name: every file of a run flipped, cut, emptied, swapped, removed in
turn. Learner files are fakes.

Refused: an error of ours that names the file, before anything is loaded. Repaired: said by name, and the run goes on to
an audit without errors."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from openrlhf_tir.errors import CheckpointDamaged, CheckpointFailed, ConfigError, Unavailable
from openrlhf_tir.pipeline.checkpoints import checkpoint, disk, new_ledger, stored
from openrlhf_tir.pipeline.checkpoints.checkpoint import Checkpoints
from openrlhf_tir.pipeline.ledger.audit import audit
from openrlhf_tir.pipeline.scheduler import InFlightGroup
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.types import CounterUpdate, GroupKey

from ..fakes import FakeLearner, FakePrompts, group_of, pipeline

PROMPTS = 30
FLAGS = {"S": 2, "B": 2, "save_steps": 2, "eval_steps": 2}


class TwoRanks(FakeLearner):
    """Files like those of two ZeRO-3 ranks, other bytes in each checkpoint."""

    async def save(self, directory: Path):
        await super().save(directory)
        (directory / "zero").mkdir()
        for rank in range(2):
            noise = np.random.default_rng([self.version, rank]).bytes(3000)
            (directory / f"rank{rank}.pt").write_bytes(noise[:500])
            (directory / "zero" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(noise)


def evaluations():
    async def evaluate():
        return {"eval/accuracy": 0.5}

    return evaluate


def opened(run_dir: Path) -> Checkpoints:
    return Checkpoints(run_dir / "ckpt", 2, ledger=run_dir / "ledger.jsonl")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory) -> Path:
    """A run that was killed in the step after its fourth: checkpoints 2 (the best, by evaluation) and 4, groups in
    replay, a ledger that goes on."""
    directory = tmp_path_factory.mktemp("whole")
    first = pipeline(
        directory,
        prompts=FakePrompts(PROMPTS),
        learner=TwoRanks(crash_at=5),
        evaluate=evaluations(),
        max_steps=100,
        **FLAGS,
    )
    with pytest.raises(ExceptionGroup):
        run(first.run())
    assert sorted(p.name for p in (directory / "ckpt").iterdir()) == [
        "best.json",
        "latest",
        "step_000002",
        "step_000004",
    ]
    assert len(stored.read(directory / "ckpt" / "step_000004")) > 0
    return directory


@dataclass
class Damage:
    file: str
    kind: str
    do: Callable[[Path], None]
    """Given the run directory."""


def files_of(run_dir: Path) -> list[str]:
    inside = sorted(str(p.relative_to(run_dir)) for p in (run_dir / "ckpt" / "step_000004").rglob("*") if p.is_file())
    return ["ledger.jsonl", "ckpt/latest", "ckpt/best.json", *inside]


def damages(run_dir: Path) -> Iterator[Damage]:
    for file in files_of(run_dir):
        raw = (run_dir / file).read_bytes()
        # The ledger stands on its bytes before the mark; what came after the cut is taken back anyway.
        n = len(raw) // 4 if file == "ledger.jsonl" else len(raw)
        edits = {
            **{f"flip byte {at}": raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :] for at in sorted({0, n // 2, n - 1})},
            "cut in half": raw[: n // 2],
            "empty": b"",
            "binary": bytes(range(128, 256)) * 4,
            "other JSON": b'{"a": [1]}\n',
        }
        for kind, damaged in edits.items():
            yield Damage(file, kind, lambda d, f=file, b=damaged: (d / f).write_bytes(b))
        yield Damage(file, "removed", lambda d, f=file: (d / f).unlink())
        yield Damage(file, "a directory", lambda d, f=file: ((d / f).unlink(), (d / f).mkdir()))
        older = run_dir / file.replace("step_000004", "step_000002")
        if "step_" in file and older.read_bytes() != raw:
            yield Damage(file, "that of an older step", lambda d, f=file, o=older: shutil.copy(o, d / f))
    rank = "ckpt/step_000004/learner/zero/zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    yield Damage(rank.format(1), "that of another rank", lambda d: shutil.copy(d / rank.format(0), d / rank.format(1)))
    yield Damage(
        "ckpt/step_000004/learner",
        "that of an older step",
        lambda d: swap(d / "ckpt/step_000002/learner", d / "ckpt/step_000004/learner"),
    )
    yield Damage("ckpt/step_000004/learner", "removed", lambda d: shutil.rmtree(d / "ckpt/step_000004/learner"))
    yield Damage(
        "ckpt/step_000004", "that of an older step", lambda d: swap(d / "ckpt/step_000002", d / "ckpt/step_000004")
    )
    yield Damage("ckpt/step_000004", "removed", lambda d: shutil.rmtree(d / "ckpt/step_000004"))
    lines = (run_dir / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    for i in range(0, len(lines) // 4, 3):
        gone = b"".join(lines[:i] + lines[i + 1 :])
        yield Damage("ledger.jsonl", f"line {i} deleted", lambda d, b=gone: (d / "ledger.jsonl").write_bytes(b))
    swapped = b"".join([lines[0], lines[2], lines[1], *lines[3:]])
    yield Damage("ledger.jsonl", "two lines swapped", lambda d: (d / "ledger.jsonl").write_bytes(swapped))


def swap(source: Path, target: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(source, target)


def put_back(source: Path, target: Path, file: str) -> None:
    """A refused resume has changed nothing else."""
    if (target / file).is_dir():
        shutil.rmtree(target / file)
    (shutil.copytree if (source / file).is_dir() else shutil.copy)(source / file, target / file)


def resumed(directory: Path, wanted: str = "latest") -> tuple[str, str]:
    """("refused" | "went on", what was said), as `train --resume` does it; a run that goes on must end with an audit
    without errors."""
    checkpoints = opened(directory)
    try:
        path = checkpoints.choose(wanted)
        said = checkpoints.accept(path)
    except (CheckpointDamaged, ConfigError) as e:
        return "refused", str(e)
    again = pipeline(
        directory, prompts=FakePrompts(PROMPTS), learner=TwoRanks(), evaluate=evaluations(), max_steps=100, **FLAGS
    )
    run(again.run(resume=True))
    report = audit(directory / "ledger.jsonl")
    assert (
        report.errors == []
        and sorted(report.trained) == [(0, i) for i in range(PROMPTS)]
        and report.committed_trained == report.trained
    )
    return "went on", "; ".join(said)


@pytest.mark.slow
def test_every_damage_to_every_file_is_refused_or_repaired_by_name(run_dir, tmp_path):
    ends: Counter[str] = Counter()
    directory = tmp_path / "run"
    shutil.copytree(run_dir, directory)
    for damage in damages(run_dir):
        damage.do(directory)
        end, said = resumed(directory)
        assert Path(damage.file).name in said, f"{damage.file}, {damage.kind}: {end}, {said!r}"
        if end == "refused":
            assert "--train.resume_from" in said or damage.file == "ledger.jsonl", said
            put_back(run_dir, directory, damage.file)
        else:
            swap(run_dir, directory)
        ends[end] += 1
    assert ends.total() >= 100 and ends["went on"] > 0, ends


def test_what_is_whole_is_resumed_and_nothing_is_said(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    assert resumed(tmp_path / "run") == ("went on", "")


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (Path.unlink, "file_missing"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1]), "file_size"),
        (lambda file: file.write_bytes(file.read_bytes()[:-1] + b"?"), "file_changed"),
    ],
)
@pytest.mark.parametrize("file", ["ckpt/step_000004/learner/rank1.pt", "ledger.jsonl"])
def test_a_file_that_is_missing_cut_or_changed_has_a_code_of_its_own(run_dir, tmp_path, file, damage, code):
    directory = tmp_path / "run"
    shutil.copytree(run_dir, directory)
    mark = opened(directory).state(directory / "ckpt/step_000004")["ledger"]
    (directory / "ledger.jsonl").write_bytes((directory / "ledger.jsonl").read_bytes()[: mark["bytes"]])
    damage(directory / file)
    with pytest.raises(CheckpointDamaged, match=Path(file).name) as refused:
        opened(directory).choose()
    assert refused.value.code == code


def test_the_next_older_whole_checkpoint_is_offered_and_taken_by_name_or_by_itself(run_dir, tmp_path):
    for wanted in ("step_000002", "newest_whole"):
        directory = tmp_path / wanted
        shutil.copytree(run_dir, directory)
        (directory / "ckpt/step_000004/learner/rank1.pt").unlink()
        end, said = resumed(directory)
        assert end == "refused" and "learner/rank1.pt" in said
        assert "--train.resume_from step_000002" in said
        end, said = resumed(directory, wanted)
        assert end == "went on" and re.search("step_000004.*step_000002", said)
        assert not (directory / "ckpt/step_000004").exists() or opened(directory).choose() is not None


def test_a_ledger_that_was_cut_after_the_older_checkpoint_leaves_that_one_whole(run_dir, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(run_dir, directory)
    mark = opened(directory).state(directory / "ckpt/step_000002")["ledger"]
    ledger = directory / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes()[: mark["bytes"] + 100])
    end, said = resumed(directory)
    assert end == "refused" and "ledger.jsonl" in said and "--train.resume_from step_000002" in said
    assert resumed(directory, "newest_whole")[0] == "went on"


def test_where_nothing_is_whole_that_is_said(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    (tmp_path / "run" / "ledger.jsonl").unlink()
    for wanted in ("latest", "newest_whole"):
        end, said = resumed(tmp_path / "run", wanted)
        assert end == "refused" and "ledger.jsonl" in said and "--train.overwrite" in said


@pytest.mark.parametrize("loss", ["missing", "garbled"])
def test_a_lost_ledger_costs_its_history_not_the_weights(run_dir, tmp_path, loss):
    """The prompts that were open at the cut still end once each; those that had ended are known to the old ledger."""
    directory = tmp_path / "run"
    shutil.copytree(run_dir, directory)
    ledger = directory / "ledger.jsonl"
    before = audit(ledger)
    state = opened(directory).state(directory / "ckpt/step_000004")
    ledger.unlink() if loss == "missing" else ledger.write_bytes(b"\xff" * 3000)
    end, said = resumed(directory)
    assert end == "refused" and re.search(r"step_000004 .*--train\.new_ledger", said)

    path = Checkpoints(directory / "ckpt", 2).choose()
    twin, said = new_ledger.begin(opened(directory), path, ledger)
    assert twin.name == "step_000004a" and ("ledger.jsonl.damaged" in said) == (loss == "garbled")
    checkpoints = opened(directory)
    checkpoints.accept(twin)
    assert checkpoints.choose() == twin
    again = pipeline(
        directory, prompts=FakePrompts(PROMPTS), learner=TwoRanks(), evaluate=evaluations(), max_steps=100, **FLAGS
    )
    run(again.run(resume=True))
    report = audit(ledger)
    trained_at_the_cut = before.trained.first(2 * state["version"])
    assert report.errors == [] and report.open == []
    assert sorted([*trained_at_the_cut, *report.trained]) == [(0, i) for i in range(PROMPTS)]


def test_a_checkpoint_by_a_name_that_is_not_there_is_refused_with_those_that_are(run_dir):
    with pytest.raises(ConfigError, match=r"'step_000003' .*: step_000002, step_000004"):
        opened(run_dir).choose("step_000003")


def test_a_checkpoint_without_a_manifest_is_refused_and_a_pickle_in_it_is_not_read(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    last = tmp_path / "run/ckpt/step_000004"
    for name in ("manifest.json", "replay.json", "replay.safetensors"):
        (last / name).unlink()
    (last / "replay.pkl").write_bytes(b"cos\nsystem\n(S'touch %s'\ntR." % bytes(tmp_path / "executed"))
    end, _ = resumed(tmp_path / "run")
    assert end == "refused"
    assert not (tmp_path / "executed").exists()


def test_what_a_run_left_that_died_while_writing_is_removed_and_said(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    (tmp_path / "run/ckpt/.step_000006.tmp/learner").mkdir(parents=True)
    assert ".step_000006.tmp" in resumed(tmp_path / "run")[1]
    assert not list((tmp_path / "run/ckpt").glob(".step_*"))


def test_a_checkpoint_newer_than_latest_is_said(run_dir, tmp_path):
    """A crash between the rename and `latest`: the run goes on from the older, as it always did, but not silently."""
    shutil.copytree(run_dir, tmp_path / "run")
    (tmp_path / "run/ckpt/latest").write_text("step_000002")
    assert re.search("step_000002.*step_000004", resumed(tmp_path / "run")[1])


def test_damage_between_two_restarts_of_the_learner_stops_the_run_by_name(run_dir, tmp_path):
    """The loop verifies what it loads, also when it was whole as the run began."""
    loaded = []

    class Untouched(TwoRanks):
        async def load(self, directory):
            loaded.append(directory)
            return await super().load(directory)

    shutil.copytree(run_dir, tmp_path / "run")
    (tmp_path / "run/ckpt/step_000004/learner/rank0.pt").write_bytes(b"x" * 500)
    with pytest.raises(ExceptionGroup) as e:
        run(pipeline(tmp_path / "run", prompts=FakePrompts(PROMPTS), learner=Untouched(), **FLAGS).run(resume=True))
    (error,) = e.value.exceptions
    assert isinstance(error, CheckpointDamaged) and "learner/rank0.pt" in str(error) and loaded == []


# ---- replay ----


def test_buffered_groups_come_back_with_every_dtype_tuple_and_bit(tmp_path):
    rows = []
    for i in range(3):
        meta, group = group_of(GroupKey(0, i, 1), version=i)
        group.trajectories[0].segments[0] = type(group.trajectories[0].segments[0])(
            "env",
            np.array([1, 2**31 - 1], np.int32),
            np.array([-0.0, np.nan], np.float32),
            np.array([-1, -1], np.int32),
            "a\ud800b",
        )
        object.__setattr__(
            group.task,
            "meta",
            {
                "n": (1, 2.5),
                "b": b"\0\xff",
                3: None,
                "x": np.arange(6, dtype=np.uint16).reshape(2, 3),
                "s": np.float16(0.1),
            },
        )
        meta = replace(meta, stats={**meta.stats, "inf": float("inf")})
        group.trajectories[1].changes.append(CounterUpdate("prompt", "best", "highest", 0.5))
        rows.append((InFlightGroup(GroupKey(0, i, 1), i, i, 2, 1.5, "echo"), meta, group))
    stored.write(tmp_path, rows)
    back = stored.read(tmp_path)
    for (flight, meta, group), (flight2, meta2, group2) in zip(rows, back, strict=True):
        assert (
            (flight2, meta2) == (flight, meta)
            and type(flight2.key) is GroupKey
            and type(meta2.verdict) is type(meta.verdict)
        )
        old, new = group.trajectories[0].segments[0], group2.trajectories[0].segments[0]
        for a, b in ((old.token_ids, new.token_ids), (old.logprobs, new.logprobs), (old.versions, new.versions)):
            assert a.dtype == b.dtype and a.tobytes() == b.tobytes()
        assert (
            new.text == "a\ud800b"
            and type(group2.trajectories[1].changes[0]) is CounterUpdate
            and group2.task.run == group.task.run
        )
        x = group2.task.meta["x"]
        assert (
            x.dtype == np.uint16 and x.tolist() == [[0, 1, 2], [3, 4, 5]] and group2.task.meta["s"].dtype == np.float16
        )
        assert [(k, v) for k, v in group2.task.meta.items() if k not in ("x", "s")] == [
            ("n", (1, 2.5)),
            ("b", b"\0\xff"),
            (3, None),
        ]


def test_no_buffered_group_is_stored_too(tmp_path):
    stored.write(tmp_path, [])
    assert stored.read(tmp_path) == []


def test_a_value_that_cannot_be_stored_is_named_with_its_place(tmp_path):
    meta, group = group_of(GroupKey(0, 7), version=0)
    object.__setattr__(group.task, "meta", {"scorer": print})
    with pytest.raises(CheckpointFailed, match=r"0/7/0\.task\.meta\['scorer'\] .*builtins\.builtin_function_or_method"):
        stored.write(tmp_path, [(InFlightGroup(group.key, 0, 0), meta, group)])


# ---- disk ----


def test_a_checkpoint_that_will_not_fit_is_not_begun_and_says_how_much_is_missing(tmp_path):
    asked = []

    class Counts(FakeLearner):
        async def save(self, directory):
            asked.append(directory)

    checkpoints = Checkpoints(tmp_path, 2, expected_bytes=10 * 2**30, free=lambda path: 3 * 2**30)
    with pytest.raises(CheckpointFailed, match=r"step_000007 .*10\.50 GiB, .*3\.00 GiB"):
        run(checkpoints.take(7, Counts()))
    assert asked == [] and list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_while_writing_leaves_the_older_checkpoint_and_nothing_else(
    run_dir, tmp_path, monkeypatch
):
    shutil.copytree(run_dir, tmp_path / "run")
    checkpoints, learner = opened(tmp_path / "run"), TwoRanks()
    learner.version = 6
    before = sorted(p.name for p in (tmp_path / "run/ckpt").iterdir())

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    for broken in (
        "openrlhf_tir.pipeline.checkpoints.stored.save_file",
        "openrlhf_tir.pipeline.checkpoints.checkpoint.flush",
        "openrlhf_tir.pipeline.checkpoints.checkpoint._replace",
    ):
        with monkeypatch.context() as disk:
            run(checkpoints.take(6, learner))
            disk.setattr(broken, full)
            with pytest.raises(
                CheckpointFailed,
                match=r"step_000006 .*No space left.*iB .*: step_000002, step_000004\.",
            ):
                run(checkpoints.commit(6, {"ledger": None}, [], learner))
        assert sorted(p.name for p in (tmp_path / "run/ckpt").iterdir()) == before
    assert opened(tmp_path / "run").choose().name == "step_000004"


def test_a_rank_whose_disk_the_controller_does_not_see_is_told_apart_from_a_full_one(tmp_path):
    class OtherNode(FakeLearner):
        async def written(self):
            return {str(tmp_path / ".step_000001.tmp/learner/zero/rank_7.pt"): (123, "00")}

    checkpoints = Checkpoints(tmp_path, 2)
    run(checkpoints.take(1, OtherNode()))
    with pytest.raises(CheckpointFailed, match=r" 123 .*rank_7\.pt.*run_dir"):
        run(checkpoints.commit(1, {}, [], OtherNode()))
    assert list(tmp_path.iterdir()) == []


def test_the_facts_of_the_run_and_the_best_score_stand_in_the_checkpoint(run_dir):
    state = json.loads((run_dir / "ckpt/step_000004/controller.json").read_text())
    assert state["best"] == {"checkpoint": "step_000002", "score": 0.5} and state["ledger"]["lines"] > 0


@pytest.mark.parametrize("act", ["accept", "new ledger"])
def test_a_disk_that_refuses_while_a_resume_is_made_ready_is_a_fault_that_may_pass(run_dir, tmp_path, monkeypatch, act):
    directory = tmp_path / "run"
    shutil.copytree(run_dir, directory)
    checkpoints, earlier = opened(directory), directory / "ckpt/step_000002"
    (directory / "ckpt/.step_000002a.tmp").touch()  # in the way of a directory

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "_replace", full)
    with (
        pytest.raises(Unavailable, match=rf"{checkpoints.directory} .*\[Errno \d+\]"),
        disk.faults_as_unavailable(checkpoints.directory),
    ):
        checkpoints.accept(earlier) if act == "accept" else new_ledger.begin(
            checkpoints, earlier, directory / "ledger.jsonl"
        )
    assert Checkpoints(directory / "ckpt", 2).choose().name == "step_000004"
