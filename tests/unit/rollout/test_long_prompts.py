"""A prompt of megabytes is tokenised beside the event loop."""

from __future__ import annotations

import threading

from openrlhf_tir.config import Config
from openrlhf_tir.rollout.group_runner import LONG_PROMPT_CHARS, GroupRunner
from openrlhf_tir.types import KEEP

THREADS: list[threading.Thread] = []


class ThreadCodec:
    def encode_prompt(self, text):
        THREADS.append(threading.current_thread())
        return [len(text)]


async def test_a_long_prompt_is_tokenised_in_another_thread_and_a_short_one_here():
    runner = GroupRunner(Config(), None, ThreadCodec(), None, None, lambda group: KEEP)
    assert await runner._encode_prompt("x" * 10) == [10]
    assert await runner._encode_prompt("x" * (LONG_PROMPT_CHARS + 1)) == [LONG_PROMPT_CHARS + 1]
    here, beside = THREADS
    assert here is threading.main_thread() and beside is not here
