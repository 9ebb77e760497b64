"""URLs and routes."""

from .routes import MethodNotAllowed, NotFound, Router
from .urls import Url, build_query, normalize_path, parse_query, parse_url, quote, unquote

__all__ = ["MethodNotAllowed", "NotFound", "Router", "Url", "build_query", "normalize_path", "parse_query", "parse_url", "quote", "unquote"]
