"""verifiers: its environments' rollouts run against the policy's own endpoint, where they are recorded, and its
rubrics' reward is the reward."""
