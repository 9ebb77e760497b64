"""Memory: what the processes of one call use together, pages shared between them and with the zygote counted fairly.

A fork shares its parent's pages, so resident sizes over-count: while even their sum is within the limit no more is asked. Beyond it
the kernel walks the page tables for the proportional share (PSS), which takes milliseconds for a large process.
"""

from __future__ import annotations

from ..tree import descendants


def used_bytes(slot_pid: int, enough: int) -> int:
    """Anonymous and shared memory of everything below `slot_pid`: exact above `enough`, an upper bound below it."""
    pids = list(descendants(slot_pid))
    bound = sum(_field_sum(f"/proc/{pid}/status", ("RssAnon:", "RssShmem:")) for pid in pids)
    if bound <= enough:
        return bound
    return sum(_field_sum(f"/proc/{pid}/smaps_rollup", ("Pss_Anon:", "Pss_Shmem:")) for pid in pids)


def _field_sum(path: str, fields: tuple[str, str]) -> int:
    try:
        with open(path) as f:
            return sum(int(line.split()[1]) << 10 for line in f if line.startswith(fields))
    except OSError:  # ended meanwhile
        return 0
