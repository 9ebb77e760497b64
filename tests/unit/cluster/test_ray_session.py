"""Ray of our own, when its daemons do not come up in time: another try on a machine that is free of the one before,
then an error with a name."""

from __future__ import annotations

import datetime
import inspect
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import ray
from ray._private import utils
from ray._private.node import Node

from openrlhf_tir.cluster import ray_session
from openrlhf_tir.cluster.signals import StopSignals
from openrlhf_tir.config import Config
from openrlhf_tir.errors import Stopped, Unavailable
from openrlhf_tir.pipeline.stop import StopRequest

SLEEPER = [sys.executable, "-c", "import time; time.sleep(1000)"]
TIMED_OUT = "The current node timed out during startup. This could happen because some of the raylet failed to startup."


class SlowRay:
    """ray.init starts a daemon each time, which comes up in time from the `good`-th try on."""

    def __init__(self, good: int) -> None:
        self.good, self.daemons = good, []

    def init(self, **kwargs) -> None:
        self.given = kwargs
        utils.set_sigterm_handler(lambda *_: sys.exit(15))
        assert not any(d.is_running() and d.status() != psutil.STATUS_ZOMBIE for d in self.daemons), (
            "the daemons of the try before are still there"
        )
        self.daemons.append(psutil.Process(subprocess.Popen(SLEEPER).pid))
        if len(self.daemons) < self.good:
            raise Exception(TIMED_OUT)

    def shutdown(self) -> None: ...


@pytest.fixture
def slow_ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def use(good: int) -> SlowRay:
        fake = SlowRay(good)
        monkeypatch.setattr(ray_session, "ray", fake)
        made.append(fake)
        return fake

    made: list[SlowRay] = []
    yield use
    for daemon in (d for fake in made for d in fake.daemons if d.is_running()):
        daemon.kill()


@pytest.mark.parametrize(("listed", "gpus"), [(None, None), ("0,1", None), ("", 0), ("-1", 0), ("NoDevFiles", 0)])
def test_a_ray_that_is_started_here_has_no_gpu_where_cuda_sees_none(slow_ray, monkeypatch, listed, gpus):
    """Ray counts the entries of the list, and would place a learner rank on the GPU -1."""
    if listed is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    fake = slow_ray(good=1)
    with ray_session.ray_session(Config(run_dir=Path("run"))):
        assert fake.given["num_gpus"] == gpus


@pytest.mark.parametrize("longest", [True, False])
def test_rays_sockets_fit_however_long_the_path_of_a_jobs_temporary_directory_is(slow_ray, monkeypatch, longest):
    """Ray refuses them while it starts: "AF_UNIX path length cannot exceed 107 bytes"."""
    taken = "/" + "t" * (ray_session.LONGEST_TEMP_DIR - len("//ray"))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", taken if longest else taken + "t")
    fake = slow_ray(good=1)
    with ray_session.ray_session(Config(run_dir=Path("run"))):
        given = fake.given["_temp_dir"]
    assert given == (None if longest else "/tmp/ray")
    session = f"session_{datetime.datetime.today():%Y-%m-%d_%H-%M-%S_%f}_{4 << 20}"  # as Ray's Node names it
    utils.validate_socket_filepath(f"{given or f'{taken}/ray'}/{session}/sockets/plasma_store")
    if longest:
        with pytest.raises(OSError, match="AF_UNIX"):
            utils.validate_socket_filepath(f"{taken}t/ray/{session}/sockets/plasma_store")


def test_a_start_that_timed_out_leaves_nothing_that_slows_the_next_and_what_was_there_before_stays(slow_ray):
    ours = psutil.Process(subprocess.Popen(SLEEPER).pid)
    fake = slow_ray(good=2)
    try:
        with ray_session.ray_session(Config(run_dir=Path("run"))):
            first, second = fake.daemons
            assert not first.is_running() or first.status() == psutil.STATUS_ZOMBIE
            assert second.status() != psutil.STATUS_ZOMBIE and ours.status() != psutil.STATUS_ZOMBIE
    finally:
        ours.kill()


def test_what_a_signal_interrupts_leaves_no_daemon_and_ray_does_not_take_the_signal_for_itself(slow_ray, monkeypatch):
    """ray.init sets its handler by this function: without that, what is shown here is not what happens."""
    assert "ray._private.utils.set_sigterm_handler(" in inspect.getsource(ray.init)
    before, fake = signal.getsignal(signal.SIGTERM), slow_ray(good=1)

    class AsIfSignalled(SlowRay):
        def init(self, **kwargs):
            super().init(**kwargs)
            raise Stopped("by SIGTERM")

    fake.__class__ = AsIfSignalled
    with pytest.raises(Stopped), ray_session.ray_session(Config(run_dir=Path("run"))):
        pass
    (daemon,) = fake.daemons
    assert not daemon.is_running() or daemon.status() == psutil.STATUS_ZOMBIE
    assert signal.getsignal(signal.SIGTERM) == before


async def test_once_ray_is_up_the_signals_have_their_handlers_again_and_know_its_session(slow_ray, monkeypatch):
    slow_ray(good=1)
    monkeypatch.setattr(ray_session, "session_directory", lambda: "/tmp/ray/session_1")
    before, signals = signal.getsignal(signal.SIGTERM), StopSignals(StopRequest(1.0))
    try:
        with ray_session.ray_session(Config(run_dir=Path("run")), signals):
            assert signals.marker == "/tmp/ray/session_1"
            assert signal.getsignal(signal.SIGTERM) != before
    finally:
        signals.remove()


def test_a_machine_on_which_ray_never_comes_up_is_named_and_may_be_waited_for(slow_ray):
    fake = slow_ray(good=100)
    with pytest.raises(Unavailable, match=r" 3 .*RAY_ADDRESS=auto"):
        with ray_session.ray_session(Config(run_dir=Path("run"))):
            pass
    assert len(fake.daemons) == ray_session.START_ATTEMPTS


def test_a_ray_of_our_own_starts_no_server_of_a_dashboard():
    node = Mock(all_processes={})
    node.get_log_file_names.return_value = ("out", "err")
    with ray_session._few_daemons():
        Node.start_api_server(node, include_dashboard=False, raise_on_failure=True)
    assert node.all_processes == {} and node._webui_url is None
