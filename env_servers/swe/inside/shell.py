"""One bash that keeps its directory, variables, functions and $? from command to command, as a terminal does.

    command -> a pipe that bash reads until NUL -> eval -> "status directory NUL" on another pipe
    output  <- stdout and stderr together, without the middle if it is long

A command that is still running when its time is up continues: an empty command returns more of its output, text with
`is_input` goes to its stdin, and C-c ends it. A bash that has ended (exit, set -e, a kill) is started again, and the
output says so.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import Any

KEEP_CHARS = 30_000
"""Bytes of a command's output that are kept."""
FLOOD_BYTES = 32 << 20
"""Bytes of output beyond which a command is ended."""
INTERRUPT_S = 3.0
"""Seconds after SIGINT until a process is killed; fewer if the call itself has less than twice as many."""
STARTS_S = 0.5
"""Seconds in which a bash without child processes may start its next one. After them it counts as busy itself."""
_READ = 1 << 16
# `builtin`, because a command may define functions of these names; `&& :`, so that a trap of ERR is not run there.
_LOOP = (
    '__status() {{ return "$1"; }}; __s=0; while IFS= builtin read -r -d "" __c <&{c}; do __status "$__s" && :;'
    ' builtin eval "$__c" {c}<&- {s}>&-; __s=$?; builtin printf "%d %s\\0" "$__s" "$PWD" >&{s}; done'
)
RESTARTED = "[bash has ended and was started anew: its variables and its directory are gone; files are kept.]"


class Shell:
    """The bash of one session."""

    def __init__(self, directory, env):
        self.directory = directory
        self.env = env
        self.bash: Any = None
        self.running = None

    def _start(self):
        command_r, self.command = os.pipe()
        self.status, status_w = os.pipe()
        stdin_r, self.stdin = os.pipe()
        self.output, output_w = os.pipe()
        self.bash = subprocess.Popen(
            ["/bin/bash", "--norc", "--noprofile", "-c", _LOOP.format(c=command_r, s=status_w)],
            stdin=stdin_r,
            stdout=output_w,
            stderr=output_w,
            pass_fds=(command_r, status_w),
            cwd=self.directory if os.path.isdir(self.directory) else "/tmp",
            env=self.env,
            start_new_session=True,
            preexec_fn=_heed_interrupts,
        )
        for fd in (command_r, status_w, stdin_r, output_w):
            os.close(fd)
        for fd in (self.output, self.status, self.command, self.stdin):
            os.set_blocking(fd, False)

    def stop(self):
        """End bash and everything that it started, except what has left its session."""
        if self.bash is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.bash.pid, signal.SIGKILL)
            self.bash.wait()
            for fd in (self.command, self.status, self.stdin, self.output):
                os.close(fd)
        self.bash = None
        self.running = None

    def run(self, command, is_input, seconds):
        """Run a command, or send input to the running one.

        Args:
            command: The command or input.
            is_input: Whether it is input.
            seconds: Seconds for which its end is awaited.

        Returns:
            The output, and the exit code; None while the command is still running.
        """
        if self.running is not None:
            if is_input:
                return self._input(command, seconds)
            if command.strip():
                busy = f"{self.running[:80]!r} is still running"
                return (
                    (
                        f"[The command is not run: {busy}. End it with C-c and is_input true,"
                        " or wait with an empty command.]"
                    ),
                    None,
                )
            return self._wait(seconds)
        if is_input:
            return "[No command is running that could take input.]", 1
        if self.bash is None or self.bash.poll() is not None:
            self.stop()
            self._start()
        self.running = command
        data = command.replace("\0", "").encode("utf-8", "surrogatepass") + b"\0"
        return self._wait(seconds, data)

    def _input(self, text, seconds):
        if text.strip() in ("C-c", "C-z", "C-d"):
            return self._interrupt(min(INTERRUPT_S, seconds / 2))
        with contextlib.suppress(OSError):
            os.write(self.stdin, text.encode("utf-8", "surrogatepass") + b"\n")
        return self._wait(seconds)

    def _interrupt(self, seconds):
        """End the running command by SIGINT within `seconds`, else by SIGKILL within as many more."""
        text, code = self._send_interrupts(seconds)
        if code is None:
            for pid in _descendants(self.bash.pid):
                _kill(pid, signal.SIGKILL)
            more, code = self._wait(seconds)
            text += more
        if code is None:  # bash itself is busy
            self.stop()
            return f"{text}\n{RESTARTED}", 130
        return text, code

    def _send_interrupts(self, seconds):
        """Send SIGINT to everything below bash for at most `seconds`, including processes that it starts meanwhile.

        It is sent a second time after half of the time, because a process that is just being started may lose the
        first one. A bash without child processes is about to start one, or is busy itself: it gets a part of the time.
        """
        start = time.monotonic()
        repeated = False
        signalled: set[int] = set()
        text = ""
        code = None
        while code is None and time.monotonic() - start < (seconds if signalled else min(STARTS_S, seconds)):
            if not repeated and time.monotonic() - start > seconds / 2:
                signalled = set()
                repeated = True
            for pid in _descendants(self.bash.pid):
                if pid not in signalled:
                    _kill(pid, signal.SIGINT)
                signalled.add(pid)
            more, code = self._wait(0.1)
            text += more
        return text, code

    def _wait(self, seconds, data=b""):
        """Feed the command, and read its output until bash has reported its end, or `seconds` are over."""
        captured = _CapturedOutput()
        report = b""
        deadline = time.monotonic() + seconds
        while True:
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                return captured.text(), None
            poll = select.poll()
            poll.register(self.output, select.POLLIN)
            poll.register(self.status, select.POLLIN)
            if data:
                poll.register(self.command, select.POLLOUT)
            ready = dict(poll.poll(seconds_left * 1000))
            if self.command in ready:
                try:
                    data = data[os.write(self.command, data) :]
                except BlockingIOError:
                    pass
                except OSError:
                    data = b""
            if self.output in ready:
                with contextlib.suppress(BlockingIOError):
                    captured.add(os.read(self.output, _READ))
                if captured.total > FLOOD_BYTES:
                    self.stop()
                    return (
                        (
                            f"{captured.text()}\n[More than {FLOOD_BYTES >> 20} MiB of output:"
                            f" the command was ended.]\n{RESTARTED}"
                        ),
                        137,
                    )
            if self.status in ready:
                part = os.read(self.status, 4096)
                report += part
                if not part or report.endswith(b"\0"):
                    return self._ended(captured, report if part else b"")

    def _ended(self, captured, report):
        """Read the remaining output of a command that has ended. `report` is empty if bash itself has ended."""
        while self._pending():
            part = os.read(self.output, _READ)
            if not part:
                break
            captured.add(part)
        self.running = None
        if not report:
            self.stop()
            return f"{captured.text()}\n{RESTARTED}".lstrip("\n"), 1
        status, _, directory = report[:-1].decode("utf-8", "surrogateescape").partition(" ")
        self.directory = directory
        return captured.text(), int(status) if status.isdigit() else 1

    def _pending(self):
        poll = select.poll()
        poll.register(self.output, select.POLLIN)
        return any(event & select.POLLIN for _, event in poll.poll(0))


class _CapturedOutput:
    """The first and the last KEEP_CHARS / 2 bytes of an output."""

    def __init__(self):
        self.head = b""
        self.tail = b""
        self.total = 0

    def add(self, part):
        self.total += len(part)
        room = KEEP_CHARS // 2 - len(self.head)
        if room > 0:
            self.head += part[:room]
            part = part[room:]
        self.tail = (self.tail + part)[-(KEEP_CHARS // 2) :]

    def text(self):
        left_out = self.total - len(self.head) - len(self.tail)
        middle = f"\n[... {left_out} bytes left out ...]\n" if left_out else ""
        return self.head.decode("utf-8", "replace") + middle + self.tail.decode("utf-8", "replace")


def _heed_interrupts():
    """Restore SIGINT. A server that a script has started in the background ignores it, and so would everything it
    starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _kill(pid, number):
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _descendants(pid):
    """Return the process ids of everything below a process."""
    descendants = []
    parents = [pid]
    while parents:
        parent = parents.pop()
        with contextlib.suppress(OSError, ValueError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as f:
                    children = [int(child) for child in f.read().split()]
                descendants += children
                parents += children
    return descendants
