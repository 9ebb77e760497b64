"""python_tir: runs model-written Python, one process in a sandbox per call, forked from a warm interpreter or fresh."""
