"""Any server of OpenEnv; no package is needed. The folder also serves any server of ours as one of OpenEnv's."""
