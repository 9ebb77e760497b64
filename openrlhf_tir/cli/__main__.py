"""python -m openrlhf_tir.cli COMMAND ...: what the command `openrlhf-tir` does."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())
