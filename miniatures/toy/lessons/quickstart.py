"""The quickstart's: ZeroTIR's python blocks, or an answer at once. Tool output is read and not learned."""

from __future__ import annotations

from ..task import make_problems
from ..traces import draw_trace
from . import Lesson

LESSON = Lesson(draw_trace, make_problems)
