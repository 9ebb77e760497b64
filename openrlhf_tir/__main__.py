"""python -m openrlhf_tir COMMAND ...: what the command `openrlhf-tir` does."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
