"""Damaged weights are refused before Ray starts, with the file, what is wrong with it and what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from openrlhf_tir.cli.checks.weights import AGAIN, check_weights
from openrlhf_tir.errors import ConfigError

from .runs import refused

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 269060552\n"
SHARDS = {
    "model-00001-of-00002.safetensors": {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)},
    "model-00002-of-00002.safetensors": {"c": np.zeros(4, np.float32)},
}


@pytest.fixture
def sharded(tmp_path) -> Path:
    """A whole model of two shards and an index."""
    for name, tensors in SHARDS.items():
        (tmp_path / name).write_bytes(save(tensors))
    write_index(tmp_path, {tensor: name for name, tensors in SHARDS.items() for tensor in tensors})
    return tmp_path


def write_index(model: Path, weight_map: object) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def faults(model: Path) -> list[str]:
    with pytest.raises(ConfigError) as e:
        check_weights(model, "actor.model_name_or_path")
    lines = str(e.value).splitlines()
    assert all(line.startswith(f"actor.model_name_or_path = {str(model)!r}: ") for line in lines)
    return lines


def test_whole_weights_pass(sharded):
    check_weights(sharded, "actor.model_name_or_path")


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: POINTER,
        lambda whole: whole[: len(whole) // 2],
        lambda whole: whole[:-1],
        lambda whole: whole + b"\0",
        lambda whole: whole[:4],
        lambda whole: b"",
        lambda whole: b"<html>404</html>" * 9,
        lambda whole: save({}),
    ],
    ids=["pointer", "half", "one byte less", "one byte more", "no header", "empty", "a page", "no tensor"],
)
@pytest.mark.parametrize("shard", range(2))
def test_a_damaged_shard_is_named(sharded, damage, shard):
    path = sharded / sorted(SHARDS)[shard]
    path.write_bytes(damage(path.read_bytes()))
    (line,) = faults(sharded)
    assert path.name in line
    pointer = damage(b"") == POINTER
    assert ("git-lfs" in line, AGAIN in line) == (pointer, not pointer)


def test_shards_that_are_missing_are_counted_and_named(sharded):
    first, second = sorted(SHARDS)
    (sharded / first).unlink()
    (line,) = faults(sharded)
    assert re.search(r"\b1 .*\b2 ", line) and first in line and second not in line


def test_an_index_that_names_what_is_nowhere_is_told(sharded):
    write_index(sharded, {"a": "model-00001-of-00002.safetensors", "z": "model-00003-of-00003.safetensors"})
    (line,) = faults(sharded)
    assert "model-00003-of-00003.safetensors" in line
    write_index(sharded, {"a": "model-00001-of-00002.safetensors", "z": "model-00002-of-00002.safetensors"})
    (line,) = faults(sharded)
    assert "model-00002-of-00002.safetensors" in line and "(z, ...)" in line


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}']
)
def test_an_index_that_is_none_is_told(sharded, content):
    (sharded / "model.safetensors.index.json").write_text(content)
    (line,) = faults(sharded)
    assert "model.safetensors.index.json" in line


def test_a_model_without_weights_is_told_and_shards_without_an_index_are_none(sharded):
    (sharded / "model.safetensors.index.json").unlink()
    (line,) = faults(sharded)
    assert re.search(rf" 2 .*\({sorted(SHARDS)[0]}, ", line)
    for name in SHARDS:
        (sharded / name).unlink()
    (line,) = faults(sharded)
    assert "model.safetensors" in line and "pytorch_model.bin" in line and sorted(SHARDS)[0] not in line


def test_everything_that_is_damaged_is_told_at_once(sharded):
    for name in SHARDS:
        (sharded / name).write_bytes(b"x" * 100)
    (sharded / "tokenizer.json").write_bytes(POINTER)
    assert len(faults(sharded)) == 3


def test_pickled_weights_are_looked_at_by_their_end(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(1000)}, path)
    check_weights(tmp_path, "critic.model_name_or_path")
    path.write_bytes(path.read_bytes()[:2000])
    (line,) = faults(tmp_path)
    assert path.name in line


@pytest.mark.parametrize(
    "stray", ["pytorch_model.bin", "model.onnx", "tf_model.h5", "flax_model.msgpack", "pytorch_model.bin.index.json"]
)
def test_a_pointer_in_place_of_a_file_that_is_not_read_is_no_fault(sharded, stray):
    (sharded / stray).write_bytes(POINTER)
    check_weights(sharded, "actor.model_name_or_path")


def test_safetensors_that_the_index_does_not_name_are_not_read_and_without_an_index_they_are(sharded):
    (sharded / "adapter.safetensors").write_bytes(POINTER)
    check_weights(sharded, "actor.model_name_or_path")
    (sharded / "model.safetensors.index.json").unlink()
    (sharded / "model.safetensors").write_bytes(save({"a": np.zeros(3, np.float32)}))
    (line,) = faults(sharded)
    assert "adapter.safetensors" in line


@pytest.mark.parametrize("read", ["config.json", "tokenizer.json", "tokenizer.model", "consolidated.safetensors"])
def test_a_pointer_in_place_of_a_file_that_is_read_is_named(sharded, read):
    (sharded / read).write_bytes(POINTER)
    (line,) = faults(sharded)
    assert read in line


def test_half_a_tokenizer_is_told_too(ready, tmp_path):
    (tmp_path / "model/tokenizer.json").write_text('{"model": {"vocab": {"a": 1,')
    assert "tokenizer.json" in refused(ready)


@pytest.mark.parametrize(
    "setting", ["actor.model_name_or_path", "critic.model_name_or_path", "reward.model_name_or_path"]
)
def test_the_checks_of_a_run_refuse_damaged_weights_of_every_model(ready, tmp_path, setting):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for path in (tmp_path / "model").iterdir():
        (damaged / path.name).write_bytes(path.read_bytes())
    (damaged / "model.safetensors").write_bytes(POINTER)
    with_it = {"algo.advantage.estimator": "gae"} if setting.startswith("critic") else {}
    with_it |= {"reward.name": "model"} if setting.startswith("reward") else {}
    said = refused({**ready, **with_it, setting: str(damaged)})
    assert f"{setting} = {str(damaged)!r}" in said and "model.safetensors" in said
