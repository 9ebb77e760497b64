"""The learner on real ranks, what takes minutes."""
