"""For tools that ask for this file; everything that it could say is in pyproject.toml."""

from setuptools import setup

setup()
