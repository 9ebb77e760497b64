"""Text layout."""

from .layout import columns, table
from .lines import dedent, fill, indent, justify, shorten, wrap

__all__ = ["columns", "dedent", "fill", "indent", "justify", "shorten", "table", "wrap"]
