"""The interpreter of a session. It runs one cell after another in one namespace, `__main__`, until it is ended.

    from its slot   "<id>" with descriptors: the cell's source, stdout, stderr
    to its slot     "up" once; then "<id> <exit code> <report>" for each cell; report: R it ran, RS it does not compile

A cell behaves as a script: it has its own traceback, sys.exit ends the cell (not the session), stdin is at its end.
With `echo_last` a last line that is an expression is shown as a prompt would show it. Tracebacks and `inspect` find the
source lines of all cells. Unlike in a script, atexit functions never run, there is no `__file__`, and the output of a
thread belongs to the cell that runs.
"""

import ast
import builtins
import linecache
import os
import socket
import sys
import traceback

SOCKET_FD = 3
_close = os.close
_dup2 = os.dup2
_exit = os._exit
_getpid = os.getpid
_FD_BYTES = 4
_ORDER = sys.byteorder
_compile_ast = ast.PyCF_ONLY_AST
_print_exception = traceback.print_exception
_lines = linecache.cache
"""Names that are needed after a cell. They are taken before the first cell, which may replace any attribute of any
module."""
FRAMES = 7
"""Frames of this file below a cell. With them added to the limit, recursion ends where it does in a script."""


class Notebook:
    """The interpreter of one session."""

    def __init__(self, slot, channel, slot_module, options):
        self.slot = slot
        self.channel = channel
        self.slot_module = slot_module
        self.options = options
        self.count = 0

    def prepare(self, runner):
        """Give up everything except the channel to the slot. Returns None: there is no source yet."""
        slot = self.slot
        module = self.slot_module
        os.setsid()
        slot.socket.detach()
        null = os.open("/dev/null", os.O_WRONLY)
        module.keep_descriptors({0: module.new_stdin(), 1: null, 2: null, SOCKET_FD: self.channel.detach()})
        self.channel = socket.socket(fileno=SOCKET_FD)
        module.give_up_rights(slot)
        os.chdir("/tmp")
        runner.limit(self.options["session_limits"], {"AS": slot.own_size})
        sys.argv[:] = [""]
        sys.path[:0] = ["/tmp"]
        main = sys.modules["__main__"] = type(sys)("__main__")
        runner.script_names(builtins)
        self.namespace = main.__dict__
        self.exit_code = runner.exit_code
        self.namespace["__builtins__"] = builtins
        self.streams = sys.stdout, sys.stderr
        sys.setrecursionlimit(sys.getrecursionlimit() + FRAMES)
        return None

    def converse(self):
        """Run cells until the slot closes the channel. Does not return: an error in this method ends the session."""
        own_pid = _getpid()
        receive = self.channel.recvmsg
        send = self.channel.send
        room = socket.CMSG_SPACE(3 * _FD_BYTES)
        try:
            self.channel.send(b"up")
            while True:
                request, ancillary, _, _ = receive(64, room)
                if not request:
                    break
                numbers = b"".join(data for _, _, data in ancillary)
                source = self._take(
                    [int.from_bytes(numbers[i : i + _FD_BYTES], _ORDER) for i in range(0, len(numbers), _FD_BYTES)]
                )
                code, report = self._run(source)
                self._flush()
                if _getpid() != own_pid:
                    _exit(code)  # a fork of the cell that has reached its end must not serve as a second notebook
                send(b"%s %d %s" % (request, code, report))
        finally:
            _exit(1)

    def _take(self, descriptors):
        """Return the source of a cell, and make its output streams stdout and stderr."""
        source, out, err = descriptors
        code = self.slot_module.read_all(source)
        _dup2(out, 1)
        _dup2(err, 2)
        for fd in descriptors:
            _close(fd)
        sys.stdout, sys.stderr = self.streams
        return code

    def _run(self, source):
        """Run a cell and return its exit code and report."""
        self.count += 1
        name = f"<cell {self.count}>"
        # without a last newline the markers under the last line would be one column off
        text = source.decode("utf-8", "replace") + "\n"
        _lines[name] = len(text), None, text.splitlines(True), name
        try:
            parts = _compile(source, name, self.options["echo_last"])
        except BaseException as e:
            _print_exception(e.with_traceback(None))
            return 1, b"RS"
        try:
            for part in parts:
                exec(part, self.namespace)
        except SystemExit as e:
            return self.exit_code(e.code), b"R"
        except BaseException as e:
            _print_exception(e.with_traceback(e.__traceback__ and e.__traceback__.tb_next))
            return 1, b"R"
        return 0, b"R"

    def _flush(self):
        """Flush stdout and stderr. Streams that the cell has closed are opened again for the next one."""
        self.streams = tuple(_flushed(stream, fd) for stream, fd in zip(self.streams, (1, 2), strict=True))


def _compile(source, name, echo_last):
    """Return the code objects of a cell. A last expression is one of its own, in the mode that shows its value."""
    if not echo_last:
        return [compile(source, name, "exec", dont_inherit=True)]
    tree = compile(source, name, "exec", _compile_ast, dont_inherit=True)
    last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
    return [
        compile(tree, name, "exec", dont_inherit=True),
        *(compile(ast.Interactive([e]), name, "single", dont_inherit=True) for e in last),
    ]


def _flushed(stream, fd):
    try:
        stream.flush()
        return stream
    except ValueError:  # closed
        return open(fd, "w", encoding="utf-8", closefd=False)
    except OSError:  # nobody reads the pipe any more
        return stream
