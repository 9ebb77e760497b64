"""WarmSandbox reads like the fresh one: the same stdout, stderr, exit code and verdict for every snippet that does not
ask for pids or time."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace

import pytest

from env_servers.python_tir.isolation.bwrap import BwrapSandbox
from env_servers.python_tir.isolation.seccomp import filter_program
from env_servers.python_tir.limits import Limits
from env_servers.python_tir.warm.sandbox import WarmSandbox

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
LIMITS = Limits(code_timeout_s=60.0, start_timeout_s=60.0)

ENDLESS = "while True: pass"
SNIPPETS = [
    "",
    "print('a\\n  b')\nimport sys; print('warn', file=sys.stderr)",
    "π = 'äß漢🙂'\nprint(π)",
    "print('\ud800')",
    "import sys; sys.stdout.buffer.write(b'\\xff!')",
    "def f():\n    return 1/0\nf()",
    "x = (",
    "def f(:\n    pass",
    "\0",
    "x = 1\n  y = 2",
    "(" * 300,
    "def f(): f()\nf()",
    (
        "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nfor n in range(900, 1100):\n    try:"
        " f(n)\n    except RecursionError: print(n); break"
    ),
    "import sys; sys.exit(3)",
    "exit()",
    "quit(7)",
    "raise SystemExit('bye')",
    "import sys; sys.exit(2**40 + 5)",
    "import sys; sys.exit(-1)",
    "import sys; sys.exit([1])",
    "import os; os._exit(5)",
    "import os; os.kill(os.getpid(), 9)",
    "import os; os.abort()",
    "raise KeyboardInterrupt",
    "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "import signal; print([signal.getsignal(s) for s in (2, 13, 15, 17, 25)])",
    "input()",
    (
        "import sys; print(repr(sys.stdin.read()), sys.stdin.encoding, sys.stdout.encoding, sys.stderr.errors,"
        " sys.stdin.errors)"
    ),
    (
        "import os, sys; print(sys.argv, os.getcwd(), sys.path, sys.flags, __name__, __file__,"
        " sorted(os.environ.items()), __builtins__)"
    ),
    "import os; print(sorted(os.listdir('/proc/self/fd'))[:3], len(os.listdir('/proc/self/fd')))",
    "import os, sys; print(os.listdir('/tmp'), os.listdir('/dev/shm'), os.listdir('/'), os.listdir('/dev'))",
    (
        "import resource as r; print([r.getrlimit(getattr(r, 'RLIMIT_' + n)) for n in ('CPU', 'NPROC', 'FSIZE',"
        " 'NOFILE', 'CORE', 'STACK')])"
    ),
    (
        "import sys, decimal; print(sys.getrecursionlimit(), sys.get_int_max_str_digits(), decimal.getcontext(),"
        " sys.getswitchinterval())"
    ),
    "import gc; print(gc.get_threshold(), gc.isenabled())",
    "import warnings; warnings.warn('careful'); 1/0",
    "try: 1/0\nexcept ZeroDivisionError as e: raise ValueError('x') from e",
    "try: {}['a']\nexcept KeyError: [][1]",
    "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    (
        "class Loud:\n    def __del__(self): print('deleted')\nkept = Loud()\nimport atexit;"
        " atexit.register(print, 'atexit')"
    ),
    (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1),"
        " print('thread'))).start()\nprint('main', threading.current_thread().name)"
    ),
    (
        "import threading\nt = threading.Thread(target=lambda: 1/0, name='worker');"
        " t.start(); t.join()\nraise SystemExit(4)"
    ),
    "print({'a', 'b', 'c', 'd', 'e'})",
    "import subprocess; print(subprocess.run(['echo', 'sub'], capture_output=True).stdout)",
    (
        "import multiprocessing as mp\ndef f(x): return x * x\nif __name__ == '__main__':\n    with mp.Pool(2) as p:"
        " print(p.map(f, [1, 2]))"
    ),
    "import asyncio\nasync def main(): await asyncio.sleep(0); print('loop')\nasyncio.run(main())",
    "import numpy as np; print(np.arange(6).reshape(2, 3) @ np.ones(3)); np.zeros(2) @ np.zeros(3)",
    "import numpy as np; print(np.array([1.0]) / 0); raise ValueError",
    pytest.param(  # the next one imports sympy as well
        "import sympy as sp; x = sp.Symbol('x'); print(sp.solve(x**3 - x), sp.integrate(sp.exp(-x**2), (x, -sp.oo,"
        " sp.oo)), sp.Dummy('d'))",
        marks=pytest.mark.long,
    ),
    (
        "from sympy import *; x, y = symbols('x y'); print(groebner([x*y - 1, x**2 + y**2 - 3], x, y));"
        " print(Matrix(2, 2, [1, 2, 3, 'a'])); Symbol(3)"
    ),
    "import nonexistent_module",
    "from math import nonexistent",
    "import inspect\ndef f(): pass\nprint(inspect.getsource(f), len(inspect.stack()))",
    "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__module__)",
    "import os; print(os.getuid() != 0, os.geteuid() == os.getgid(), os.getgroups(), os.umask(0))",
    "import logging; logging.warning('x'); assert False, 'why'",
    ENDLESS,
    "x = bytearray(1 << 33)",
    "x = [0] * 10**10",
    "print('x' * 1_000_000)\nprint('end')",
    "import sys\nwhile True: sys.stderr.write('y' * 10_000)",
    "import os; os.close(1); print('lost')",
    "import os; os.closerange(0, 99)",
    "import sys; sys.stdout = None; print('x')",
    "for i in range(9): open('/tmp/%d' % i, 'wb').write(bytes(16 << 20))",
    "open('/usr/x', 'w')",
    "import faulthandler, ctypes; ctypes.string_at(0)",
    "import os; os._exit = None; print('hello')",
    "import os\nfor name in list(vars(os)): setattr(os, name, None)\nprint('hello')",
    (
        "import builtins\nbuiltins.isinstance = builtins.SystemExit = builtins.BaseException = builtins.getattr ="
        " None\nprint('hello')\n1/0"
    ),
    "import sys; sys.modules.clear(); print('hello')",
    "import sys; sys.excepthook = None; 1/0",
    "import sys; del sys.stderr; sys.exit('bye')",
    "import threading, atexit; threading._shutdown = None; atexit.register(print, 'atexit')",
    "import mmap; mmap.mmap(-1, 4096)",
    "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW)",
    "print(open('/dev/zero', 'rb').read(3), open('/dev/null', 'wb').write(b'x'))",
]


@pytest.fixture(scope="module")
def fresh():
    sandbox = BwrapSandbox(LIMITS, seccomp=filter_program())
    yield sandbox
    asyncio.run(sandbox.close())


@pytest.fixture(scope="module")
def warm():
    sandbox = WarmSandbox(LIMITS, slots=1, seccomp=filter_program())
    yield sandbox
    asyncio.run(sandbox.close())


@pytest.mark.slow
@pytest.mark.parametrize("code", SNIPPETS, ids=range(len(SNIPPETS)))
async def test_a_warm_call_has_the_output_of_a_fresh_one(fresh, warm, code):
    timeout_s = 0.5 if code == ENDLESS else 60.0
    a, b = await fresh.run(code, timeout_s=timeout_s), await warm.run(code, timeout_s=timeout_s)
    if a.killed == "output_flood":  # how much was read when it was stopped is chance
        a, b = replace(a, stderr=b""), replace(b, stderr=b"")
    assert replace(b, seconds=0.0) == replace(a, seconds=0.0)


async def test_stdin_and_files_are_passed_in_and_files_returned(warm):
    code = (
        "import sys, os\nos.makedirs('out')\nopen('out/b', 'w').write(open('d/a').read() + sys.stdin.read())\nopen('c',"
        " 'w').write('no')\nsys.exit(3)"
    )
    e = await warm.run(code, stdin=b"in" * 100_000, files={"d/a": b"file "}, fetch=["out/b", "missing", "c"])
    assert (e.return_code, e.files) == (3, {"out/b": b"file " + b"in" * 100_000, "c": b"no"})


async def test_limits_can_be_set_for_one_call(warm):
    assert (await warm.run("import time; time.sleep(5)", timeout_s=0.2)).killed == "time_limit"
    assert b"MemoryError" in (await warm.run("x = bytearray(300 << 20)", memory_bytes=256 << 20)).stderr
    assert len((await warm.run("print('x' * 500)", keep_bytes=100)).stdout) == 100
