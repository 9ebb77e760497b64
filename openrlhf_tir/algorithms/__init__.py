"""Advantage estimators, policy losses and KL estimates: plain functions of tensors, one formula a file."""
