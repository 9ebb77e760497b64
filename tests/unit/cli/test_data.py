"""openrlhf-tir data, from the outside: what is written, printed and answered."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.cli.data import SUBCOMMANDS
from openrlhf_tir.data.identity import row_id
from openrlhf_tir.data.prepare.outcomes import TEXTS
from tests.contract.docs.docs_blocks import blocks
from tests.data.make_samples import rows
from tests.unit.data.test_data_prompts import jsonl

SAMPLES = Path(__file__).parents[2] / "data"
SCHEMAS = {"xlam.jsonl": "xlam", "hammer.jsonl": "hammer", "toolace.json": "toolace"}
"""Samples whose rows have to be named; all others are told by their columns."""
FINE_TUNING = {"retool_sft.jsonl"}
"""Samples that `sft` reads."""


def data(*argv) -> int:
    return main(["data", *map(str, argv)])


@pytest.mark.parametrize("sample", sorted(rows().keys() - FINE_TUNING))
def test_every_official_row_is_good(sample, capsys):
    named = ["--row-schema", SCHEMAS[sample]] if sample in SCHEMAS else []
    assert data("check", SAMPLES / sample, *named) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head.startswith(f"{SAMPLES / sample}: 2 ") and re.findall(r"\d+", head.rpartition(":")[2]) == ["2", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("sample", sorted(rows().keys() - FINE_TUNING - {"zerotir.jsonl"}))
def test_a_field_of_the_wrong_type_is_told_in_every_schema(sample, capsys, tmp_path):
    """Every field of a row in turn becomes a number: what is said names line and type, and is never a traceback."""
    named = ["--row-schema", SCHEMAS[sample]] if sample in SCHEMAS else []
    first = rows()[sample][0]
    told = 0
    for name in first if isinstance(first, dict) else ():
        path = jsonl(tmp_path / "d.jsonl", [rows()[sample][1], {**first, name: 3}])
        code = data("check", path, *named)
        err = capsys.readouterr().err
        assert code in (0, 2) and "Traceback" not in err
        if code == 2:
            told += 1
            assert re.search(rf"{path} line 2\b.*(\(int\)| '\w+')", err), (name, err)
    assert told or sample == "orz.json"


def test_all_bad_rows_are_told_at_once_and_skipping_counts_and_lists_them(capsys, tmp_path):
    path = jsonl(
        tmp_path / "d.jsonl",
        [{"prompt": "1+1?", "label": "2"}, {"prompt": "", "label": "2"}, {"prompt": "x", "label": None}],
    )
    assert data("check", path) == 2
    out, err = capsys.readouterr()
    assert re.search(r"d\.jsonl: 3 .*: 1 .*, 2 ", out)
    assert re.findall(r"(line \d) [^.]*('\w+')", err) == [("line 2", "'prompt'"), ("line 3", "'label'")]
    assert "--on-bad-row skip" in err and "--data.on_bad_row skip" in err
    assert data("check", path, "--on-bad-row", "skip") == 0
    out, _ = capsys.readouterr()
    assert out.count("  bad: ") == 2


def test_bad_rows_are_counted_for_each_source_and_told_together(capsys, tmp_path):
    good, bad = {"prompt": "1+1?", "label": "2"}, {"prompt": "", "label": "2"}
    paths = [jsonl(tmp_path / f"{name}.jsonl", rows) for name, rows in (("a", [good, bad, bad]), ("b", [good, bad]))]
    assert data("check", *paths) == 2
    out, err = capsys.readouterr()
    assert re.search(r"a\.jsonl: 3 .*: 1 .*, 2 ", out) and re.search(r"b\.jsonl: 2 .*: 1 .*, 1 ", out)
    assert re.findall(r"(\w\.jsonl line \d) ", err) == ["a.jsonl line 2", "a.jsonl line 3", "b.jsonl line 2"]
    assert data("check", paths[0], jsonl(tmp_path / "empty.jsonl", []), "--on-bad-row", "skip") == 2
    assert re.search(r"empty\.jsonl ", capsys.readouterr().err)


def test_check_tells_what_is_odd_about_a_data_set(capsys, tmp_path):
    path = jsonl(
        tmp_path / "d.jsonl",
        [{"prompt": "1+1?", "label": a} for a in ("2", "2", "3")]
        + [{"prompt": "longer?", "label": "4", "env": "search"}],
    )
    assert data("check", path) == 0
    out = capsys.readouterr().out
    assert re.search(r" 4 .* 7 \(.* 4\) .*, .* 1\n.*\(.*\) 3, search 1\n", out)
    repeated, contradicted = [line for line in out.splitlines() if line.startswith("  1 ")]
    assert re.search(r"d\.jsonl line 3 .*d\.jsonl line 1$", contradicted) and contradicted != repeated


def test_a_schema_that_is_not_known_and_a_file_that_is_not_there_are_mistakes(capsys, tmp_path):
    assert data("check", SAMPLES / "orz.json", "--row-schema", "zro") == 2
    assert "data.row_schema 'zro'. " in capsys.readouterr().err
    assert data("check", tmp_path / "nowhere.jsonl") == 2
    assert f"'{tmp_path}/nowhere.jsonl'" in capsys.readouterr().err


def test_convert_joins_sets_of_several_schemas_into_one(capsys, tmp_path):
    out = tmp_path / "all.jsonl"
    assert data("convert", SAMPLES / "orz.json", SAMPLES / "dapo.parquet", "--out", out) == 0
    assert re.match(rf"4 .* {out}\n", capsys.readouterr().out)
    assert [json.loads(line)["label"] for line in out.read_text().splitlines()] == ["42", "40", "42", "40"]


def test_convert_makes_tool_n1s_parquet_of_toolace(capsys, tmp_path):
    out = tmp_path / "n1.parquet"
    assert data("convert", SAMPLES / "toolace.json", "--row-schema", "toolace", "--to", "tooln1", "--out", out) == 0
    said = capsys.readouterr().out
    assert re.match(rf"2 .* tooln1 .* {out}\n  1 .*: ", said)
    assert pq.read_table(out).column_names[:4] == ["data_source", "prompt", "ability", "reward_model"]
    assert data("check", out) == 0
    assert re.match(f"{out}: 2 .* tooln1: 2 ", capsys.readouterr().out)


def test_convert_joins_bfcls_answers_by_id(capsys, tmp_path):
    both = rows()["bfcl_multi_turn.jsonl"]
    questions = jsonl(
        tmp_path / "BFCL_v3_multi_turn_base.json",
        [{k: v for k, v in row.items() if k != "ground_truth"} for row in both],
    )
    answers = jsonl(
        tmp_path / "possible_answer.json",
        [{"id": row["id"], "ground_truth": row["ground_truth"]} for row in reversed(both)],
    )
    assert data("convert", questions, "--out", tmp_path / "o.jsonl") == 2
    assert re.search("'ground_truth'.*possible_answer.*--join", capsys.readouterr().err)
    assert data("convert", questions, "--join", answers, "--out", tmp_path / "o.jsonl") == 0
    assert data("check", tmp_path / "o.jsonl") == 0


def test_a_joined_field_fills_what_is_null_and_an_id_has_one_answer(capsys, tmp_path):
    first, second = rows()["bfcl_multi_turn.jsonl"]
    questions = jsonl(tmp_path / "q.jsonl", [row | {"ground_truth": None} for row in (first, second)])
    answers = [{"id": row["id"], "ground_truth": row["ground_truth"]} for row in (first, second)]
    argv = ("convert", questions, "--out", tmp_path / "o.jsonl", "--join")
    assert data(*argv, jsonl(tmp_path / "a.jsonl", [*answers, answers[0]])) == 0
    again = jsonl(tmp_path / "a.jsonl", [*answers, answers[0] | {"ground_truth": second["ground_truth"][:1]}])
    capsys.readouterr()
    assert data(*argv, again) == 2
    assert re.search(f"{again} line 3 .*{first['id']!r} ", capsys.readouterr().err)


def test_what_convert_cannot_do_is_said_before_anything_is_written(capsys, tmp_path):
    source = SAMPLES / "orz.json"
    for argv, said in (
        (("--out", tmp_path / "o.csv"), "'.csv'. .*: .jsonl, .json, .parquet"),
        (("--out", source), f"--out {source} "),
        (("--env", "maths", "--to", "torl", "--out", tmp_path / "o.jsonl"), "--env maths.*torl"),
        (("--to", "orzz", "--out", tmp_path / "o.jsonl"), "--to 'orzz'"),
        (
            ("--mask-names", "0.5", "--out", tmp_path / "o.jsonl"),
            "--mask-names .* hammer, toolace, xlam",
        ),
        (("--irrelevant", "2", "--out", tmp_path / "o.jsonl"), "--irrelevant.* 0 .* 1"),
        (("--out", tmp_path / "no/o.jsonl"), f"--out .*{tmp_path}/no"),
    ):
        assert data("convert", source, *argv) == 2
        assert re.search(said, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_conversion_that_fails_leaves_nothing_behind(tmp_path, capsys):
    source = jsonl(tmp_path / "d.jsonl", [{"prompt": "a", "label": "1"}, {"prompt": "", "label": "1"}])
    assert data("convert", source, "--out", tmp_path / "o.jsonl") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["d.jsonl"]
    assert data("convert", source, "--out", tmp_path / "o.jsonl", "--on-bad-row", "skip") == 0
    assert re.search(r"\n  1 .*\n  bad: .*d\.jsonl line 2 ", capsys.readouterr().out)


PROBLEMS = [
    f"A train leaves station {i} at noon and travels north at {i} miles an hour for {i} hours. How far?"
    for i in range(6)
]


def test_decontaminate_writes_the_rows_that_stay_as_they_were_and_tells_what_went(capsys, tmp_path):
    odd = [
        {"prompt": text, "label": "1", "my_column": i}
        for i, text in enumerate([*PROBLEMS[:2], "Something else entirely, with many words of its own."])
    ]
    train = jsonl(tmp_path / "train.jsonl", odd)
    held_out = jsonl(tmp_path / "aime.jsonl", [{"question": PROBLEMS[1].upper(), "golden_answers": ["1"]}])
    assert (
        data(
            "decontaminate",
            train,
            "--against",
            held_out,
            "--out",
            tmp_path / "clean.jsonl",
            "--report",
            tmp_path / "gone.jsonl",
        )
        == 0
    )
    out = capsys.readouterr().out
    assert re.search(rf"{train} line 2 .* {held_out} line 1 \(100%\)", out)
    assert [json.loads(line) for line in (tmp_path / "clean.jsonl").read_text().splitlines()] == [odd[0], odd[2]]
    (gone,) = (json.loads(line) for line in (tmp_path / "gone.jsonl").read_text().splitlines())
    assert gone["row"] == f"{train} line 2" and gone["text"] == PROBLEMS[1]


def gone(tmp_path, *against, rows=None) -> int:
    """How many of the rows go: PROBLEMS[:2], each with a word before it."""
    train = jsonl(
        tmp_path / "train.jsonl", rows or [{"prompt": f"Solve: {text}", "label": "1"} for text in PROBLEMS[:2]]
    )
    out = tmp_path / "clean.jsonl"
    assert data("decontaminate", train, "--against", *against, "--out", out) == 0
    return 2 - len(out.read_text().splitlines())


@pytest.mark.parametrize(
    "row",
    [
        {"id": 60, "problem": PROBLEMS[1], "answer": "204", "solution": "..."},
        {"Question": PROBLEMS[1], "Answer": "204"},
        {"problem": PROBLEMS[1]},
        {"prompt": PROBLEMS[1], "solution": "..."},
        {"question": PROBLEMS[1], "golden_answers": ["204"]},
    ],
)
def test_evaluation_sets_are_compared_with_as_they_are_published(row, tmp_path):
    """AIME's columns are problem and answer; no answer is needed to compare."""
    assert gone(tmp_path, jsonl(tmp_path / "aime24.jsonl", [row])) == 1


def test_a_suites_file_is_compared_with_by_its_name(tmp_path, capsys):
    questions = [{"id": "simple_0", "question": [[{"role": "user", "content": PROBLEMS[1]}]], "function": []}]
    path = jsonl(tmp_path / "BFCL_v3_irrelevance.json", questions)
    assert gone(tmp_path, f"bfcl_irrelevance={path}") == 1
    assert re.search(rf"train\.jsonl line 2 .* {path} \w+ 1 ", capsys.readouterr().out)
    assert data("decontaminate", path, "--against", "aime24=nowhere.jsonl", "--out", tmp_path / "o.jsonl") == 2
    assert "--against aime24=nowhere.jsonl: " in capsys.readouterr().err


def test_of_an_evaluation_directory_the_test_split_is_compared_with(tmp_path, capsys):
    """It was --split, that of the training rows."""
    held_out = tmp_path / "math"
    held_out.mkdir()
    jsonl(held_out / "train.jsonl", [{"prompt": PROBLEMS[0], "label": "1"}])
    jsonl(held_out / "test.jsonl", [{"prompt": PROBLEMS[i], "label": "1"} for i in (0, 1)])
    assert gone(tmp_path, held_out) == 2 and gone(tmp_path, held_out, "--against-split", "train") == 1
    argv = ("decontaminate", tmp_path / "train.jsonl", "--against", held_out, "--against-split", "dev")
    assert data(*argv, "--out", tmp_path / "o.jsonl") == 2
    assert re.search(f"{held_out} .*'dev'.*--against-split", capsys.readouterr().err)


@pytest.mark.parametrize("rows", [[], [{"prompt": PROBLEMS[1], "label": ""}], [{"text": PROBLEMS[1]}]])
def test_an_evaluation_set_of_which_nothing_is_read_is_no_clean_bill(rows, tmp_path, capsys):
    """With --on-bad-row skip all training rows stayed, as they held none of 0 problems."""
    held_out = jsonl(tmp_path / "aime.jsonl", rows)
    train = jsonl(tmp_path / "train.jsonl", [{"prompt": PROBLEMS[1], "label": "1"}])
    argv = ("decontaminate", train, "--against", held_out, "--on-bad-row", "skip", "--out", tmp_path / "o.jsonl")
    assert data(*argv) == 2
    assert str(held_out) in capsys.readouterr().err and not (tmp_path / "o.jsonl").exists()


def test_of_an_evaluation_set_of_which_nothing_is_read_its_own_first_bad_row_is_told(tmp_path, capsys):
    read, unread = (
        jsonl(tmp_path / f"{name}.jsonl", [{"prompt": PROBLEMS[1], "label": label} for label in labels])
        for name, labels in (("read", ("1", "")), ("unread", ("", "")))
    )
    train = jsonl(tmp_path / "train.jsonl", [{"prompt": PROBLEMS[0], "label": "1"}])
    argv = ("decontaminate", train, "--against", read, unread, "--on-bad-row", "skip", "--out", tmp_path / "o.jsonl")
    assert data(*argv) == 2
    err = capsys.readouterr().err
    assert "unread.jsonl line 1 " in err and "/read.jsonl line" not in err


def test_bad_rows_of_an_evaluation_set_are_told(tmp_path, capsys):
    held_out = jsonl(
        tmp_path / "aime.jsonl", [{"prompt": PROBLEMS[1], "label": "1"}, {"prompt": PROBLEMS[0], "label": ""}]
    )
    train = jsonl(tmp_path / "train.jsonl", [{"prompt": text, "label": "1"} for text in PROBLEMS[:2]])
    argv = ("decontaminate", train, "--against", held_out, "--out", tmp_path / "o.jsonl")
    assert data(*argv) == 2 and f"{held_out} line 2 " in capsys.readouterr().err
    assert data(*argv, "--on-bad-row", "skip") == 0
    assert re.search(rf"\n  1 .*\n  bad: {held_out} line 2 ", capsys.readouterr().out)


def run_of(tmp_path, epochs=2):
    """Samples of three rows: never right, right from epoch 1 on, always right."""
    lines = []
    for epoch in range(epochs):
        for i, right in enumerate((0, epoch > 0, 1)):
            lines += [
                {
                    "row": row_id(PROBLEMS[i], "1"),
                    "key": [epoch, i, 0],
                    "parts": {"correct": float(right)},
                    "failed": None,
                }
            ] * 2
    (tmp_path / "run/trajectories").mkdir(parents=True)
    jsonl(tmp_path / "run/trajectories/rollout-0.jsonl", lines)
    return tmp_path / "run"


def test_select_keeps_rows_by_the_pass_rate_of_a_run(capsys, tmp_path):
    train = jsonl(tmp_path / "train.jsonl", [{"prompt": text, "label": "1"} for text in PROBLEMS[:4]])
    out = tmp_path / "o.jsonl"
    assert data("select", train, "--samples", run_of(tmp_path), "--pass-rate", 0.2, 0.8, "--out", out) == 0
    assert [json.loads(line)["prompt"] for line in out.read_text().splitlines()] == [PROBLEMS[1]]
    said = capsys.readouterr().out
    assert re.match(rf"1 .* 4 .* {out}\n.*\b3 .*, 1 ", said) and re.search(r" 0\.5 .* 0\.6 +1 ####", said)


def test_select_keeps_rows_by_their_learning_impact(capsys, tmp_path):
    """Means 1/3, 2/3: room 5/9. Row 1 goes (0, 1): 1 - (1/9 + 1/9) / (5/9) = .6; always right 0; never right 1 - (1/9 +
    4/9) / (5/9) = 0."""
    train = jsonl(tmp_path / "train.jsonl", [{"prompt": text, "label": "1"} for text in PROBLEMS[:3]])
    out = tmp_path / "o.jsonl"
    assert data("select", train, "--samples", run_of(tmp_path), "--learning-impact", 0.59, "--out", out) == 0
    assert [json.loads(line)["prompt"] for line in out.read_text().splitlines()] == [PROBLEMS[1]]
    assert "####" in capsys.readouterr().out


def test_the_help_of_select_names_every_column_that_may_tell_the_row_of_a_sample(capsys):
    with pytest.raises(SystemExit):
        data("select", "--help")
    assert set(re.findall(r'"(\w+)"', capsys.readouterr().out)) == {"row", *TEXTS, "correct", "epoch"}


def test_a_selection_that_is_not_possible_is_refused_with_the_flag_and_value(capsys, tmp_path):
    train = jsonl(tmp_path / "train.jsonl", [{"prompt": "another", "label": "1"}])
    run, out = run_of(tmp_path), tmp_path / "o.jsonl"
    for argv, said in (
        (("--samples", run), "--pass-rate LOW HIGH"),
        (("--samples", run, "--pass-rate", 0, 1), f" 1 .* {train} .* {run}"),
        (("--samples", run, "--pass-rate", 0.8, 0.2), "--pass-rate 0.8 0.2"),
        (("--samples", tmp_path / "no", "--pass-rate", 0, 1), f"--samples {tmp_path / 'no'}"),
    ):
        assert data("select", train, *argv, "--out", out) == 2
        assert re.search(said, capsys.readouterr().err)
    assert not out.exists()


@pytest.mark.parametrize("what", SUBCOMMANDS)
def test_help_shows_examples(what, capsys):
    with pytest.raises(SystemExit) as e:
        data(what, "--help")
    assert e.value.code == 0
    assert f"openrlhf-tir data {what} " in capsys.readouterr().out.partition("examples:")[2]


def test_progress_is_on_standard_error(capsys, tmp_path):
    data("check", SAMPLES / "orz.json")
    out, err = capsys.readouterr()
    assert err.startswith("check ") and re.search(r" \d+:\d\d\b", err) and not re.search(r" \d+:\d\d\b", out)


def test_every_command_of_the_page_runs_as_it_stands(capsys, tmp_path, monkeypatch):
    """In their order, beside the samples that they name: later ones read what earlier ones wrote."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/data").symlink_to(SAMPLES)
    monkeypatch.chdir(tmp_path)
    lines = [line for b in blocks() if (b.page, b.language) == ("data.md", "bash") for line in b.text.splitlines()]
    assert len(lines) >= 9
    for line in lines:
        program, *argv = shlex.split(line)
        assert program == "openrlhf-tir"
        assert main(argv) == 0, capsys.readouterr().err
    assert [
        len((tmp_path / name).read_text().splitlines())
        for name in ("clean.jsonl", "gone.jsonl", "harder.jsonl", "limr.jsonl")
    ] == [0, 2, 2, 2]
