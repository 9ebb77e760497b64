"""Where a card's time goes: the kernels of a call by what they do, and the time in which the card had nothing to do."""

from __future__ import annotations

import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable

KINDS = (
    ("attention", r"flash|fmha|attention"),
    ("matrix products", r"gemm|nvjet|cutlass|xmma|splitK|cublas"),
    ("Liger", r"rms_norm|swiglu|rope"),
    ("compiled head", r"^triton_"),
    ("optimizer", r"multi_tensor|adam"),
    ("copies", r"Memcpy|Memset|copy_kernel"),
    ("communication", r"nccl"),
)
"""Kind of kernel and a part of its name, the first that fits."""
SHOWN = 16


def device_time(run: Callable[[], object]) -> dict[str, float]:
    """Run once under torch's profiler.

    Returns:
        Seconds by kind of kernel, `wall`, and `idle`: the wall's rest, if no two kernels ran at the same time. The
        kernels that took most are written to stderr.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        wall = time.perf_counter() - start
    seconds: dict[str, float] = defaultdict(float)
    kernels = sorted(recorded.key_averages(), key=lambda event: -event.self_device_time_total)
    for event in kernels:
        kind = next((name for name, part in KINDS if re.search(part, event.key, re.IGNORECASE)), "others")
        seconds[kind] += event.self_device_time_total / 1e6
    for event in kernels[:SHOWN]:
        print(f"{event.self_device_time_total / 1e6:8.3f} s {event.count:7d} x {event.key[:110]}", file=sys.stderr)
    return {**seconds, "wall": wall, "idle": wall - sum(seconds.values())}
