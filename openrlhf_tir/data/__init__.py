"""Read rows of files as tasks, and decide the resumable order in which they are issued."""

from .blend import lanes_of
from .prompts import PromptSet, load_prompts
from .stream import PromptStream

__all__ = ["PromptSet", "PromptStream", "lanes_of", "load_prompts"]
