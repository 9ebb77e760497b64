"""Hostile snippets, each with what shows that it was contained. Kinds of proof:

    refused(...)    the statements raise, or the C call fails; where they succeed the snippet prints ESCAPED
    ends(...)       the sandbox ends it with one of these error types (None: it ended well by itself)
    prints(...)     the snippet reports what it could do, and the report is exactly this

`ATTACKS` run in any order, side by side. What an attack leaves behind is the business of `test_hostile`.
"""
# ruff: noqa: E501 - one attack, one line

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent
from typing import Any

Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attack:
    name: str
    code: str
    contained: Callable[[Reply], bool]
    until_stopped: bool = False
    """Its time limit ends it: a server with a short one proves the same at less cost."""


def had_no_core(reply: Reply) -> bool:
    """Whether it was stopped at its time limit while the machine was too busy to blame it."""
    return reply["signals"].get("error", "").startswith("NoCore")


def refused(name: str, body: str) -> Attack:
    code = f"try:\n{indent(body, '    ')}\nexcept BaseException as e:\n    print('refused', type(e).__name__)\nelse:\n    print('ESCAPED')\n"
    return Attack(name, code, lambda r: r["outcome"] == "ok" and r["observation"].startswith("refused"))


def c_call(name: str, call: str, setup: str = "") -> Attack:
    """`call` is an expression of libc's functions; -1 is a refusal."""
    code = f"import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n{setup}\nprint('refused' if {call} == -1 else 'ESCAPED')\n"
    return Attack(name, code, lambda r: r["observation"] == "refused\n")


def ends(name: str, code: str, *error_types: str | None, until_stopped: bool = False) -> Attack:
    return Attack(
        name,
        code,
        lambda r: (
            (r["outcome"] in ("ok", "model_error") and r["signals"]["error_type"] in error_types)
            or ("time_limit" in error_types and had_no_core(r))
        ),
        until_stopped=until_stopped or error_types == ("time_limit",),
    )


def prints(name: str, code: str, observation: str) -> Attack:
    return Attack(name, code, lambda r: r["observation"] == observation)


FILES = [
    *[
        refused(f"read {path}", f"open({path!r}, 'rb').read(1)")
        for path in (
            "/etc/shadow", "/etc/passwd", "/root/.bashrc", "/proc/1/environ", "/proc/1/mem", "/proc/kcore",
            "/proc/kmsg", "/dev/mem", "/dev/kmsg", "/dev/sda",
        )
    ],
    *[
        refused(f"list {path}", f"import os; os.listdir({path!r})")
        for path in ("/home", "/sys", "/run", "/var/log", "/proc/1/root", "/proc/1/fd", "/proc/1/cwd/etc")
    ],
    *[
        refused(f"write {path}", f"open({path!r}, 'w')")
        for path in (
            "/x",
            "/usr/x",
            "/dev/x",
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/kernel/hostname",
            "/proc/sysrq-trigger",
            "/proc/self/oom_score_adj",
        )
    ],
    refused("change the interpreter", "import os; open(os.__file__, 'a')"),
    refused("change a package", "import numpy; open(numpy.__file__, 'a')"),
    refused("make a device", "import os, stat; os.mknod('/tmp/d', 0o600 | stat.S_IFBLK, os.makedev(8, 0))"),
    refused("climb out by dot-dot", "open('/tmp/../../../../etc/shadow')"),
    refused("climb out by symlink", "import os; os.symlink('/proc/1/root/etc/shadow', '/tmp/l'); open('/tmp/l')"),
    refused("own the temporary directory", "import os; os.chmod('/tmp', 0o700)"),
    refused("remount by fd of /proc", "import os; os.open('/proc/1/ns/mnt', os.O_RDONLY)"),
    refused("chroot", "import os; os.chroot('/tmp')"),
]  # fmt: skip
PRIVILEGE = [
    refused("become root", "import os; os.setuid(0)"),
    refused("become another slot", "import os; os.setresuid(1, 1, 1); os.setresuid(2, 2, 2)"),
    refused("become the server", "import os; os.setgroups([0])"),
    refused("raise the process limit", "import resource as r; r.setrlimit(r.RLIMIT_NPROC, (9999, 9999))"),
    refused("raise the memory limit", "import resource as r; r.setrlimit(r.RLIMIT_AS, (-1, -1))"),
    refused("limits of PID 1", "import resource as r; r.prlimit(1, r.RLIMIT_NOFILE, (1, 1))"),
    refused("priority of PID 1", "import os; os.setpriority(os.PRIO_PROCESS, 1, 19)"),
    refused("cores of PID 1", "import os; os.sched_setaffinity(1, {0})"),
    refused("negative niceness", "import os; os.nice(-5)"),
    refused("set the host name", "import socket; socket.sethostname('x')"),
    refused("set the clock", "import time; time.clock_settime(time.CLOCK_REALTIME, 0)"),
    prints(
        "sudo and su",
        "import shutil, subprocess\nprint([subprocess.run([p, '-c', 'id'], capture_output=True, stdin=-3).returncode == 0 for p in ('su',) if shutil.which(p)] in ([], [False]))",
        "True\n",
    ),
    prints("set-uid bits are dead", "print(open('/proc/self/status').read().count('NoNewPrivs:\\t1'))", "1\n"),
    prints(
        "no capabilities",
        "print({l.split()[1].strip('0') for l in open('/proc/self/status') if l.startswith('Cap')})",
        "{''}\n",
    ),
]
SYSTEM_CALLS = [
    c_call("new user namespace", "libc.unshare(0x10000000)"),
    c_call("new pid namespace", "libc.unshare(0x20000000)"),
    c_call("new mount namespace by clone", "libc.syscall(56, 0x00020000 | 17, 0, 0, 0, 0)"),
    c_call(
        "new user namespace by clone3",
        "libc.syscall(435, ctypes.byref(args), 88)",
        "args = (ctypes.c_uint64 * 11)(0x10000000, 0, 0, 0, 17)",
    ),
    c_call("mount", "libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)"),
    c_call("umount", "libc.umount2(b'/proc', 2)"),
    c_call("new mount API", "libc.syscall(430, b'tmpfs', 0)"),
    c_call("pivot_root", "libc.syscall(155, b'/tmp', b'/tmp')"),
    c_call("ptrace PID 1", "libc.ptrace(16, 1, 0, 0)"),
    c_call("ptrace itself", "libc.ptrace(0, 0, 0, 0)"),
    c_call("read PID 1's memory", "libc.process_vm_readv(1, 0, 0, 0, 0, 0)"),
    c_call("pidfd_getfd", "libc.syscall(438, os.pidfd_open(1), 3, 0)"),
    c_call("keyctl", "libc.syscall(250, 0, -3, 1)"),
    c_call("add_key", "libc.syscall(248, b'user', b'tir', b'x', 1, -3)"),
    c_call("io_uring", "libc.syscall(425, 8, ctypes.byref(params))", "params = (ctypes.c_uint32 * 30)()"),
    c_call("userfaultfd", "libc.syscall(323, 1)"),
    c_call("bpf", "libc.syscall(321, 0, 0, 0)"),
    c_call("perf_event_open", "libc.syscall(298, 0, 0, -1, -1, 0)"),
    c_call("SysV shared memory", "libc.shmget(1234, 4096, 0o1666)"),
    c_call("message queue of the next call", "libc.syscall(240, b'tir', 0o102, 0o666, 0)"),
    c_call("anonymous file outside of /tmp", "libc.syscall(319, b'x', 0)"),
    c_call("personality", "libc.personality(0x0040000)"),
    c_call("kexec", "libc.syscall(246, 0, 0, 0, 0)"),
    c_call("reboot", "libc.reboot(0x1234567)"),
    c_call("drop the seccomp filter", "libc.syscall(317, 0, 0, 0)"),
]
NETWORK = [
    *[
        refused(f"connect to {host}:{port}", f"import socket; socket.create_connection(({host!r}, {port}), 1)")
        for host, port in (("127.0.0.1", 22), ("1.1.1.1", 53), ("::1", 80))
    ],
    *[
        refused(f"socket family {n} type {kind}", f"import socket; socket.socket({n}, {kind})")
        for n, kind in ((2, 3), (2, 5), (10, 3), (16, 3), (17, 3), (38, 5), (40, 1))
    ],
    refused("IPv4 with another protocol", "import socket; socket.socket(2, 1, 262)"),
    refused("send a datagram out", "import socket; socket.socket(2, 2).sendto(b'x', ('1.1.1.1', 53))"),
    refused(
        "broadcast",
        "import socket\ns = socket.socket(2, 2)\ns.setsockopt(1, 6, 1)\ns.sendto(b'x', ('255.255.255.255', 53))",
    ),
    prints(
        "no route out",
        "print(len(open('/proc/net/route').readlines()), 'default' in open('/proc/net/ipv6_route').read())",
        "1 False\n",
    ),
    c_call(
        "set the loopback's address",
        "libc.ioctl(s.fileno(), 0x8916, b'lo' + bytes(40))",
        "import socket\ns = socket.socket(2, 2)",
    ),
    refused("resolve a name", "import socket; socket.getaddrinfo('example.com', 80)"),
    refused(
        "abstract unix socket of the host",
        "import socket; socket.socket(socket.AF_UNIX).connect('\\0/tmp/.X11-unix/X0')",
    ),
]
FORGERY = [
    prints(
        "write to every descriptor",
        "import os\nfor fd in range(3, 4096):\n    try: os.write(fd, b'1 0 end RS 1')\n    except OSError: continue\n    print('ESCAPED', fd)",
        "",
    ),
    prints(
        "no descriptor but three",
        "import os\nprint(sorted(map(int, os.listdir('/proc/self/fd')))[:4])",
        "[0, 1, 2, 3]\n",
    ),
    prints(
        "reopen descriptors of relatives",
        "import os\nfound = []\nfor pid in filter(str.isdigit, os.listdir('/proc')):\n    try: found += os.listdir(f'/proc/{pid}/fd') if int(pid) != os.getpid() else []\n    except OSError: pass\nprint(found)",
        "[]\n",
    ),
    prints(
        "walk the frames",
        "import sys\nf = sys._getframe()\nwhile f:\n    for v in list(f.f_locals.values()):\n        if hasattr(v, 'fileno') and v not in (sys.stdin, sys.stdout, sys.stderr):\n            try: print('ESCAPED', v.fileno())\n            except Exception: pass\n    f = f.f_back",
        "",
    ),
    ends("claim success on exit", 'import os; os.write(1, b\'{"outcome": "ok"}\'); os._exit(256 + 3)', "exception"),
    ends("exit status 2**63", "import sys; sys.exit(2**63)", None),
    ends("exit status of a signal", "import os; os._exit(137)", "exception"),
    ends("stop itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "time_limit"),
    ends("fake its own compile error", "raise SyntaxError('x')", "exception"),
    ends(
        "replace the exit path",
        "import os, sys\nos._exit = lambda code: None\nsys.excepthook = lambda *a: None\n1/0",
        "exception",
        None,
    ),
    ends("break the excepthook", "import sys\nsys.excepthook = None\n1/0", "exception", None),
]
LEAVE_ALONE = [  # what runs after a snippet is none of its business
    prints(f"replace {what}", f"import builtins, os, sys, threading\nprint('hello')\n{how}", "hello\n")
    for what, how in (
        ("os._exit", "os._exit = None"),
        ("all of os", "for name in list(vars(os)): setattr(os, name, None)"),
        ("the modules", "sys.modules.clear()"),
        (
            "the builtins",
            "for name in ('isinstance', 'type', 'getattr', 'SystemExit', 'BaseException'): setattr(builtins, name, None)",
        ),
        ("the end of threads", "threading._shutdown = None"),
        ("all of sys but stdout", "for name in set(vars(sys)) - {'stdout'}: setattr(sys, name, None)"),
    )
]
SIGNALS = [
    prints(
        "kill PID 1",
        "import os\nfor s in (1, 2, 3, 9, 15, 19):\n    try: os.kill(1, s)\n    except PermissionError: pass\nprint('alive')",
        "alive\n",
    ),
    ends("kill everything", "import os; os.kill(-1, 9)", None, "exception"),
    ends("kill the parent group", "import os; os.kill(0, 9)", "exception"),
    ends(
        "ignore every signal",
        "import signal\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
        "time_limit",
    ),
    ends("crash", "import ctypes; ctypes.string_at(0)", "exception"),
    ends(
        "alarm storm without end",
        "import signal\nsignal.signal(14, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 1e-5, 1e-5)\nwhile True: pass",
        "time_limit",
    ),
    ends(
        "alarm storm",
        "import signal, time\nsignal.signal(14, lambda *a: None); signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)\n"
        "end = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass",
        None,
    ),
]
BOMBS = [
    ends(
        "fork bomb",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        "time_limit",
        "memory",
        until_stopped=True,
    ),
    ends(
        "vfork bomb by subprocess",
        "import subprocess\nwhile True:\n    try: subprocess.Popen(['sleep', '600'])\n    except OSError: pass",
        "time_limit",
        "exception",
        until_stopped=True,
    ),
    ends(
        "thread bomb",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(600,)).start()",
        "exception",
        "time_limit",
        "memory",
    ),
    ends("one big allocation", "x = bytearray(1 << 34)", "memory"),
    # in steps of 16 MiB: in smaller ones the whole may take a busy machine longer than the time limit
    ends("creeping allocation", "x = []\nwhile True: x.append(bytearray(1 << 24))", "memory"),
    ends(
        "memory by many processes",
        "import os, time\nfor i in range(16):\n    if os.fork() == 0:\n        x = b'x' * (60 << 20); time.sleep(600)\ntime.sleep(600)",
        "memory",
    ),
    refused("shared memory without a name", "import mmap; mmap.mmap(-1, 60 << 20)"),
    refused(
        "shared memory without a name, validated", "import mmap; mmap.mmap(-1, 60 << 20, flags=mmap.MAP_ANONYMOUS | 3)"
    ),
    refused("shared memory of /dev/zero", "import mmap, os; mmap.mmap(os.open('/dev/zero', os.O_RDWR), 60 << 20)"),
    prints("/dev/zero is zeros", "print(open('/dev/zero', 'rb').read(4))", "b'\\x00\\x00\\x00\\x00'\n"),
    c_call(
        "pages in pipes",
        "libc.vmsplice(w, ctypes.byref(part), 1, 0)",
        "r, w = os.pipe()\npage = ctypes.create_string_buffer(4096)\npart = (ctypes.c_void_p * 2)(ctypes.addressof(page), 4096)",
    ),
    refused("pages in packets", "import socket; socket.socket().setsockopt(1, 60, 1)"),
    c_call(
        "timer that outlives its cell", "libc.timer_create(1, None, ctypes.byref(timer))", "timer = ctypes.c_void_p()"
    ),
    refused("choose the signal of a file's events", "import fcntl; fcntl.fcntl(1, 10, 9)"),
    c_call("choose it past the filter", "libc.syscall(72, 1, ctypes.c_long(1 << 32 | 10), 9)"),
    refused(
        "watch a shared file",
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nif libc.inotify_add_watch(libc.inotify_init(), os.__file__.encode(), 32) < 0: raise OSError",
    ),
    ends(
        "full socket pairs by many",
        "import os, socket, time\nfor i in range(40):\n    if os.fork() == 0:\n        kept = []\n        try:\n            while True:\n"
        "                kept += socket.socketpair()\n                for s in kept[-2:]:\n                    s.setblocking(False)\n"
        "                    try:\n                        while True: s.send(bytes(65536))\n                    except BlockingIOError: pass\n"
        "        except OSError: time.sleep(600)\ntime.sleep(600)",
        "memory",
    ),
    ends(
        "full connections by many",
        "import os, socket, time\nl = socket.create_server(('127.0.0.1', 0), backlog=500)\nfor i in range(16):\n    if os.fork() == 0:\n        kept = []\n        try:\n"
        "            while True:\n                kept += socket.create_connection(l.getsockname()), l.accept()[0]\n                for s in kept[-2:]:\n"
        "                    s.setblocking(False)\n                    try:\n                        while True: s.send(bytes(65536))\n"
        "                    except BlockingIOError: pass\n        except OSError: time.sleep(600)\ntime.sleep(600)",
        "memory",
    ),
    ends(
        "larger socket buffers",
        "import os, socket, time\nkept = []\nfor i in range(100):\n    a, b = socket.socketpair()\n    a.setsockopt(1, 7, 1 << 30)\n    a.setblocking(False)\n    kept += a, b\n"
        "    total = 0\n    try:\n        while True: total += a.send(bytes(65536))\n    except BlockingIOError: pass\n    assert total < 1 << 19, total",
        None,
    ),
    ends(
        "files and memory together",
        "import time\nfor d in ('/tmp', '/dev/shm'): open(d + '/x', 'wb').write(bytes(60 << 20))\nx = b'x' * (440 << 20)\ntime.sleep(600)",
        "memory",
    ),
    ends(
        "memory handed on by a chain of forks",
        "import os\nx = [bytes(1) * (100 << 20)]\nfor i in range(5):\n    if os.fork() == 0:\n        y = bytearray(120 << 20)\n        for j in range(0, len(y), 4096): y[j] = 1\n"
        "        while True:\n            if os.fork(): os._exit(0)\nimport time; time.sleep(600)",
        "memory",
        "time_limit",
    ),
    prints(
        "fill /tmp",
        "try:\n    for i in range(99): open(f'/tmp/{i}', 'wb').write(bytes(8 << 20))\nexcept OSError as e: print(e.errno)",
        "28\n",
    ),
    prints(
        "fill /dev/shm",
        "try:\n    for i in range(99): open(f'/dev/shm/{i}', 'wb').write(bytes(8 << 20))\nexcept OSError as e: print(e.errno)",
        "28\n",
    ),
    prints(
        "use up inodes",
        "try:\n    for i in range(10**6): open(f'/tmp/{i}', 'w').close()\nexcept OSError as e: print(e.errno)",
        "28\n",
    ),
    prints(
        "use up descriptors",
        "f = []\ntry:\n    while True: f.append(open('/dev/null'))\nexcept OSError as e: print(e.errno)",
        "24\n",
    ),
    ends(
        "a very deep directory",
        "import os\nfor i in range(3000): os.mkdir('d' * 200); os.chdir('d' * 200)",
        None,
        "exception",
    ),
    ends(
        "a directory nobody may enter",
        "import os\nos.mkdir('/tmp/a'); open('/tmp/a/b', 'w').close(); os.chmod('/tmp/a', 0)",
        None,
    ),
    ends("deep recursion", "def f(): f()\nf()", "exception"),
    ends(
        "recursion without limit",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return [f()]\nf()",
        "exception",
        "memory",
        "time_limit",
    ),
    ends("endless generator", "print(sum(iter(lambda: 1, 2)))", "time_limit"),
    ends("endless big number", "print(9 ** 9 ** 9)", "time_limit", "memory", until_stopped=True),
    ends("regular expression that never ends", "import re; re.match(r'(a+)+$', 'a' * 50 + 'b')", "time_limit"),
    ends("compiler stack", "eval('(' * 5000)", "exception", "syntax"),
    ends("compile time without end", "x = 1" + "\nx = (" + "((" * 90 + "1" + "))" * 90 + ")", None, "syntax"),
    ends(
        "a bomb of constants",
        "x = ((1 << 100000) ** 50) ** 50",
        "time_limit",
        "memory",
        "exception",
        None,
        until_stopped=True,
    ),
]
OUTPUT = [
    ends("flood of stdout", "while True: print('y' * 10_000)", "output_flood"),
    ends("flood of stderr", "import sys\nwhile True: sys.stderr.write('y' * 10_000)", "output_flood"),
    ends(
        "flood by a child", "import os\nif os.fork(): os.wait()\nwhile True: os.write(1, b'y' * 65536)", "output_flood"
    ),
    ends("flood of empty writes", "import os\nwhile True: os.write(1, b'')", "time_limit"),
    ends("close all output", "import os; os.closerange(0, 4096)", None, "exception"),
    ends("stdout is gone", "import sys; sys.stdout.close()", None, "exception"),
    ends("binary junk", "import os; os.write(1, bytes(range(256)) * 100)", None),
    ends("terminal escapes and NULs", "print('\\x1b[2J\\0\\ud800'.encode('utf-8', 'surrogatepass'))", None),
    ends("never read stdin", "import sys; print(sys.stdin.read(), input())", "exception"),
    ends(
        "make the output pipe block",
        "import fcntl, os\nfcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)\nfcntl.fcntl(1, 1031, 4096)\nprint('x' * 10**6)",
        None,
        "exception",
    ),
]
SURVIVORS = [
    ends("setsid daemon", "import subprocess; subprocess.Popen(['sleep', '31536001'], start_new_session=True)", None),
    ends(
        "double fork",
        "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: os.execv('/usr/bin/sleep', ['sleep', '31536001'])\n    os._exit(0)",
        None,
    ),
    ends("nohup in a shell", "import os; os.system('nohup setsid sleep 31536001 >/dev/null 2>&1 &')", None),
    ends(
        "thread that never ends",
        "import threading, time; threading.Thread(target=time.sleep, args=(31536001,)).start()",
        "time_limit",
    ),
    ends("atexit that never ends", "import atexit, time; atexit.register(time.sleep, 31536001)", "time_limit"),
    ends(
        "destructor that never ends",
        "import time\nclass A:\n    def __del__(self, sleep=time.sleep): sleep(31536001)\na = A()",
        "time_limit",
    ),
    ends(
        "daemon thread at the end",
        "import threading\ndef f():\n    while True: pass\nthreading.Thread(target=f, daemon=True).start()",
        None,
    ),
    ends(
        "forks on its way out",
        "import atexit, os, time\natexit.register(lambda: os.fork() or time.sleep(31536001))",
        None,
    ),
    ends(
        "a chain of children that outrun the kill",
        "import os\nwhile True:\n    if os.fork(): os._exit(0)",
        None,
        "time_limit",
    ),
]
NEIGHBOURS = [
    prints(
        "processes of others",
        "import os\nprint(sorted(p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())))",
        "[]\n",
    ),
    prints("files of others", "import os\nprint(os.listdir('/tmp'), os.listdir('/dev/shm'))", "['main.py'] []\n"),
    prints("unix sockets of others", "print(len(open('/proc/net/unix').readlines()))", "1\n"),
    prints(
        "environment of the server", "import os\nprint([k for k in os.environ if 'TOKEN' in k or 'KEY' in k])", "[]\n"
    ),
    prints(
        "mounts of the host",
        # /etc/hosts and /etc/nsswitch.conf are the sandbox's own: they name localhost and nothing else
        "own = ('/etc/hosts', '/etc/nsswitch.conf')\nprint([m for l in open('/proc/mounts') if (m := l.split()[1]).startswith(('/etc', '/home', '/sys', '/run', '/var')) and m not in own])",
        "[]\n",
    ),
    prints(
        "signal the neighbours",
        "import os\ndef reachable(pid):\n    try: os.kill(pid, 0)\n    except OSError: return False\n    return pid != os.getpid()\nprint([p for p in range(1, 70000) if reachable(p)])",
        "[]\n",
    ),
]
ATTACKS = [
    *FILES, *PRIVILEGE, *SYSTEM_CALLS, *NETWORK, *FORGERY, *LEAVE_ALONE, *SIGNALS, *BOMBS, *OUTPUT, *SURVIVORS,
    *NEIGHBOURS,
]  # fmt: skip
