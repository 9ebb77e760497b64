"""Stands in for the package bfcl-eval: two classes as its own are made, one with the package's mistake of a default
that calls add to."""

from __future__ import annotations

import pickle
from types import ModuleType

from openrlhf_tir.rewards.workers import CpuSpent, Limits
from openrlhf_tir.waiting.deadlines import Deadline


class GorillaFileSystem:
    def __init__(self):
        self._opened = 0

    def _load_scenario(self, scenario, long_context=False):
        self.files = dict(scenario["files"])
        self.tags = {}

    def touch(self, file_name):
        if file_name in self.files:
            return {"error": f"touch: {file_name}: File exists"}
        self.files[file_name] = ""
        return None

    def cat(self, file_name):
        self._opened += 1
        return {"content": self.files[file_name]}

    def write(self, file_name, text="-"):
        self.files[file_name] = text
        return text

    def tag(self, name, tags=[]):  # noqa: B006 as the package's post_tweet
        self.tags[name] = tags
        return {"tags": tags}

    def more(self, name, tag):
        self.tags[name] += [tag]
        return {"tags": self.tags[name]}

    def loop(self):
        self.files["loop"] = self.files
        return self.files


class MathAPI:
    def add(self, a, b):
        return {"result": a + b}

    def hang(self):
        return None


def install(monkeypatch) -> None:
    constants = ModuleType("bfcl_eval.constants.executable_backend_config")
    constants.CLASS_FILE_PATH_MAPPING = {"GorillaFileSystem": __name__, "MathAPI": __name__}
    constants.STATELESS_CLASSES = ["MathAPI"]
    for module in (ModuleType("bfcl_eval"), ModuleType("bfcl_eval.constants"), constants):
        monkeypatch.setitem(__import__("sys").modules, module.__name__, module)


class HereAndNow:
    """In place of worker processes. What a call named `hang` is part of uses up its CPU."""

    limits = Limits(Deadline(60.0, "the deadline"), Deadline(5.0, "the budget"))

    async def run(self, function, *args):
        if b"hang" in (sent := pickle.dumps(args)):
            raise CpuSpent("used up")
        return function(*pickle.loads(sent))


FUNCTIONS = {
    "GorillaFileSystem": [
        {"name": n, "description": "", "parameters": {}} for n in ("touch", "cat", "write", "tag", "more", "loop")
    ],
    "MathAPI": [{"name": "add", "description": "", "parameters": {}}],
}
