"""Run the rollouts of a verifiers environment against the policy's own endpoint, where they are recorded. Its rubrics
give the reward."""
