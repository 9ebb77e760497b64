"""A rollout actor over HTTP, for everyone but the run's own controller: groups, traced sessions, metrics."""
