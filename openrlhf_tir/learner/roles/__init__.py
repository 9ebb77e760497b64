"""The models beside the policy on the learner's ranks: the reference and the critic. auxiliary_models.py has both."""
