"""Examiner: runs hidden tests with pytest. What they import of the repository are stand-ins, each of which asks the
subject over a socket.

    from roman import to_roman      -> ["import", "roman"], ["get", ...]
    to_roman(4) == "IV"             -> ["call", ...] -> "IV", compared here

No line of the code under test runs here, so nothing it does can reach the tests, their report or pytest. A stand-in is
equal to another one when the subject says so, and to a plain value never. A subject that has ended fails what comes
after.
"""

import builtins
import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import socket
import sys
import types

import pytest

MOST_FAILURES = 12
MOST_TEXT = 800
_ours: dict[str, type] = {}
"""Exception types of the code under test -> ours in their place."""


class Link:
    """The conversation. One at a time, as the tests are."""

    def __init__(self, wire, channel):
        self.wire, self.channel, self.functions = wire, channel, []

    def ask(self, what, *values):
        """The answer. Raises what the code under test raised, as ours; SubjectLost where there is no answer."""
        try:
            how, value = self._answer(what, values)
        except Exception as e:
            raise SubjectLost(f"{type(e).__name__}: {e}") from None
        if how == "raises":
            raise value
        return value

    def _answer(self, what, values):
        self.wire.send(self.channel, [what, *(v if what == "import" else self.encode(v) for v in values)])
        while True:
            how, *rest = self.wire.receive(self.channel)
            if how == "is":
                return how, self.decode(rest[0])
            if how == "raises":
                return how, self.error(*rest[0])
            if how != "callback":
                raise ValueError(f"{str(how)[:20]!r} is no answer")
            self.wire.send(self.channel, self.called(*rest))

    def called(self, number, args, kwargs):
        try:
            return ["is", self.encode(self.functions[number](*self.decode(args), **self.decode(kwargs)))]
        except Exception as e:
            return ["raises", [type(e).__name__, str(e)]]

    def encode(self, value):
        return self.wire.encode(value, self.refer)

    def refer(self, value):
        if isinstance(value, RemoteModule | Remote):
            return ["own", vars(value)["_number"]]
        if isinstance(value, type) and issubclass(value, BaseException) and "_number" in vars(value):
            return ["own", vars(value)["_number"]]
        if callable(value):
            self.functions.append(value)
            return ["object", len(self.functions) - 1, "function"]
        raise TypeError(f"a {type(value).__name__} cannot be sent to the code under test")

    def decode(self, value):
        return self.wire.decode(value, self.resolve)

    def resolve(self, kind, number, *rest):
        if kind == "object" and type(number) is int:
            return Remote(self, number, str(rest[0]))
        if kind == "exception type" and type(number) is int:
            ours = exception_type(rest[0])
            if ours.__module__ != "builtins":
                ours._number = number
            return ours
        raise ValueError(f"{kind} is no kind of value")

    def error(self, names, text, args, kept):
        kind = exception_type(names)
        values = self.decode(args)
        error = kind(*values)
        error.args = values
        for name, value in kept.items():
            if not name.startswith("_"):
                setattr(error, name, self.decode(value))
        if kind.__module__ != "builtins":
            error._text = str(text)
        return error


class SubjectLost(Exception):
    """The code under test has ended its process, or speaks no sense."""


def exception_type(names):
    """Ours for [[module, name], ...], an exception's type and its bases: built-in ones are themselves, if they cannot
    end this process."""
    module, name = names[0]
    if module == "builtins":
        found = getattr(builtins, name, None)
        if isinstance(found, type) and issubclass(found, Exception):
            return found
        return _OfSubject
    key = json.dumps(names)
    if key not in _ours:
        parent = exception_type(names[1:])
        _ours[key] = type(
            str(name),
            (parent,),
            {"__module__": str(module), "__str__": lambda self: self._text, "_text": "", "__init__": _keep_args},
        )
    return _ours[key]


def _keep_args(self, *args):
    self.args = args


class _OfSubject(Exception):
    """SystemExit, KeyboardInterrupt and the like, of the code under test: nothing here ends by them."""


def _operator(name):
    return lambda self, *args: self._link.ask("do", name, (self, *args))


def _reflected(name):
    return lambda self, other: self._link.ask("do", name, (other, self))


def _of_type(name, kind):
    def method(self):
        value = self._link.ask("do", name, (self,))
        if type(value) is not kind:
            raise TypeError(f"{name}() of the code under test gave no {kind.__name__}")
        return value

    return method


class Remote:
    """A stand-in for an object of the code under test."""

    def __init__(self, link, number, kind):
        vars(self).update(_link=link, _number=number, _kind=kind)

    def __getattr__(self, name):
        return self._link.ask("get", self, name)

    def __setattr__(self, name, value):
        self._link.ask("set", self, name, value)

    def __call__(self, *args, **kwargs):
        return self._link.ask("call", self, args, kwargs)

    def __eq__(self, other):
        return isinstance(other, Remote) and self._link.ask("do", "eq", (self, other)) is True

    def __ne__(self, other):
        return not isinstance(other, Remote) or self._link.ask("do", "ne", (self, other)) is True

    def __enter__(self):
        return self._link.ask("do", "enter", (self,))

    def __exit__(self, kind, error, trace):
        return self._link.ask("do", "exit", (self,)) is True

    def __instancecheck__(self, value):
        return isinstance(value, Remote) and self._link.ask("do", "isinstance", (value, self)) is True

    __hash__ = _of_type("hash", int)
    __bool__, __str__, __repr__ = _of_type("bool", bool), _of_type("str", str), _of_type("repr", str)
    __len__ = _of_type("len", int)
    __int__, __float__ = _of_type("int", int), _of_type("float", float)


_COMPARED, _COUNTED = ("lt", "le", "gt", "ge"), ("neg", "pos", "invert", "abs", "round")
_REFLECTED = ("add", "sub", "mul", "truediv", "floordiv", "mod")
_HELD = ("contains", "getitem", "setitem", "delitem", "iter", "next", "reversed")
for _name in (*_COMPARED, *_COUNTED, *_REFLECTED, *_HELD, "pow", "matmul"):
    setattr(Remote, f"__{_name}__", _operator(_name))
for _name in ("and", "or", "xor"):
    setattr(Remote, f"__{_name}__", _operator(_name + "_"))
for _name in _REFLECTED:
    setattr(Remote, f"__r{_name}__", _reflected(_name))


class RemoteModule(types.ModuleType):
    """A module of the code under test."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(self)["_link"].ask("get", self, name)


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, link, packages):
        self.link, self.packages = link, packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        found = self.link.ask("import", spec.name)
        if not isinstance(found, Remote):
            raise ImportError(f"{spec.name} is no module of the code under test")
        module = RemoteModule(spec.name)
        vars(module).update(_link=self.link, _number=vars(found)["_number"])
        return module

    def exec_module(self, module):
        pass


class Collector:
    """pytest's plugin: test -> passed, failed or skipped, and what the first failures say."""

    def __init__(self):
        self.tests, self.failures = {}, {}

    def pytest_runtest_logreport(self, report):
        name = report.nodeid
        if report.when == "call" or report.outcome != "passed":
            self.tests[name] = report.outcome if self.tests.get(name) != "failed" else "failed"
        if report.failed:
            self.note(name, report)

    def pytest_collectreport(self, report):
        if report.failed:
            self.tests[report.nodeid or "collection"] = "failed"
            self.note(report.nodeid or "collection", report)

    def note(self, name, report):
        if len(self.failures) < MOST_FAILURES:
            self.failures[name] = said(report.longrepr)[:MOST_TEXT]


def said(shown):
    """The line of the test that failed and what pytest says of it."""
    entries = getattr(getattr(shown, "reprtraceback", None), "reprentries", ())
    lines = [line for entry in entries[:1] for line in getattr(entry, "lines", ()) if line.startswith((">", "E"))]
    crash = getattr(shown, "reprcrash", None)
    # raised further down: by the code under test
    if crash is not None and not any(line.startswith("E") for line in lines):
        lines.append(f"E       {crash.message}")
    return "\n".join(lines) if lines else str(shown)


def main(wire, packages, names, chosen):
    """`names`: files of tests, in the working directory; `chosen`: node ids, or none for all."""
    link = Link(wire, socket.socket(fileno=4))
    sys.meta_path.insert(0, Finder(link, frozenset(packages)))
    collector = Collector()
    options = [
        "-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:faulthandler", "-p", "no:junitxml", "--noconftest",
        "-c", "/dev/null",
    ]  # fmt: skip
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    sys.dont_write_bytecode = True
    with contextlib.redirect_stdout(io.StringIO()):
        code = pytest.main([*options, "--rootdir", "/tmp", *(chosen or names)], plugins=[collector])
    sys.stdout.write(json.dumps({"exit": int(code), "tests": collector.tests, "failures": collector.failures}) + "\n")
