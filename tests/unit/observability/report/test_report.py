"""report.html from a full run, from a partial one, from none; it needs no other file and tells no secret."""

import json
import re

import pytest

from openrlhf_tir.config import Config, Logger
from openrlhf_tir.config.settings import to_toml
from openrlhf_tir.errors import DataError
from openrlhf_tir.observability.report import style, summary
from openrlhf_tir.observability.report.build import build_report
from openrlhf_tir.observability.report.environments import rows_of
from openrlhf_tir.observability.report.page import Run, _tiles
from openrlhf_tir.telemetry import metrics
from openrlhf_tir.telemetry.lost import put_on_record
from openrlhf_tir.telemetry.metrics import MetricsLog
from openrlhf_tir.telemetry.timeline import Timeline

from .test_report_summary import a_summary


def write_metrics(run_dir, steps=5, **extra):
    with MetricsLog(run_dir, Logger(tensorboard_dir=None)) as log:
        for step in range(1, steps + 1):
            log.log(step, {"drops/zero_variance": step, **extra} | ({"reward/format": step / steps} if extra else {}))


def write_trace(run_dir, steps=5):
    log = Timeline(run_dir / "trace.jsonl")
    for step in range(1, steps + 1):
        log.add("learner", f"step {step}", 10.0 * step, 10.0 * step + 6)
        log.add("engine/0", "decode", 10.0 * step, 10.0 * step + 9)
        log.add("weights", f"push {step}", 10.0 * step + 6, 10.0 * step + 7)
    log.close()


def plots(run_dir):
    return {path.stem for path in (run_dir / "plots").glob("*.png")}


@pytest.fixture(autouse=True)
def small_pictures(monkeypatch):
    """Draw the figures with few dots."""
    monkeypatch.setattr(style, "DPI", 40)


@pytest.mark.slow
def test_a_whole_run_gets_every_figure_and_a_page_that_stands_alone(tmp_path):
    extra = {
        "accuracy": 0.5,
        "reward_mean": 0.5,
        "eval/accuracy": 0.5,
        "staleness_mean": 1.0,
        "staleness_max": 2,
        "step_s": 2.0,
        "wall_s": 4.0,
        "failed/timeout": 1,
    }
    extra |= {"response_tokens_mean": 90.0, "entropy": 0.4, "canary_excess": 0.4, "tokens_per_s": 900.0}
    extra |= {"eval/pass_at_2": 0.6, "eval/pass_at_4": 0.7, "eval/pass_hat_4": 0.3}
    extra |= {"eval/kind/sums/accuracy": 0.9, "eval/kind/games/accuracy": 0.1}
    extra |= {"n_calls/0": 0.75, "n_calls/9_up": 0.25}
    extra |= {"selection/env/echo/trained": 2, "mismatch_mean_abs": 1e-5, "lag_share": 0.5}
    write_metrics(tmp_path, **extra)
    write_trace(tmp_path)
    summary.write(tmp_path, a_summary())
    (tmp_path / "config.toml").write_text(to_toml(Config(logger=Logger(wandb={"key": "SECRET"}))))
    page = build_report(tmp_path).read_text()
    learned = {"accuracy", "parts", "response", "n_calls", "drops", "staleness", "health", "selection", "off_policy"}
    learned |= {"held_out", "reward"}
    ran = {"step_time", "throughput"}
    assert plots(tmp_path) == learned | ran | {"timeline", "timeline_zoom"}
    assert page.count("data:image/png;base64,") == page.count('<img class="plot ') == 15
    assert "figure img.plot" in page.partition("prefers-color-scheme: dark")[2], "dark pages would show light plots"
    assert not re.search(r'(src|href|srcset)="(?!data:)', page)
    assert "+60.0 pp" in page and "SECRET" not in page and "(hidden)" in page
    assert "Remarks" not in page
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_a_partial_run_leaves_out_what_it_cannot_show_and_says_so(tmp_path):
    write_metrics(tmp_path)
    put_on_record(tmp_path, "learner-rank-1", "its process died", [])
    page = build_report(tmp_path).read_text()
    assert plots(tmp_path) == {"drops"}
    assert "learner-rank-1" in page
    for remark in (
        "summary.json is missing",
        "“Timeline” is left out",
        "“Learner health” is left out",
        "config.toml is missing",
    ):
        assert remark in page
    assert "zero_variance" in page and "15" in page


def test_the_headlines_of_a_run_without_a_summary_are_of_its_updates(tmp_path):
    """None of the answers is right. Three updates take 40 s each, the first included; a resume waited for days."""
    columns = {"step": [1, 2, 3], "time": [40.0, 80.0, 1e6], "accuracy": [0.5, None, 0.0], "wall_s": [40.0] * 3}
    tiles = _tiles(Run("run", "", None, columns, {}, [], []))
    assert [tile[:2] for tile in tiles] == [("training accuracy", "0.0 %"), ("learner steps", "3")]
    assert tiles[1][2].endswith(" 2 min 0 s")


def test_a_setting_that_is_unset_where_its_default_is_a_value_is_shown_as_none(tmp_path):
    write_metrics(tmp_path, steps=1)
    (tmp_path / "config.toml").write_text(to_toml(Config(actor={"l2": 0.125}, logger={"tensorboard_dir": None})))
    page = build_report(tmp_path).read_text()
    assert "0.125" in page and "config.toml" not in page


def test_a_config_that_somebody_has_edited_costs_the_report_that_part_only(tmp_path):
    write_metrics(tmp_path, steps=1)
    (tmp_path / "config.toml").write_text("[actor]\nlearning_rat = 1\n")
    page = build_report(tmp_path).read_text()
    assert "config.toml" in page and "learning_rat" in page


@pytest.mark.slow
def test_a_figure_of_an_earlier_report_does_not_outlive_its_data(tmp_path):
    write_metrics(tmp_path, steps=1)
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "health.png").write_bytes(b"old")
    build_report(tmp_path)
    assert "health" not in plots(tmp_path)


def test_names_from_the_run_cannot_break_the_page(tmp_path):
    run_dir = tmp_path / "a<b>"
    write_metrics(run_dir, steps=1, **{"drops/<script>": 2})
    page = build_report(run_dir).read_text()
    assert "<script>" not in page and "a&lt;b&gt;" in page and "&lt;script&gt;" in page


def test_an_empty_run_is_refused_with_a_remedy(tmp_path):
    with pytest.raises(DataError, match=re.escape(str(tmp_path)) + r".*metrics\.jsonl .*summary\.json"):
        build_report(tmp_path)


def test_a_directory_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\. (?!.*metrics\.jsonl)"):
        build_report(tmp_path / "nowhere")


@pytest.mark.slow
def test_a_run_with_several_environments_shows_them_apart(tmp_path):
    with MetricsLog(tmp_path, Logger(tensorboard_dir=None)) as log:
        for step in (1, 2):
            row = {
                f"env/{env}/{name}": value
                for env in ("calc", "guess")
                for name, value in {"accuracy": step / 4, "kept": 3.0, "calls_mean": 1.5}.items()
            }
            log.log(
                step,
                row
                | {
                    "env/guess/drops/zero_variance": 2.0,
                    "selection/env/calc/trained": 3.0,
                    "selection/env/guess/trained": 1.0,
                },
            )
    assert [row[:7] for row in rows_of(metrics.read(tmp_path))] == [
        ("calc", "6", "0", "0", "6 (75%)", "25.0% → 50.0%", "1.5"),
        ("guess", "6", "4", "0", "2 (25%)", "25.0% → 50.0%", "1.5"),
    ]
    page = build_report(tmp_path).read_text()
    assert (
        "<h2>Environments</h2>" in page
        and "<td>guess</td><td>6</td><td>4</td>" in page
        and "environments" in plots(tmp_path)
    )
