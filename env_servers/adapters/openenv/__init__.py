"""Any server of OpenEnv; no package is needed. And any server of ours as one of OpenEnv's."""
