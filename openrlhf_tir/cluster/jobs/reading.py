"""Read the inputs of a run in a process of its own, while Ray, engines and learner start.

    controller                                  python -m openrlhf_tir.cluster.jobs.reading
      reading(cfg) -- configuration (pickle) -->  load_inputs
                   <-- inputs, or the error ----

transformers and the rows take CPU seconds and memory that the controller has no use for: this process ends, and gives
back both, when the prompts are read. What it prints goes to the standard error of the run.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from ...config import Config
from ...config.sections.conditions import is_user_code
from ...errors import InfraError, TirError
from ...machine.parent import end_with

if TYPE_CHECKING:
    from .inputs import Inputs

COMMAND = ("-m", __name__)
"""Arguments of the interpreter that reads; the controller's process id follows them."""
NICENESS = 5
"""Niceness of the process: on two cores the first prompt waits for the engine, which imports and loads for longer."""


@asynccontextmanager
async def reading(cfg: Config) -> AsyncIterator[asyncio.Task[Inputs]]:
    """Begin to read, and yield the task whose result are the inputs. The process does not outlive the block.

    The task raises the TirError that `load_inputs` raises, InfraError if the process was killed, and RuntimeError if a
    bug ended it. It has no deadline: how long the rows take to read and render is a matter of the data, and a signal
    ends the wait.
    """
    # The configuration fits into the pipe, so nothing waits here: Ray's start is about to block this process.
    process = subprocess.Popen(
        [sys.executable, *COMMAND, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        process_group=0,  # Ctrl-C is the controller's matter alone
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(pickle.dumps(cfg))
    task = asyncio.create_task(_answer(process), name="read the inputs")
    try:
        yield task
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):  # The thread of `_end` may collect it at this moment.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        await asyncio.gather(task, return_exceptions=True)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait until the process has ended, kill what a library started in its group to read, and return its exit code.

    The group is killed before the process is collected: afterwards its id may be that of another group.
    """
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


async def _answer(process: subprocess.Popen[bytes]) -> Inputs:
    assert process.stdout is not None
    with process.stdout:
        answer = await asyncio.to_thread(process.stdout.read)
    code = await asyncio.to_thread(_end, process)
    if code < 0:
        raise InfraError(
            f"The process that reads the prompts was killed by signal {-code} before it had answered; 9 is often for"
            " lack of memory. Its last words are above."
        )
    if code > 0:
        raise RuntimeError("The process that reads the prompts failed; its traceback is above.")
    result = pickle.loads(answer)
    if isinstance(result, TirError):
        raise result
    return result


def import_transformers_alone() -> None:
    """Import transformers as where torch is not installed: a tokenizer then takes 2 CPU seconds instead of 8.

    transformers asks once whether there is torch. Whoever imports torch afterwards gets it. Where one of the two is
    imported already, as by a sitecustomize, nothing is done.
    """
    if "torch" in sys.modules or "transformers" in sys.modules:
        return
    os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would say that there can be no models
    sys.modules["torch"] = None  # type: ignore[assignment]  # an import raises ImportError, and a search finds nothing
    try:
        import transformers

        transformers.AutoTokenizer  # noqa: B018  a name of transformers is imported when it is used
    finally:
        del sys.modules["torch"]


def _main(controller: int) -> None:
    """Read what the controller hands over, and answer. A controller that is killed takes this process along."""
    if not end_with(controller):
        return
    os.nice(NICENESS)
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no part of the answer
        cfg = pickle.load(sys.stdin.buffer)
        if not any(is_user_code(environment.env.protocol) for environment in cfg.environments.values()):
            import_transformers_alone()
        from .inputs import load_inputs

        try:
            result: Inputs | TirError = load_inputs(cfg)
        except TirError as error:
            result = error
        pickle.dump(result, answer, pickle.HIGHEST_PROTOCOL)


if __name__ == "__main__":
    with suppress(BrokenPipeError):  # the controller is gone
        _main(controller=int(sys.argv[1]))
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # The answer is complete. Tearing libraries down takes time, and a fault of that is no failed reading.
