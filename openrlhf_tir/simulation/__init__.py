"""Simulation: the real loop, budget, replay and depth controller on a virtual clock, with modelled engines,
environments and learner."""
