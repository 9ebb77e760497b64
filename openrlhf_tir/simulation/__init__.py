"""Simulate a run: the real loop, scheduler and depth controller on a virtual clock, with models in place of engines,
environments and learner."""
