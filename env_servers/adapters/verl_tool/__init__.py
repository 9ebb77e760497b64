"""verl-tool: any of its tool servers as an environment. What sessions do at the same time goes to it as one batch."""
