"""A new engine waits for the memory of the one before it; if held for good, its holders are told and vLLM decides."""

from __future__ import annotations

import re

from openrlhf_tir.engines.gpu_memory import Gpu, parse_gpus, parse_holders, wait_for_memory
from openrlhf_tir.simulation.virtual_loop import run
from openrlhf_tir.waiting.deadlines import Deadline

GIB = 2**30


class Driver:
    """Frees `per_look` more GiB of 80 with each question."""

    def __init__(self, per_look: int) -> None:
        self.per_look, self.looks = per_look, 0

    def __call__(self, devices: str) -> list[Gpu]:
        self.looks += 1
        return [
            Gpu(i, min(80, self.looks * self.per_look) * GIB, 80 * GIB, ("pid 7 (60.00 GiB)",))
            for i in devices.split(",")
        ]


def test_it_waits_until_every_gpu_has_the_share_that_the_engine_takes():
    driver = Driver(per_look=20)
    assert run(wait_for_memory(0.9, "0,1", read=driver)) == []
    assert driver.looks == 4


def test_what_stays_held_is_told_with_its_holders_and_does_not_hold_the_engine_up_for_ever(caplog):
    full = run(wait_for_memory(0.9, "5", deadline=Deadline(0.0, "test"), read=Driver(per_look=1)))
    assert [gpu.device for gpu in full] == ["5"]
    assert re.search(r"GPU 5 .*1\.00 GiB .*80\.00 GiB .*test = 0 s.* 90 %.*pid 7 \(60\.00 GiB\)", caplog.text)


def test_an_actor_whose_workers_have_the_gpus_waits_for_none():
    driver = Driver(per_look=1)
    assert run(wait_for_memory(0.9, "", read=driver)) == run(wait_for_memory(0.9, None, read=driver)) == []
    assert driver.looks == 0


def test_nvidia_smi_is_read():
    held = parse_holders("GPU-a, 4711, 61440\nGPU-a, 4712, [N/A]\n")
    assert parse_gpus("3, GPU-a, 20480, 81920\n", held) == [
        Gpu("3", 20 * GIB, 80 * GIB, ("pid 4711 (60.00 GiB)", "pid 4712"))
    ]
