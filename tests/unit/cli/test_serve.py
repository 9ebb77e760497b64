"""`openrlhf-tir serve` from the outside; that it serves is seen by tests/e2e/envs/test_bfcl_generate.py."""

from __future__ import annotations

from openrlhf_tir.cli import main
from openrlhf_tir.cli.exit_codes import code_of
from openrlhf_tir.errors import ConfigError


def test_what_cannot_be_served_is_refused_before_anything_starts(capsys, tmp_path):
    words = ["serve", "--run-dir", str(tmp_path / "run")]
    assert main([*words, "--model", "m", "--rollout.engine", "torch"]) == code_of(ConfigError(""))
    assert "--rollout.engine" in capsys.readouterr().err
    assert main([*words, "--model", str(tmp_path / "nowhere")]) == code_of(ConfigError(""))
    assert str(tmp_path / "nowhere") in capsys.readouterr().err and not (tmp_path / "run/endpoints").exists()
