"""python_tir: runs model-written Python, one fresh process in a fresh sandbox per call."""
