"""Comma-separated values."""

from .read import CsvError, parse, parse_records
from .table import group_by, join, select, sort_by
from .write import render

__all__ = ["CsvError", "group_by", "join", "parse", "parse_records", "render", "select", "sort_by"]
