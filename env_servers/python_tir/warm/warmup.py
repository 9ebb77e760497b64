"""Typical calls of the libraries that snippets use, made once before any request.

An import alone leaves lazy imports and caches to every child, which would pay for them each time. These are everyday
calls of school and contest maths. Nothing here may print, warn, start a thread, or change a global setting.
"""


def warm_up(light, imports=()):
    """Warm up the standard library; numpy and sympy unless `light`; and import modules by name, if they are
    installed."""
    _standard_library()
    for library in () if light else (_numpy, _sympy):
        try:
            library()
        except ImportError:
            continue
    for name in imports:
        try:
            __import__(name)
        except ImportError:  # a call that needs it will get the error
            continue


def _standard_library():
    import argparse  # noqa: F401
    import base64  # noqa: F401
    import bisect  # noqa: F401
    import calendar  # noqa: F401
    import cmath  # noqa: F401
    import collections
    import copy
    import csv  # noqa: F401
    import dataclasses  # noqa: F401
    import datetime
    import decimal
    import fractions
    import functools
    import hashlib  # noqa: F401
    import heapq  # noqa: F401
    import inspect  # noqa: F401
    import itertools
    import json
    import linecache  # noqa: F401
    import logging  # noqa: F401
    import math
    import operator  # noqa: F401
    import pathlib  # noqa: F401
    import pickle  # noqa: F401
    import pprint  # noqa: F401
    import random  # noqa: F401
    import re
    import statistics
    import string  # noqa: F401
    import subprocess  # noqa: F401
    import tempfile  # noqa: F401
    import textwrap  # noqa: F401
    import threading  # noqa: F401
    import time  # noqa: F401
    import timeit  # noqa: F401
    import traceback  # noqa: F401
    import typing  # noqa: F401
    import warnings  # noqa: F401

    functools.lru_cache(math.factorial)(5)
    collections.Counter("abca").most_common(1)
    list(itertools.combinations(range(4), 2))
    str(fractions.Fraction(1, 3) + decimal.Decimal("0.5").as_integer_ratio()[0])
    re.findall(r"\d+", "a1b22")
    json.dumps(json.loads('{"a": [1, 2.5]}'))
    statistics.mean([1, 2, 3])
    str(datetime.date(2000, 1, 1) + datetime.timedelta(days=1))
    copy.deepcopy({"a": [1]})


def _numpy():
    import numpy as np

    a = np.array([[2.0, 1.0], [1.0, 3.0]])
    np.linalg.solve(a, np.array([1.0, 2.0]))
    np.linalg.det(a), np.linalg.eig(a), np.linalg.inv(a), a @ a.T
    repr(np.arange(10).reshape(2, 5).sum(axis=0))
    str(np.linspace(0, 1, 5).mean()), np.sqrt(a).max(), np.roots([1, -3, 2])
    np.random.rand(2)


def _sympy():
    import sympy as sp

    x, y = sp.symbols("x y")
    n = sp.symbols("n", integer=True, positive=True)
    str(sp.solve(x**2 - 5 * x + 6, x)), sp.solve([x + y - 3, x - y - 1], [x, y]), sp.solve(x**3 - 2 * x + 1, x)
    str(sp.simplify((x**2 - 1) / (x - 1))), sp.expand((x + y) ** 3), sp.factor(x**2 - y**2)
    sp.diff(sp.sin(x) * x**2, x), sp.integrate(x**2 + sp.cos(x), x), sp.integrate(x, (x, 0, 1))
    sp.limit(sp.sin(x) / x, x, 0), sp.series(sp.exp(x), x, 0, 3)
    str(sp.summation(n, (n, 1, 10))), sp.Rational(1, 3) + sp.sqrt(8), sp.N(sp.pi, 10)
    (
        sp.isprime(97),
        sp.factorint(360),
        sp.gcd(12, 18),
        sp.lcm(4, 6),
        sp.divisors(12),
        sp.totient(9),
        sp.mod_inverse(3, 7),
    )
    m = sp.Matrix([[1, 2], [3, 4]])
    m.det(), m.inv(), m.eigenvals(), str(m)
    sp.Eq(x, 1).subs(x, 1), sp.solveset(x**2 - 4, x, domain=sp.S.Reals), sp.latex(x / 2), sp.sympify("x + 1")
    (
        sp.nsolve(sp.cos(x) - x, x, 1),
        sp.trigsimp(sp.sin(x) ** 2 + sp.cos(x) ** 2),
        sp.binomial(5, 2),
        sp.Poly(x**2 + 1, x).degree(),
    )
    sp.lambdify(x, x**2)(3), (x > 2).subs(x, 3), sp.solve(x**2 < 4, x), sp.Abs(-x), sp.floor(sp.Rational(7, 2))
