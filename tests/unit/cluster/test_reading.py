"""The inputs of a run are read in a process of their own (cluster/jobs/reading.py)."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from miniatures.toy.tokenizer import build_tokenizer
from openrlhf_tir.cluster.jobs import reading as reading_module
from openrlhf_tir.cluster.jobs.inputs import load_inputs
from openrlhf_tir.cluster.jobs.reading import _answer, reading
from openrlhf_tir.cluster.services import _unless_fails
from openrlhf_tir.config import Config
from openrlhf_tir.errors import ConfigError, InfraError

SPEAKS = """
import os

dup2 = os.dup2


def speaking(*descriptors):
    dup2(*descriptors)
    print("a library speaks")


os.dup2 = speaking
"""
"""A library that prints once the reader has set the answer's descriptor aside."""


@pytest.fixture
def cfg(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    build_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model/config.json").write_text('{"model_type": "qwen2"}')
    rows = [{"input": f"1+{number}=", "label": str(1 + number)} for number in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Config.model_validate(
        {
            "run_dir": str(tmp_path / "run"),
            "actor": {"model_name_or_path": str(tmp_path / "model")},
            "data": {"prompt_dataset": str(tmp_path / "rows.jsonl"), "max_len": 256},
            "eval": {"dataset": str(tmp_path / "rows.jsonl")},
            "rollout": {"batch_size": 4, "max_new_tokens": 32},
        }
    )


@pytest.mark.slow
async def test_another_process_reads_what_this_one_would_and_shows_what_a_library_prints_meanwhile(
    cfg, tmp_path, monkeypatch, capfd
):
    """What is printed waits in a buffer, as the output is no terminal, and is no part of the answer."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    (tmp_path / "imports").mkdir()
    (tmp_path / "imports/sitecustomize.py").write_text(SPEAKS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "imports"), *sys.path]))
    async with reading(cfg) as inputs:
        read = await inputs
    assert "a library speaks" in capfd.readouterr().err
    here = load_inputs(cfg)
    assert list(read.prompts.tasks) == list(here.prompts.tasks) and len(read.prompts) == 12
    assert read.held_out == here.held_out and read.canary == here.canary
    assert read.prompts.dropped == here.prompts.dropped


ALONE = """
import sys
from openrlhf_tir.cluster.jobs.reading import import_transformers_alone

import_transformers_alone()
from datasets import Dataset, load_dataset, load_from_disk
from transformers import AutoTokenizer

AutoTokenizer.from_pretrained(sys.argv[1])
Dataset.from_dict({"input": ["1+1="]}).save_to_disk(sys.argv[2])
assert load_from_disk(sys.argv[2])["input"][:] == ["1+1="]
assert load_dataset("json", data_files=sys.argv[3], split="train", cache_dir=sys.argv[2] + "-cache").num_rows == 12
assert "torch" not in sys.modules
import torch
"""


FAILS = """
from openrlhf_tir.cluster.jobs import inputs, reading
from openrlhf_tir.errors import ConfigError


def load_inputs(cfg):
    raise ConfigError(f"no tokenizer in {cfg.actor.model_name_or_path}", code="user_code")


inputs.load_inputs = load_inputs
import sys
reading._main(int(sys.argv[1]))
"""
"""A reader that fails before it imports transformers."""


@pytest.mark.slow
async def test_its_error_is_raised_with_its_code(cfg, monkeypatch):
    monkeypatch.setattr(reading_module, "COMMAND", ("-c", FAILS))
    async with reading(cfg) as inputs:
        with pytest.raises(ConfigError) as error:
            await inputs
    assert error.value.code == "user_code" and cfg.actor.model_name_or_path in str(error.value)


async def test_a_reader_that_is_killed_is_an_error_of_the_machine(cfg):
    before = set(psutil.Process().children())
    async with reading(cfg) as inputs:
        [reader] = set(psutil.Process().children()) - before
        reader.send_signal(signal.SIGKILL)
        with pytest.raises(InfraError, match=r" 9 .*; 9 "):
            await inputs


@pytest.mark.parametrize("answer", [b"", pickle.dumps(list(range(1000)))[:700]])
async def test_a_reader_that_dies_while_it_answers_is_an_error_of_the_machine(answer):
    script = f"import os, signal; os.write(1, {answer!r}); os.kill(os.getpid(), signal.SIGTERM)"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, process_group=0)
    with pytest.raises(InfraError, match=rf" {signal.SIGTERM:d} "):
        await _answer(process)


async def test_a_bug_in_the_reader_is_no_fault_of_the_machine():
    process = subprocess.Popen([sys.executable, "-c", "1 / 0"], stdout=subprocess.PIPE, process_group=0)
    with pytest.raises(RuntimeError):
        await _answer(process)


async def test_the_readers_own_processes_end_with_it(cfg, monkeypatch):
    """Those that a library starts to read the data."""
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    before = set(psutil.Process().children())
    monkeypatch.setattr(reading_module, "COMMAND", ("-c", "sleep 1000 & sleep 1000 & wait"))
    async with reading(cfg):
        [reader] = set(psutil.Process().children()) - before
        while len(workers := [c for c in reader.children() if c.name() == "sleep"]) < 2:
            await asyncio.sleep(0.01)
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


async def test_processes_that_a_reader_leaves_behind_end_although_it_has_ended(cfg, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", "/bin/sh")
    pid_file = tmp_path / "pid"
    monkeypatch.setattr(reading_module, "COMMAND", ("-c", f"sleep 1000 > /dev/null & echo $! > {pid_file}; exit 1"))
    async with reading(cfg) as inputs:
        with pytest.raises(RuntimeError):
            await inputs
        with suppress(psutil.NoSuchProcess):
            psutil.Process(int(pid_file.read_text())).wait(60)


async def test_a_reader_that_is_collected_as_the_run_ends_is_no_error(cfg, monkeypatch):
    """A thread may collect it after the run has seen that nobody has."""

    def kill_and_lose_the_race(group: int, signal_number: int) -> None:
        end_group(group, signal_number)
        raise ProcessLookupError

    monkeypatch.setattr(reading_module, "COMMAND", ("-c", "import time; time.sleep(1000)"))
    end_group = os.killpg
    async with reading(cfg):
        monkeypatch.setattr(os, "killpg", kill_and_lose_the_race)


async def test_a_reader_that_has_ended_is_not_signalled_when_the_run_ends(cfg, monkeypatch):
    """Its process id may be that of other processes by then."""
    monkeypatch.setattr(reading_module, "COMMAND", ("-c", "raise SystemExit(1)"))
    signalled = []
    async with reading(cfg) as inputs:
        with pytest.raises(RuntimeError):
            await inputs
        monkeypatch.setattr(os, "killpg", lambda *args: signalled.append(args))
    assert not signalled


async def test_a_run_that_stops_meanwhile_leaves_no_reader(cfg):
    before = set(psutil.Process().children())
    with pytest.raises(KeyError):
        async with reading(cfg):
            raise KeyError
    assert not set(psutil.Process().children()) - before


CONTROLLER = """
import asyncio
import pickle
import sys

from openrlhf_tir.cluster.jobs import reading


async def main():
    reading.COMMAND = ("-c", sys.argv[1])
    async with reading.reading(pickle.load(sys.stdin.buffer)):
        await asyncio.Event().wait()


asyncio.run(main())
"""
READS_FOR_EVER = """
import os
import sys
import time

from openrlhf_tir.cluster.jobs import inputs, reading


def load_inputs(cfg):
    os.write(2, f"{os.getpid()}\\n".encode())
    time.sleep(1000)


inputs.load_inputs = load_inputs
reading._main(int(sys.argv[1]))
"""


@pytest.mark.slow
def test_a_controller_that_is_killed_takes_its_reader_along(cfg):
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", CONTROLLER, READS_FOR_EVER]
    with subprocess.Popen(words, stdin=pipe, stderr=pipe) as controller:
        controller.stdin.write(pickle.dumps(cfg))
        controller.stdin.close()
        reader = psutil.Process(int(controller.stderr.readline()))
        controller.kill()
        _, alive = psutil.wait_procs([reader], timeout=60)
        for process in alive:
            process.kill()
    assert not alive


async def test_the_start_of_the_services_is_given_up_when_the_inputs_are_bad():
    beside: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    events = []

    async def start():
        events.append("begun")
        beside.set_exception(ConfigError("bad"))
        try:
            await asyncio.Event().wait()
        finally:
            events.append("given up")

    with pytest.raises(ConfigError):
        await _unless_fails(beside, start())
    assert events == ["begun", "given up"]


async def test_the_error_of_the_start_is_raised_while_the_inputs_are_read():
    async def start():
        raise InfraError("no room")

    beside: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    with pytest.raises(InfraError):
        await _unless_fails(beside, start())
    beside.cancel()


@pytest.mark.slow
def test_without_torch_a_tokenizer_and_data_sets_are_read_and_torch_can_be_imported_afterwards(cfg, tmp_path):
    words = [
        sys.executable,
        "-c",
        ALONE,
        cfg.actor.model_name_or_path,
        str(tmp_path / "saved"),
        cfg.data.prompt_dataset,
    ]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "PyTorch" not in done.stderr, done.stderr
