"""Data: rows of a file -> Tasks, and the resumable order in which they are issued."""

from .prompts import PromptSet, load_prompts
from .stream import PromptStream

__all__ = ["PromptSet", "PromptStream", "load_prompts"]
