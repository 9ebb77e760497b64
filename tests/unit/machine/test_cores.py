"""What Linux says about the cores."""

from __future__ import annotations

import pytest

from openrlhf_tir.machine.cores import computes_bf16


@pytest.mark.parametrize(
    ("said", "fast"),
    [
        ("flags\t\t: fpu sse2 fma avx avx2\n", False),
        ("flags\t\t: fpu avx2 avx512f avx512bw avx512vl\n", False),
        ("flags\t\t: fpu avx2 avx512f avx512dq avx512bw avx512vl\n", True),
        ("Features\t: fp asimd sve\n", False),
        ("Features\t: fp asimd sve i8mm bf16\n", True),
        ("processor\t: 0\n", True),
    ],
    ids=["avx2", "a part of avx512", "avx512", "arm", "arm with bf16", "nothing is said"],
)
def test_cores_are_slow_in_bf16_only_where_their_flags_say_so(tmp_path, said, fast):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\n{said}\nprocessor\t: 1\n{said}")
    assert computes_bf16(cpuinfo) == fast


def test_a_system_that_says_nothing_about_its_cores_is_not_taken_for_slow(tmp_path):
    assert computes_bf16(tmp_path / "none")
