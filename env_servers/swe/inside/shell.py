"""Shell: one bash that keeps its directory, variables and functions from command to command, as a terminal does.

    command -> a pipe that bash reads until NUL -> eval -> "status directory NUL" on another pipe
    output  <- stdout and stderr together, the middle left out when it is long

A command that is still running when its time is up goes on: more of its output comes for an empty command, text for its
stdin with `is_input`, and C-c ends it. A bash that ended (exit, set -e, a kill) starts anew, and the output says so."""

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import Any

KEEP_CHARS = 30_000
FLOOD_BYTES = 32 << 20
INTERRUPT_S = 3.0
"""How long what gets SIGINT may take to end before it is killed."""
STARTS_S = 0.5
"""How long a bash with nothing below it may take to start its next process, before it counts as busy itself."""
_READ = 1 << 16
_LOOP = 'while IFS= read -r -d "" __c <&{c}; do eval "$__c" {c}<&- {s}>&-; printf "%d %s\\0" $? "$PWD" >&{s}; done'
RESTARTED = "[bash has ended and was started anew: its variables and its directory are gone; files are kept.]"


class Shell:
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
        """End bash and what it started, but for what has left its session."""
        if self.bash is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.bash.pid, signal.SIGKILL)
            self.bash.wait()
            for fd in (self.command, self.status, self.stdin, self.output):
                os.close(fd)
        self.bash = None
        self.running = None

    def run(self, command, is_input, seconds):
        """(output, exit code; None while it runs on)."""
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
            return self._interrupt()
        with contextlib.suppress(OSError):
            os.write(self.stdin, text.encode("utf-8", "surrogatepass") + b"\n")
        return self._wait(seconds)

    def _interrupt(self):
        text, code = self._asked_to_end()
        if code is None:
            for pid in _descendants(self.bash.pid):
                _kill(pid, signal.SIGKILL)
            more, code = self._wait(INTERRUPT_S)
            text += more
        if code is None:  # bash itself is busy
            self.stop()
            return f"{text}\n{RESTARTED}", 130
        return text, code

    def _asked_to_end(self):
        """SIGINT for everything below bash, also for what it starts meanwhile; once more after half of the time, since
        a process that is just being started may lose the first. A bash without a process below it is about to start
        one, or is busy itself: it gets a part of the time."""
        begun = time.monotonic()
        again = False
        asked: set[int] = set()
        text = ""
        code = None
        while code is None and time.monotonic() - begun < (INTERRUPT_S if asked else STARTS_S):
            if not again and time.monotonic() - begun > INTERRUPT_S / 2:
                asked = set()
                again = True
            for pid in _descendants(self.bash.pid):
                if pid not in asked:
                    _kill(pid, signal.SIGINT)
                asked.add(pid)
            more, code = self._wait(0.1)
            text += more
        return text, code

    def _wait(self, seconds, data=b""):
        """Feed the command, read what comes until bash has said how it ended, or `seconds` are over."""
        kept = _Kept()
        word = b""
        give_up = time.monotonic() + seconds
        while True:
            left = give_up - time.monotonic()
            if left <= 0:
                return kept.text(), None
            poll = select.poll()
            poll.register(self.output, select.POLLIN)
            poll.register(self.status, select.POLLIN)
            if data:
                poll.register(self.command, select.POLLOUT)
            ready = dict(poll.poll(left * 1000))
            if self.command in ready:
                try:
                    data = data[os.write(self.command, data) :]
                except BlockingIOError:
                    pass
                except OSError:
                    data = b""
            if self.output in ready:
                with contextlib.suppress(BlockingIOError):
                    kept.add(os.read(self.output, _READ))
                if kept.total > FLOOD_BYTES:
                    self.stop()
                    return (
                        (
                            f"{kept.text()}\n[More than {FLOOD_BYTES >> 20} MiB of output:"
                            f" the command was ended.]\n{RESTARTED}"
                        ),
                        137,
                    )
            if self.status in ready:
                part = os.read(self.status, 4096)
                word += part
                if not part or word.endswith(b"\0"):
                    return self._ended(kept, word if part else b"")

    def _ended(self, kept, word):
        while self._pending():
            part = os.read(self.output, _READ)
            if not part:
                break
            kept.add(part)
        self.running = None
        if not word:
            self.stop()
            return f"{kept.text()}\n{RESTARTED}".lstrip("\n"), 1
        status, _, directory = word[:-1].decode("utf-8", "surrogateescape").partition(" ")
        self.directory = directory
        return kept.text(), int(status) if status.isdigit() else 1

    def _pending(self):
        poll = select.poll()
        poll.register(self.output, select.POLLIN)
        return any(how & select.POLLIN for _, how in poll.poll(0))


class _Kept:
    """The first and the last KEEP_CHARS / 2 of what comes."""

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
    """A server that a script has started in the background ignores SIGINT, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _kill(pid, number):
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def _descendants(pid):
    found = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        with contextlib.suppress(OSError, ValueError):
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as f:
                    children = [int(child) for child in f.read().split()]
                found += children
                todo += children
    return found
