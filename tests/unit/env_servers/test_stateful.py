"""Sessions that keep their state: what stays, what is lost and told, nothing of one is seen or paid for by another."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from env_servers.admission import CapacityFull
from env_servers.python_tir.env import PythonEnv
from env_servers.python_tir.isolation.seccomp import filter_program
from env_servers.python_tir.isolation.tree import descendants
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.sandbox import Execution, SandboxError
from env_servers.python_tir.stateful import RESTARTED, StatefulEnv, step_of_cell
from env_servers.python_tir.warm.notebooks import Cell, Notebook, Notebooks
from env_servers.python_tir.warm.sandbox import WarmSandbox

bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
pytestmark = bwrap
TRACE = "Traceback (most recent call last):"
SPIN = "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f, daemon=True).start()"


@pytest.fixture(scope="module")
def sandbox():
    sandbox = WarmSandbox(
        Limits(code_timeout_s=60.0, memory_bytes=512 << 20), slots=1, seccomp=filter_program(), echo_last=True
    )
    yield sandbox
    asyncio.run(sandbox.close())


@pytest.fixture
async def notebooks(sandbox):
    for code in ("", "# numpy"):
        await sandbox.run(code)
    before = processes(sandbox)
    notebooks = Notebooks(sandbox, cap=8, memory_bytes=1 << 30)
    yield notebooks
    assert len(notebooks) == notebooks.held_bytes == 0
    assert processes(sandbox) == before


@pytest.fixture
async def session(sandbox, notebooks):
    env = StatefulEnv(sandbox, notebooks, stateful=True)
    await env.reset({}, 0)
    yield env
    await env.close()


def processes(sandbox: WarmSandbox) -> list[int]:
    return sorted(
        pid for template in (sandbox._light, sandbox._full) for pid in descendants(template.container._process.pid)
    )


async def say(session: StatefulEnv, code: str) -> str:
    return (await session.step(code, 20.0)).observation


@pytest.mark.slow
async def test_names_imports_and_files_persist_and_the_last_value_is_displayed(session):
    assert await say(session, "import math\nx = 41\nopen('note', 'w').write('kept')\nNone") == ""
    assert await say(session, "x += 1\nx") == "42\n"
    assert await say(session, "math.floor(2.5), open('note').read(), _") == "(2, 'kept', 42)\n"
    assert await say(session, "print(x); x = 0") == "42\n"


async def test_a_failing_cell_has_the_traceback_of_a_script_and_loses_no_state(session):
    await say(session, "def half(n):\n    return 1 / n")
    assert (
        await say(session, "half(0)")
        == f"{TRACE}\n  line 1, in <module>\n    half(0)\n  line 2, in half\n    return 1 / n\n          "
        " ~~~~\nZeroDivisionError: division by zero\n"
    )
    step = await session.step("y = (", 20.0)
    assert (step.signals["error_type"], step.signals["executed"], step.signals["state_lost"]) == (
        "syntax",
        False,
        False,
    )
    assert (await session.step("import sys; sys.exit(3)", 20.0)).signals["return_code"] == 3
    assert await say(session, "half(2)") == "0.5\n"
    assert await say(session, "import os, sys; sys.stdout.close(); os.close(2)") == ""
    assert await say(session, "print(half(4))") == "0.25\n"


async def test_the_recursion_limit_is_that_of_a_script(session):
    code = (
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nfor n in range(900, 1100):\n    try:"
        " f(n)\n    except RecursionError: print(n); break"
    )
    assert await say(session, code) == "999\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "outcome", "text"),
    [
        ("while True: pass", "model_error", "TimeLimitExceeded\n"),
        (
            (
                "import os, time\nfor i in range(9):\n    if os.fork() == 0:"
                " x = b'x' * (80 << 20); time.sleep(99)\ntime.sleep(99)"
            ),
            "model_error",
            None,
        ),
        ("import os; os._exit(0)", "ok", ""),
        ("import ctypes; ctypes.string_at(0)", "model_error", ""),
        ("import os; os.kill(os.getpid(), 9)", "model_error", ""),
        ("import os; os.kill(0, 9)", "model_error", ""),
        ("import os; os.close(3)", "model_error", ""),
        ("import os; os.write(3, b'1 0 R'); os.write(3, b'x' * 99)\nwhile True: pass", "model_error", ""),
    ],
)
async def test_the_observation_says_why_the_interpreter_ended_and_that_its_state_is_lost(
    session, sandbox, monkeypatch, code, outcome, text
):
    await say(session, "x = 1")
    with monkeypatch.context() as patched:
        if code == "while True: pass":
            patched.setattr(sandbox, "limits", replace(sandbox.limits, code_timeout_s=0.5))
        step = await session.step(code, 20.0)
    assert (step.outcome, step.signals["state_lost"]) == (outcome, True)
    assert step.observation.endswith(RESTARTED) if text is None else step.observation == text + RESTARTED
    after = await session.step("'x' in globals()", 20.0)
    assert (after.observation, after.signals["state_lost"]) == ("False\n", False)


async def test_a_lost_state_that_was_not_reported_is_reported_with_the_next_answer(session):
    await say(session, "x = 1")
    call = asyncio.create_task(session.step("import time; time.sleep(60)", 20.0))
    await asyncio.sleep(0.1)
    call.cancel()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    step = await session.step("'x' in globals()", 20.0)
    assert (step.observation, step.outcome, step.signals["state_lost"]) == (RESTARTED + "False\n", "ok", True)


async def test_an_interpreter_killed_between_calls_is_a_sandbox_error(session):
    await say(session, "x = 1")
    slot = session._notebook._slot
    (interpreter,) = descendants(slot.pid)
    os.kill(interpreter, signal.SIGKILL)
    while state(interpreter) != "Z":
        await asyncio.sleep(0.01)
    with pytest.raises(SandboxError) as of_interpreter:
        await session.step("x", 20.0)
    assert (await say(session, "2")).startswith(RESTARTED)
    os.kill(session._notebook._slot.pid, signal.SIGKILL)
    with pytest.raises(SandboxError) as of_slot:
        await session.step("x", 20.0)
    assert str(of_interpreter.value) != str(of_slot.value)


async def test_nothing_runs_between_two_calls(session):
    await say(session, f"{SPIN}\nimport subprocess; subprocess.Popen(['sh', '-c', 'while :; do :; done'])")
    pids = [pid for pid in descendants(session._notebook._slot.pid)]
    before, start = sum(map(cpu_ticks, pids)), time.monotonic()
    while time.monotonic() < start + 0.3:
        await asyncio.sleep(0.05)
    assert sum(map(cpu_ticks, pids)) - before <= 1
    assert [state(pid) for pid in pids] == ["t"] * 2
    assert await say(session, "threading.active_count()") == "2\n"


WAKERS = {
    "a POSIX timer": """
import ctypes
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 64)]
timer = ctypes.c_void_p()
ctypes.CDLL(None).timer_create(1, ctypes.byref(Event(0, 18, 0)), ctypes.byref(timer)) == 0 and ESCAPED""",
    "the end of its output": """
import fcntl
try: fcntl.fcntl(1, 10, 18)
except OSError: fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | 0o20000)
else: ESCAPED""",
    "an interval timer": (
        "import signal; signal.signal(14, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)"
    ),
    "children that wake each other": (
        "import os, signal\nfor _ in range(4):\n    if os.fork() == 0:\n        while True: os.kill(-1, signal.SIGCONT)"
    ),
    "threads that fork": (
        "import threading, subprocess\ndef f():\n    while True:"
        " subprocess.run(['true'])\nthreading.Thread(target=f, daemon=True).start()"
    ),
}


@pytest.mark.parametrize("waker", WAKERS.values(), ids=WAKERS)
async def test_no_signal_resumes_a_session_between_two_calls(session, waker):
    step = await session.step(f"import time\n{waker}", 20.0)
    assert (step.outcome, step.signals["state_lost"]) == ("ok", False), step.observation
    pids = list(descendants(session._notebook._slot.pid))
    before = {pid: (state(pid), context_switches(pid)) for pid in pids}
    await asyncio.sleep(0.3)
    assert list(descendants(session._notebook._slot.pid)) == pids
    assert {pid: (state(pid), context_switches(pid)) for pid in pids} == before
    assert {state for state, _ in before.values()} <= {"t", "Z"}
    assert await say(session, "6 * 7") == "42\n"


def context_switches(pid: int) -> list[str]:
    return [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "ctxt_switches" in line]


@pytest.mark.slow
async def test_an_interpreter_killed_by_its_child_as_the_cell_ends_is_a_model_error(session):
    outcomes = set()
    for delay in range(0, 4000, 500):
        await say(session, "import os")
        code = f"if os.fork() == 0:\n    for _ in range({delay}): pass\n    os.kill(2, 9)\n    os._exit(0)"
        outcomes |= {(await session.step(code, 20.0)).outcome, (await session.step("1", 20.0)).outcome}
    assert outcomes <= {"ok", "model_error"}  # at whichever moment it comes: never SandboxError


ANSWER = """
import os, sys, time
frame = sys._getframe()
while "request" not in frame.f_locals: frame = frame.f_back
word = frame.f_locals["request"] + b" 0 R"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "early",
    [
        "os.write(3, word)\nprint('and on', flush=True)\nwhile True: time.sleep(0.01)",
        "if os.fork() == 0: os.write(3, word); os._exit(0)\ntime.sleep(60)",
        (
            "if os.fork() == 0: time.sleep(0.2); os.write(3, word); os._exit(0)\nimport socket;"
            " socket.socket(fileno=3).recvmsg(64)"
        ),
    ],
    ids=["itself", "its child", "its child, while it waits as its interpreter would"],
)
async def test_a_cell_that_forges_the_interpreters_answer_loses_the_session(session, early):
    step = await session.step(ANSWER + early, 20.0)
    assert (step.outcome, step.signals["error_type"], step.signals["state_lost"]) == ("model_error", "exception", True)
    assert await say(session, "'word' in globals()") == "False\n"


async def test_an_answer_forged_by_an_earlier_cell_is_ignored_by_a_later_one(session):
    wait = (
        "import threading\nlater = threading.Event()\ndef f():\n    later.wait(); os.write(3,"
        " word)\nthreading.Thread(target=f).start()"
    )
    await say(session, ANSWER + wait)
    step = await session.step("later.set(); threading.enumerate()[-1].join(); print('forged by the thread')", 20.0)
    assert (step.outcome, step.signals["state_lost"]) == ("model_error", True)


async def test_a_cell_that_breaks_modules_does_not_end_its_interpreter(session):
    code = (
        "import os, socket, builtins\nfor module in (os, socket):"
        " vars(module).update(dict.fromkeys(vars(module)))\nbuiltins.len = builtins.int = None"
    )
    await say(session, "x = 5")
    assert (await session.step(code, 20.0)).signals["state_lost"] is False
    assert await say(session, "x") == "5\n"


async def test_files_and_sockets_of_a_session_count_against_the_memory_budget(session, notebooks):
    await say(session, "import socket\nx = 1")
    before = notebooks.held_bytes
    await say(
        session,
        "import os\nfd = os.open('/dev/shm/x', os.O_RDWR | os.O_CREAT)\nos.write(fd, bytes(20 <<"
        " 20))\nos.unlink('/dev/shm/x')",
    )
    assert 20 << 20 <= notebooks.held_bytes - before < 24 << 20
    await say(session, "pairs = [socket.socketpair() for _ in range(20)]")
    assert 40 << 20 <= notebooks.held_bytes - before < 44 << 20


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def cpu_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


@pytest.mark.slow
async def test_sessions_share_neither_names_nor_files_nor_processes(sandbox, notebooks):
    one, other = [StatefulEnv(sandbox, notebooks, stateful=True) for _ in range(2)]
    for env in (one, other):
        await env.reset({}, 0)
    try:
        await say(
            one,
            "import builtins, subprocess; builtins.secret = 1; open('/tmp/s', 'w');"
            " open('/dev/shm/s', 'w'); subprocess.Popen(['sleep', '60'])",
        )
        looks = (
            "import os; [hasattr(__builtins__, 'secret'), os.listdir('/tmp'), os.listdir('/dev/shm'), [p for p in"
            " os.listdir('/proc') if p.isdigit()]]"
        )
        assert await say(other, looks) == "[False, [], [], ['1', '2']]\n"
        bomb = (
            "import os, time\nn = 0\ntry:\n    while n < 99:\n        if os.fork() == 0: time.sleep(60)\n        n +="
            " 1\nexcept BlockingIOError: print(n < 64)"
        )
        assert await say(one, bomb) == "True\n"
        assert await say(other, "os.getpid() if os.fork() else os._exit(0)") == "2\n"
    finally:
        await asyncio.gather(one.close(), other.close())


async def test_a_forked_child_runs_no_further_cells_and_its_output_arrives(session):
    assert (
        await say(session, "import os\nif os.fork() == 0: print('child')\nelse: os.wait(); print('parent')")
        == "child\nparent\n"
    )
    assert await say(session, "os.getpid()") == "2\n"


async def test_without_state_each_call_is_a_separate_script(sandbox, notebooks):
    env = StatefulEnv(sandbox, notebooks, stateful=True)
    await env.reset({"stateful": False}, 0)
    assert await say(env, "x = 1") == ""
    assert (await env.step("x", 20.0)).signals["error_type"] == "exception"
    with pytest.raises(ValueError, match=r"task\[\"stateful\"\] .*'yes'"):
        await env.reset({"stateful": "yes"}, 0)


async def test_a_server_without_warm_workers_refuses_a_task_that_needs_state():
    with pytest.raises(ValueError, match=r'task\["stateful"\]'):
        await PythonEnv(None).reset({"stateful": True}, 0)
    assert await PythonEnv(None).reset({"stateful": False}, 0) == ""


async def test_interpreters_beyond_the_limit_of_sessions_or_memory_are_refused_until_some_end(sandbox):
    notebooks = Notebooks(sandbox, cap=2, memory_bytes=100 << 20)
    one, two, three = [Notebook(notebooks) for _ in range(3)]
    await one.run("")
    await two.run("")
    with pytest.raises(CapacityFull, match=r"\b2 "):
        await three.run("")
    await two.close()
    await one.run("x = b'x' * (60 << 20)")
    assert 60 << 20 < notebooks.held_bytes < 100 << 20
    await one.run("open('/dev/shm/x', 'wb').write(bytes(20 << 20))")
    with pytest.raises(CapacityFull, match=r"MiB .* 100\b"):
        await three.run("")
    await one.close()
    assert (await three.run("7")).execution.stdout == b"7\n"
    await three.close()
    assert (len(notebooks), notebooks.held_bytes) == (0, 0)


def test_a_lost_state_is_reported_after_its_own_output_and_before_later_output():
    e = Execution(b"out", b"", 0, 0.1)
    assert step_of_cell(Cell(e, restarted=False, alive=True)).observation == "out"
    assert step_of_cell(Cell(e, restarted=True, alive=True)).observation == RESTARTED + "out"
    assert step_of_cell(Cell(e, restarted=True, alive=False)).observation == "out\n" + RESTARTED
