"""One controller per run directory: refused by name while another lives, free as soon as it does not."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from openrlhf_tir.cli import main
from openrlhf_tir.cli.exit_codes import MISTAKE
from openrlhf_tir.cluster.run_lock import FILE, is_held, run_lock
from openrlhf_tir.errors import ConfigError
from tests.model_files import weights

HOLD = """
import pathlib, signal, sys
from openrlhf_tir.cluster.run_lock import run_lock
with run_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    signal.pause()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_controller_is_refused_and_told_who_holds_the_directory(tmp_path, holder):
    with pytest.raises(ConfigError, match=rf"{tmp_path} .* {holder.pid} .*--run-dir"):
        with run_lock(tmp_path):
            pass


def test_a_crash_leaves_nothing_that_blocks(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / FILE).exists()
    with run_lock(tmp_path):
        pass


def test_what_the_controller_started_does_not_keep_its_lock(tmp_path):
    """The child, started while the lock was held, lives on: environment servers and Ray's daemons may outlive a killed
    controller for a while."""
    with run_lock(tmp_path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with run_lock(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_restart_waits_for_the_lock_of_a_node_that_died_and_a_person_does_not(tmp_path):
    """The file server gives up a dead node's lock after a while: here at the third try, 1 + 2 s later."""
    now, tries = [0.0], []

    def flock(fd, how):
        tries.append(now[0])
        if len(tries) < 3:
            raise OSError(errno.EWOULDBLOCK, "held")

    def sleep(seconds):
        now[0] += seconds

    with run_lock(tmp_path, 60, flock=flock, clock=lambda: now[0], sleep=sleep):
        assert tries == [0, 1, 3]
    tries.clear()
    with pytest.raises(ConfigError) as e:
        with run_lock(tmp_path, 0, flock=flock, clock=lambda: now[0], sleep=sleep):
            pass
    assert e.value.code == "run_dir_in_use"


def test_a_file_system_without_locks_is_refused_by_name(tmp_path):
    def flock(fd, how):
        raise OSError(errno.ENOLCK, "No locks available")

    with pytest.raises(ConfigError, match=r"run\.lock .*: No locks available.*--run-dir") as e:
        with run_lock(tmp_path, flock=flock):
            pass
    assert e.value.code == "run_dir"


def flags_of(tmp_path) -> list[str]:
    model, data = tmp_path / "model", tmp_path / "d.jsonl"
    model.mkdir()
    (model / "config.json").write_text('{"hidden_size": 128, "num_attention_heads": 4}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(weights())
    data.write_text('{"prompt": "1+1?", "label": "2"}\n' * 2)
    flags = {
        "--run-dir": tmp_path,
        "--actor.model_name_or_path": model,
        "--data.prompt_dataset": data,
        "--env.name": "echo",
        "--ds.attn_implementation": "sdpa",
        "--actor.num_gpus_per_node": 1,
        "--rollout.batch_size": 2,
        "--rollout.n_samples_per_prompt": 2,
    }
    return [str(x) for pair in flags.items() for x in pair]


def test_train_in_a_directory_that_is_in_use_ends_as_a_mistake_before_anything_is_started(tmp_path, holder, capsys):
    assert main(["train", *flags_of(tmp_path)]) == MISTAKE
    assert re.search(rf"ConfigError: {tmp_path} .* {holder.pid} ", capsys.readouterr().err)


def test_a_run_that_waited_for_the_directory_does_not_delete_what_the_run_before_has_left_there(
    tmp_path, monkeypatch, capsys
):
    """Both found it empty when they looked first; the other was quicker, and is done."""
    checkpoint = tmp_path / "ckpt" / "step_000007"

    @contextmanager
    def waited(run_dir, wait_s):
        checkpoint.mkdir(parents=True)
        yield

    monkeypatch.setattr("openrlhf_tir.cluster.run_lock.run_lock", waited)
    assert main(["train", "--ckpt.path", "ckpt", *flags_of(tmp_path)]) == MISTAKE
    assert "(step_000007)" in capsys.readouterr().err and checkpoint.is_dir()


def test_whether_a_process_works_in_a_directory_is_seen_without_disturbing_it(tmp_path):
    assert not is_held(tmp_path)
    with run_lock(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path), "the file stays, the lock does not"
