"""`openrlhf-tir model`: a directory from a package, and one sentence for everything that is missing or wrong."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest
import transformers
from safetensors import SafetensorError
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from miniatures import packaged_models
from miniatures.packaged_models import MODELS
from openrlhf_tir.cli import main
from openrlhf_tir.cli.exit_codes import MISTAKE

REQUIREMENTS = MODELS["smollm2"].requirements
(GGUF,) = (name for _, name in MODELS["smollm2"].files)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a package that holds a GGUF of other weights in the place of the real one, and a GGUF reader beside it."""
    directory = tmp_path / "site" / "weights_of_a_test"
    directory.mkdir(parents=True)
    (directory / "__init__.py").touch()
    (directory.parent / "gguf.py").touch()
    monkeypatch.syspath_prepend(str(directory.parent))
    monkeypatch.delitem(sys.modules, "gguf", raising=False)
    model = replace(MODELS["smollm2"], files=(("weights_of_a_test", GGUF),))
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


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct.Q8_0.gguf", GGUF])
def test_another_quantisation_is_refused_by_name_or_by_hash(package, capsys, tmp_path, name):
    (package / name).write_bytes(b"GGUF of something else")
    assert name in one_sentence(capsys, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_directory_in_use_is_left_as_it_is(package, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(packaged_models, "find_gguf", lambda model: [package / GGUF])
    (tmp_path / "kept.txt").write_text("mine")
    assert str(tmp_path) in one_sentence(capsys, "--out", str(tmp_path))
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_a_full_disk_leaves_nothing_and_is_said_in_one_sentence(package, capsys, tmp_path, monkeypatch):
    def fill_the_disk(model, source, directory):
        (directory / "config.json").write_text("{}")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(packaged_models, "find_gguf", lambda model: [package / GGUF])
    monkeypatch.setattr(packaged_models, "_write", fill_the_disk)
    assert "No space left on device" in one_sentence(capsys, "--out", str(tmp_path / "new" / "out"))
    assert list((tmp_path / "new").iterdir()) == []


def test_a_model_in_parts_is_refused_for_each_part_that_is_missing_or_wrong(package, capsys, tmp_path, monkeypatch):
    parts = [("weights_of_a_test", f"data/w.gguf.part0{number}") for number in range(2)]
    whole = b"GGUF" * 3
    model = replace(MODELS["smollm2"], files=tuple(parts), sha256=hashlib.sha256(whole).hexdigest())
    monkeypatch.setitem(packaged_models.MODELS, "smollm2", model)
    (package / "data").mkdir()
    (package / parts[0][1]).write_bytes(whole[:5])
    assert "w.gguf.part01" in one_sentence(capsys, "--out", str(tmp_path / "out"))
    (package / parts[1][1]).write_bytes(b"GGUF")
    assert model.sha256[:12] in one_sentence(capsys, "--out", str(tmp_path / "out"))
    (package / parts[1][1]).write_bytes(whole[5:])
    found = packaged_models.find_gguf(model)
    assert b"".join(path.read_bytes() for path in found) == whole


@pytest.mark.parametrize("name", MODELS)
def test_what_is_installed_is_what_the_requirements_file_names(repo, name):
    lines = (repo / f"requirements-{name}.txt").read_text().splitlines()
    assert tuple(line.split()[0] for line in lines if not line.startswith("#")) == MODELS[name].requirements


def test_gemmas_turns_have_one_bos_and_the_systems_text_in_the_first_one():
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({"<unk>": 0}, "<unk>")), bos_token="<bos>", unk_token="<unk>"
    )
    said = [("system", "S"), ("user", "U\n"), ("assistant", "A"), ("user", "V")]
    text = tokenizer.apply_chat_template(
        [{"role": role, "content": content} for role, content in said],
        chat_template=MODELS["gemma3"].chat_template,
        tokenize=False,
        add_generation_prompt=True,
    )
    assert text == (
        "<bos><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n"
        "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "pad", "ends"), [("smollm2", "<|im_end|>", 2), ("gemma3", "<pad>", [1, 106])], ids=["smollm2", "gemma3"]
)
def test_the_real_package_gives_a_model_that_computes_what_was_stored(tmp_path, name, pad, ends):
    for module in ("gguf", *(package for package, _ in MODELS[name].files)):
        if find_spec(module) is None:  # It is not imported: without its dependencies it could not be.
            pytest.skip(f"{module} is not installed")
    out = tmp_path / name
    assert main(["model", name, "--out", str(out)]) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer.eos_token == MODELS[name].special_tokens["eos_token"] and tokenizer.pad_token == pad
    assert transformers.GenerationConfig.from_pretrained(out).eos_token_id == ends
    assert [path.name for path in tmp_path.iterdir()] == [name]
