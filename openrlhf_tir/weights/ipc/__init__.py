"""Pushes between a learner rank and an engine on one device, through memory that both map: CUDA IPC."""
