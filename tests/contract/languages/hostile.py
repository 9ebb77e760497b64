"""Hostile programs in bash, C++ and JavaScript for /run_code, each with what shows that it was contained. Kinds of
proof:

    prints(...)     it reports what it could do, and the report is exactly this
    fails(...)      it, or its compiler, does not get through: a return code that is not 0, or it is stopped
    stopped(...)    the sandbox ends it, or its compiler, with one of these words: a status, or the last line of stderr
    no_program(...) its compiler fails or is stopped
    survives(...)   it ends by itself or is stopped; that nothing of it is left is the business of
                    `test_hostile_languages`

"{port}" in a program is the server's own. They run in any order, side by side; `TOOLS` says what each needs."""
# ruff: noqa: E501 - one attack, one line

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Reply = dict[str, Any]
SHORT = {language: {"run_timeout": 1} for language in ("bash", "cpp")}
"""Time limit, in seconds, of a program that may go on until it is stopped, in languages that start within milliseconds.
Node alone may need a second on a busy machine."""
TOOLS = {"bash": "bash", "cpp": "g++", "nodejs": "node"}
TIME, MEMORY, FLOOD = "TimeLimitExceeded", "MemoryLimitExceeded", "OutputLimitExceeded"


@dataclass(frozen=True, slots=True)
class Attack:
    language: str
    name: str
    code: str
    contained: Callable[[Reply], bool]
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of the request, besides code and language."""


def last(reply: Reply) -> dict[str, Any]:
    """The result of what ran last: the program, or its compiler."""
    return reply["run_result"] or reply["compile_result"]


def words(reply: Reply) -> set[str]:
    result = last(reply)
    return {result["status"], (result["stderr"] or "").rstrip().rpartition("\n")[2]}


def prints(language: str, name: str, code: str, stdout: str, **fields: Any) -> Attack:
    return Attack(
        language,
        name,
        code,
        lambda r: r["run_result"] is not None and r["run_result"]["stdout"] == stdout and not r["files"],
        fields,
    )


def fails(language: str, name: str, code: str, **fields: Any) -> Attack:
    return Attack(
        language,
        name,
        code,
        lambda r: r["status"] == "Failed" and last(r)["return_code"] != 0 and "ESCAPED" not in str(r),
        fields,
    )


def stopped(language: str, name: str, code: str, *by: str, **fields: Any) -> Attack:
    if by == (TIME,):
        fields = SHORT.get(language, {}) | fields
    return Attack(language, name, code, lambda r: r["status"] == "Failed" and bool(words(r) & set(by)), fields)


def survives(language: str, name: str, code: str, **fields: Any) -> Attack:
    return Attack(
        language,
        name,
        code,
        lambda r: r["status"] in ("Success", "Failed") and "ESCAPED" not in str(r),
        SHORT.get(language, {}) | fields,
    )


def no_program(language: str, name: str, code: str, **fields: Any) -> Attack:
    return Attack(language, name, code, lambda r: r["status"] == "Failed" and r["run_result"] is None, fields)


def c_main(body: str) -> str:
    """Prints ESCAPED where `body`, an expression, is true."""
    headers = "unistd.h sys/mount.h sys/ptrace.h sys/prctl.h sys/resource.h sys/socket.h sys/syscall.h sys/wait.h sys/mman.h sched.h signal.h fcntl.h stdio.h stdlib.h string.h arpa/inet.h sys/stat.h"
    return (
        "".join(f"#include <{name}>\n" for name in headers.split())
        + f'int main() {{ puts({body} ? "ESCAPED" : "refused"); }}\n'
    )


BASH = [
    *[
        fails("bash", f"read {path}", f"cat {path} && echo ESCAPED")
        for path in (
            "/etc/shadow",
            "/etc/passwd",
            "/root/.bashrc",
            "/proc/1/environ",
            "/proc/1/root/etc/shadow",
            "/dev/mem",
        )
    ],
    *[
        fails("bash", f"write {path}", f"echo x > {path} && echo ESCAPED")
        for path in (
            "/usr/bin/x",
            "/bin/bash",
            "/etc/x",
            "/etc/alternatives/awk",
            "/x",
            "/proc/sys/kernel/core_pattern",
        )
    ],
    fails("bash", "replace a link to a program", "ln -sf /tmp/main.sh /etc/alternatives/awk && echo ESCAPED"),
    fails("bash", "the server's port", "exec 3<>/dev/tcp/127.0.0.1/{port} && echo ESCAPED"),
    fails("bash", "the network", "exec 3<>/dev/tcp/1.1.1.1/53 && echo ESCAPED"),
    fails("bash", "new namespaces", "unshare -Ur id && echo ESCAPED"),
    fails("bash", "mount", "mount -t tmpfs none /tmp && echo ESCAPED"),
    fails("bash", "become root", "su -c id root </dev/null && echo ESCAPED"),
    fails("bash", "raise a limit", "ulimit -u unlimited && echo ESCAPED"),
    prints("bash", "capabilities", "grep -c 'Cap.*:.*[1-9a-f]' /proc/self/status", "0\n"),
    prints(
        "bash",
        "processes of others",
        "for p in /proc/[0-9]*; do p=${p#/proc/}; [ $p = 1 ] || [ $p = $$ ] || echo $p; done",
        "",
    ),
    survives("bash", "fork bomb", "f() { f | f & }; f; echo begun"),
    survives("bash", "fork bomb that waits", "f() { f | f; }; f"),
    stopped("bash", "flood of yes", "yes", FLOOD),
    stopped("bash", "flood of stderr by many", "for i in 1 2 3 4; do yes >&2 & done; wait", FLOOD),
    fails("bash", "a string that doubles", "a=xxxxxxxx; while :; do a=$a$a; done"),
    stopped(
        "bash",
        "memory of many processes",
        "for i in $(seq 12); do (a=$(head -c 60000000 /dev/zero | tr '\\0' x); sleep 60) & done; wait",
        MEMORY,
        run_timeout=20,
    ),
    stopped("bash", "deaf to every signal", "trap '' TERM INT HUP QUIT; while :; do sleep 100; done", TIME),
    stopped("bash", "busy for ever", "while :; do :; done", TIME),
    survives("bash", "kill everybody", "kill -9 -1"),
    survives("bash", "kill everybody while files are fetched", "kill -9 -1", fetch_files=["x"]),
    survives("bash", "setsid survivor", "setsid sleep 31536002 & disown; echo left"),
    survives("bash", "nohup survivor", "nohup setsid bash -c 'trap \"\" TERM HUP; sleep 31536002' >/dev/null 2>&1 &"),
    survives("bash", "a chain that outruns the kill", "echo 'bash $0 & exit' > c; bash c"),
    fails("bash", "fill the disk", "head -c 200000000 /dev/zero > f && echo ESCAPED"),
    fails(
        "bash",
        "fill the disk by many files",
        "set -e; for i in $(seq 20); do head -c 8000000 /dev/zero > f$i; done; echo ESCAPED",
    ),
    fails(
        "bash",
        "use up inodes",
        "set -e; mkdir d; cd d; for i in {1..40000}; do : > $i; done; echo ESCAPED",
        run_timeout=20,
    ),
    prints(
        "bash",
        "symlinks out of the returned files",
        "ln -s /etc/shadow a; ln -s /proc/1/environ b; ln -s / c; ln -s ../../root/.bashrc d",
        "",
        fetch_files=["a", "b", "c/etc/shadow", "d"],
    ),
    prints(
        "bash",
        "a fifo and devices as returned files",
        "mkfifo a; ln -s /dev/zero b; ln -s /dev/full c; mkdir d",
        "",
        fetch_files=["a", "b", "c", "d"],
    ),
    survives(
        "bash",
        "an endless returned file",
        "ln -s /proc/self/mem a; : > b; (while :; do echo x >> b; done) & sleep 0.1",
        fetch_files=["a", "b"],
    ),
    prints("bash", "what another call has left", "ls -A /tmp /dev/shm | grep -v : ", "\nmain.sh\n"),
    prints("bash", "the server's environment", "env | grep -c 'TOKEN\\|KEY\\|SECRET'", "0\n"),
]
CPP = [
    fails("cpp", "include the host's files", '#include "/etc/passwd"\nint main() {}'),
    fails("cpp", "put a host file into the program", 'asm(".incbin \\"/etc/shadow\\""); int main() {}'),
    fails("cpp", "include an endless device", '#include "/dev/zero"\nint main() {}', compile_timeout=1),
    no_program("cpp", "include itself", "#include __FILE__\nint main() {}", compile_timeout=1),
    no_program(
        "cpp",
        "templates without end",
        "template <class T> struct A { typedef typename A<A<T>>::t t; }; A<int>::t x; int main() {}",
        compile_timeout=1,
    ),
    no_program(
        "cpp",
        "macros that double",
        "".join(f"#define M{i} M{i - 1} M{i - 1}\n" for i in range(1, 40))
        + "#define M0 +1\nint x = M39; int main() {}",
        compile_timeout=1,
    ),
    fails("cpp", "an object file of gigabytes", "char a[1ull << 32] = {1}; int main() {}", compile_timeout=20),
    no_program(
        "cpp",
        "a flood of errors",
        "template <int N> int f() { return undefined(N) + f<N - 1>(); }\n" * 2000 + "int main() { return f<900>(); }",
        compile_timeout=2,
    ),
    *[
        prints("cpp", name, c_main(body), "refused\n")
        for name, body in {
            "read the host": 'open("/etc/shadow", O_RDONLY) >= 0 || open("/proc/1/mem", O_RDONLY) >= 0',
            "new user namespace": "unshare(CLONE_NEWUSER) == 0 || syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) >= 0",
            "mount and chroot": 'mount("none", "/tmp", "tmpfs", 0, "") == 0 || chroot("/tmp") == 0',
            "trace and become another": 'ptrace(PTRACE_ATTACH, getppid(), 0, 0) == 0 || setuid(0) == 0 && getuid() == 0 && geteuid() == 0 && open("/proc/1/mem", O_RDWR) >= 0',
            "sockets of other families": "socket(AF_NETLINK, SOCK_RAW, 0) >= 0 || socket(AF_INET, SOCK_RAW, 1) >= 0 || socket(40, SOCK_STREAM, 0) >= 0 || socket(AF_PACKET, SOCK_RAW, 0) >= 0",
            "a limit of one's own": "[] { rlimit l = {RLIM_INFINITY, RLIM_INFINITY}; return setrlimit(RLIMIT_NPROC, &l) == 0 || setrlimit(RLIMIT_AS, &l) == 0; }()",
            "memory nobody counts": 'syscall(SYS_memfd_create, "x", 0) >= 0 || mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0) != MAP_FAILED || syscall(SYS_shmget, 0, 1 << 20, 01600) >= 0',
            "io_uring, bpf, perf, keys": 'syscall(425, 8, 0) >= 0 || syscall(SYS_bpf, 0, 0, 0) >= 0 || syscall(SYS_perf_event_open, 0, 0, -1, -1, 0) >= 0 || syscall(SYS_add_key, "user", "x", "y", 1, -4) >= 0',
            "signal the outside": "kill(1, SIGKILL) == 0 && (sleep(1), false)",
            "descriptors of the server": "[] { for (int fd = 3; fd < 1024; fd++) if (fcntl(fd, F_GETFD) >= 0) return true; return false; }()",
            "the server's port": '[] { sockaddr_in a = {}; a.sin_family = AF_INET; a.sin_port = htons({port}); inet_pton(AF_INET, "127.0.0.1", &a.sin_addr); return connect(socket(AF_INET, SOCK_STREAM, 0), (sockaddr *)&a, sizeof a) == 0; }()',
            "a set-uid program": '[] { chmod("/tmp/main", 04755); struct stat s; return stat("/tmp/main", &s) == 0 && s.st_uid == 0 && geteuid() == 0 && open("/etc/shadow", O_RDONLY) >= 0; }()',
        }.items()
    ],
    survives("cpp", "fork bomb", "#include <unistd.h>\nint main() { for (;;) fork(); }"),
    survives(
        "cpp",
        "a chain of children",
        "#include <unistd.h>\n#include <stdlib.h>\nint main() { for (;;) if (fork()) _exit(0); }",
    ),
    survives(
        "cpp", "thread bomb", "#include <thread>\nint main() { for (;;) std::thread([] { for (;;) ; }).detach(); }"
    ),
    stopped(
        "cpp",
        "memory of many processes",
        "#include <unistd.h>\n#include <stdlib.h>\n#include <string.h>\nint main() { for (int i = 0; i < 40; i++) if (!fork()) { memset(malloc(60 << 20), 1, 60 << 20); pause(); } pause(); }",
        MEMORY,
        run_timeout=20,
    ),
    fails(
        "cpp",
        "memory of one process",
        "#include <stdlib.h>\n#include <string.h>\nint main() { for (;;) { char *p = (char *)malloc(1 << 20); memset(p, 1, 1 << 20); } }",
    ),
    fails(
        "cpp",
        "a stack without end",
        "int f(int n) { volatile char a[4096]; a[0] = n; return f(n + 1) + a[0]; } int main() { return f(0); }",
    ),
    stopped(
        "cpp",
        "a flood of output",
        "#include <unistd.h>\nchar b[65536]; int main() { for (;;) write(1, b, sizeof b); }",
        FLOOD,
    ),
    stopped(
        "cpp",
        "deaf and busy",
        "#include <signal.h>\nint main() { for (int i = 1; i < 65; i++) signal(i, SIG_IGN); for (;;) ; }",
        TIME,
    ),
    survives(
        "cpp",
        "a daemon",
        '#include <unistd.h>\nint main() { if (!fork()) { setsid(); if (!fork()) execl("/usr/bin/sleep", "sleep", "31536002", (char *)0); } }',
    ),
    prints(
        "cpp",
        "symlinks out of the returned files",
        '#include <unistd.h>\nint main() { symlink("/etc/shadow", "a"); symlink("/proc/1/environ", "b"); symlink("/", "c"); }',
        "",
        fetch_files=["a", "b", "c/etc/shadow"],
    ),
    survives(
        "cpp",
        "32-bit system calls",
        'int main() { int r; asm volatile("int $0x80" : "=a"(r) : "a"(21), "b"(0), "c"(0), "d"(0)); return r == 0; }',
    ),
]
NODE = [
    *[
        fails("nodejs", f"read {path}", f"require('fs').readFileSync({path!r}); console.log('ESCAPED')")
        for path in ("/etc/shadow", "/root/.bashrc", "/proc/1/environ")
    ],
    fails("nodejs", "write to the host", "require('fs').writeFileSync('/usr/x', ''); console.log('ESCAPED')"),
    prints(
        "nodejs",
        "the server's port",
        "require('net').connect({port}, '127.0.0.1').on('error', () => console.log('refused')).on('connect', () => console.log('ESCAPED'))",
        "refused\n",
    ),
    prints(
        "nodejs",
        "the network",
        "require('dns').lookup('example.com', e => console.log(e ? 'refused' : 'ESCAPED'))",
        "refused\n",
        run_timeout=10,
    ),
    fails("nodejs", "buffers without end", "const a = []; for (;;) a.push(Buffer.alloc(1 << 24, 1))", run_timeout=20),
    fails("nodejs", "a heap without end", "const a = []; for (;;) a.push({a: [a.length]})", run_timeout=20),
    stopped("nodejs", "a loop without end", "for (;;) ;", TIME),
    stopped("nodejs", "a flood of output", "for (;;) require('fs').writeSync(1, 'y'.repeat(65536))", FLOOD),
    survives(
        "nodejs",
        "workers without end",
        "const { Worker } = require('worker_threads'); const f = () => { for (;;) new Worker('for (;;) ;', { eval: true }); }; f()",
    ),
    survives(
        "nodejs",
        "children without end",
        "const { spawn } = require('child_process'); for (let i = 0; i < 500; i++) spawn('sleep', ['31536002'], { detached: true, stdio: 'ignore' }).on('error', () => {}).unref()",
    ),
    survives(
        "nodejs",
        "a detached child",
        "require('child_process').spawn('sleep', ['31536002'], { detached: true, stdio: 'ignore' }).unref()",
    ),
    survives("nodejs", "kill everybody", "process.kill(-1, 'SIGKILL')"),
    prints(
        "nodejs",
        "symlinks out of the returned files",
        "const fs = require('fs'); fs.symlinkSync('/etc/shadow', 'a'); fs.symlinkSync('/', 'c')",
        "",
        fetch_files=["a", "c/etc/shadow"],
    ),
    prints(
        "nodejs",
        "the server's environment",
        "console.log(Object.keys(process.env).filter(k => /TOKEN|KEY|SECRET/.test(k)).length)",
        "0\n",
    ),
]
ATTACKS = [*BASH, *CPP, *NODE]
