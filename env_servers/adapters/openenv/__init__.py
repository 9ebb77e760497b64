"""OpenEnv: any of its servers as an environment (no package needed), and any server of ours as one of its own."""
