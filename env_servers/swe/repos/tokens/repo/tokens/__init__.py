"""Arithmetic: text -> tokens -> value."""

from .evaluate import evaluate
from .lexer import LexError, tokenize
from .parser import ParseError, parse, to_text

__all__ = ["LexError", "ParseError", "evaluate", "parse", "to_text", "tokenize"]
