"""Serve any server of OpenEnv as an environment, without a package. `serve` does the opposite: our servers as
OpenEnv's."""
