"""Names of the environment variables that hold a run's bearer tokens."""

from __future__ import annotations

ENV_TOKEN = "TIR_ENV_TOKEN"
"""The token of the environment servers."""
ROLLOUT_TOKEN = "TIR_ROLLOUT_TOKEN"
"""The token of the rollout actors' endpoints: another one, since hosts that run the model's code have the first."""
