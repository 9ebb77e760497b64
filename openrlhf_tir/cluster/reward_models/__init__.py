"""The processes that hold a reward model, and how rollout actors ask them."""
