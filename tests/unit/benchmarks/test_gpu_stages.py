"""The stages of benchmarks.gpu, as far as a CPU shows them: what is compared, what is divided by what, what ends."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import push_ipc as ipc
from openrlhf_tir.learner.attention import packed


class Process:
    """A stage's process that has ended."""

    pid = 0

    def __init__(self, returncode: int) -> None:
        self.returncode = returncode

    def communicate(self, timeout: float) -> tuple[str, None]:
        return '{"seconds": 1.0}\n', None

    def wait(self, timeout: float) -> None:
        """It has ended."""

    terminate = kill = lambda self: None


def test_the_gradient_that_is_compared_is_that_of_one_backward_pass(monkeypatch):
    monkeypatch.setattr(packed, "_flash_can", lambda *_: True)
    monkeypatch.setattr(packed, "sdpa_packed", lambda _, q, *a, **k: (q * (2.0 if packed._flash_can() else 3.0), None))
    assert gpu.attention(argparse.Namespace(cpu=True))["max_gradient_difference"] == 1.0


def test_every_timed_generation_has_prompts_that_the_engine_has_not_seen(monkeypatch):
    timed: list[set[tuple[int, ...]]] = []

    class LLM:
        def __init__(self, **given: object) -> None:
            """Everything fits."""

        def generate(self, prompts: list[dict], sampling: object, use_tqdm: bool) -> list[SimpleNamespace]:
            timed.append({tuple(prompt["prompt_token_ids"]) for prompt in prompts})
            return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=[1])]) for _ in prompts]

    vllm = ModuleType("vllm")
    vllm.LLM, vllm.SamplingParams = LLM, SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setattr("openrlhf_tir.engines.start.prepare_environment", lambda gpu: None)
    gpu.engine_plain(argparse.Namespace(cpu=True, model="m", requests=8, tokens=4))
    warm_up, first, _, second = timed
    assert not first & second and not (first | second) & warm_up


def test_a_steps_operations_are_divided_by_its_own_seconds():
    args = argparse.Namespace(shape="tiny")
    rate = gpu.operations_per_s(args, 10**9, [[100], [300], [200]], [1.0, 1.0, 4.0])
    assert rate == pytest.approx(6e11, rel=1e-3)


def test_the_learner_of_the_stage_push_ipc_is_started_with_flags_that_the_program_knows(monkeypatch, tmp_path, capsys):
    started: list[list[str]] = []

    def popen(command: list[str]) -> Process:
        started.append(command)
        return Process(0)

    async def measured(*_: object) -> dict:
        return {}

    monkeypatch.setattr(ipc.subprocess, "Popen", popen)
    monkeypatch.setattr(ipc, "_measured", measured)
    ipc.push_ipc(argparse.Namespace(cpu=True, model=tmp_path))
    monkeypatch.setitem(gpu.HIDDEN, "_expose", gpu.Stage(lambda args: {"socket": args.socket}, 1))
    monkeypatch.setattr(sys, "argv", started[0][2:])
    gpu.main()
    assert json.loads(capsys.readouterr().out)["socket"].endswith("/learner")


def test_pushes_are_of_their_own_small_model_also_behind_the_engine_stages(monkeypatch, capsys):
    started: dict[str, list[str]] = {}

    def popen(command: list[str], **_: object) -> Process:
        started[command[command.index("--stage") + 1]] = command
        return Process(0)

    monkeypatch.setattr(gpu.signal, "signal", lambda *_: None)
    monkeypatch.setattr(gpu.subprocess, "Popen", popen)
    monkeypatch.setattr(gpu.os, "killpg", lambda *_: None)
    monkeypatch.setattr(gpu.h200, "write_model", lambda *_: None)
    for words in ([], ["--model", "given"]):
        monkeypatch.setattr(sys, "argv", ["gpu", "--cpu", "--only", "engine", "push_ipc", *words])
        with pytest.raises(SystemExit):
            gpu.main()
        assert ("--model" in started["engine"], "--model" in started["push_ipc"]) == (True, bool(words))


class Late(Process):
    """A stage's process that does not end in its time."""

    def communicate(self, timeout: float) -> tuple[str, None]:
        raise subprocess.TimeoutExpired("a stage", timeout)


@pytest.mark.parametrize(("process", "ends_with"), [(Process(0), 0), (Process(1), 1), (Late(0), 1)])
def test_a_failed_stage_is_seen_in_the_exit_code_and_a_signal_ends_it_too(monkeypatch, capsys, process, ends_with):
    handlers = {}
    monkeypatch.setattr(gpu.signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(gpu.subprocess, "Popen", lambda *_, **__: process)
    monkeypatch.setattr(gpu.os, "killpg", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["gpu", "--cpu", "--only", "attention"])
    with pytest.raises(SystemExit) as ended:
        gpu.main()
    assert ended.value.code == ends_with
    with pytest.raises(SystemExit):
        handlers[signal.SIGTERM](signal.SIGTERM, None)
