"""Tasks: what a packaged language model can be taught here, by the name that `quickstart --task` takes.

A task is a recipe, a generator of rows, and kinds of problem that are never trained. A model that never does what the
reward wants learns nothing by RL; a task for which that is so has a cold start, some demonstrations to fine-tune on
first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openrlhf_tir.config import Config

from . import function_calls, lookup, numbers


@dataclass(frozen=True)
class Prepared:
    """The files of a task, for one run.

    Attributes:
        train: Training rows.
        test: Held-out rows.
        server_options: Further options of the environment's server.
        demonstrations: Rows to fine-tune on, in random order: a cold start takes the first ones.
    """

    train: Path
    test: Path
    demonstrations: Path
    server_options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RealTask:
    """A task for a packaged language model.

    Attributes:
        recipe: Its recipe, for two CPU cores.
        learns: What the model learns, as the end of a sentence that begins with its name.
        write: (directory, configuration) -> the task's files, written to that directory.
        held_out: Returns the held-out rows, which are the same for every seed.
        unseen: Kinds of problem that are in the test split alone.
        cold_start: Demonstrations that the model is fine-tuned on before RL, unless a person asks for another number;
            0: there is no cold start.
    """

    recipe: str
    learns: str
    write: Callable[[Path, Config], Prepared]
    held_out: Callable[[], list[dict[str, Any]]]
    unseen: Collection[str]
    cold_start: int


def _numbers(directory: Path, cfg: Config) -> Prepared:
    train, test = numbers.write_rows(directory, cfg.train.seed, tool=cfg.env.max_calls > 0)
    return Prepared(train, test, numbers.write_demonstrations(directory))


def _search(directory: Path, cfg: Config) -> Prepared:
    files = lookup.write_files(directory, cfg.train.seed)
    return Prepared(files.train, files.test, files.demonstrations, {"corpus": str(files.corpus)})


def _functions(directory: Path, cfg: Config) -> Prepared:
    files = function_calls.write_files(directory, cfg.train.seed)
    return Prepared(files.train, files.test, files.demonstrations)


NUMBERS = "numbers"
TASKS = {
    NUMBERS: RealTask(
        "smollm2_cpu",
        "answer questions about numbers with one line of Python",
        _numbers,
        lambda: numbers.held_out_rows(numbers.PROMPTS[numbers.PROMPT]),
        numbers.UNSEEN,
        cold_start=0,
    ),
    "functions": RealTask(
        "smollm2_functions_cpu",
        "call functions of BFCL that it never saw",
        _functions,
        lambda: function_calls.held_out_rows(function_calls.read(function_calls.data_directory())),
        function_calls.UNSEEN,
        cold_start=192,
    ),
    "search": RealTask(
        "smollm2_search_cpu",
        "answer questions about an invented world by a search",
        _search,
        lookup.held_out_rows,
        lookup.UNSEEN,
        cold_start=192,
    ),
}
"""Tasks by name. The first is the default."""
