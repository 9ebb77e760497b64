"""Optimisers: what they need besides DeepSpeed's configuration."""
