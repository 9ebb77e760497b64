"""A learner rank that loads nothing: what its process does when it is killed is the same."""

from __future__ import annotations

import os
import time
from typing import Any

from openrlhf_tir.cluster.learner_group import LearnerRank, _name
from openrlhf_tir.cluster.lost import watched
from openrlhf_tir.config import Config


class IdleRank(LearnerRank):
    """A rank without a model: `call` gives its pid, or holds memory and waits."""

    def start(self, cfg: Config, master_addr: str, master_port: int) -> int:
        watched(cfg, _name(self.rank))
        return 0

    def call(self, method: str, *args: Any) -> Any:
        if method == "hold":
            self.held = bytearray(args[0])
            time.sleep(1000)
        return os.getpid()
