"""openrlhf_tir: asynchronous pipeline RL for tool-integrated reasoning, on OpenRLHF. Importing it does nothing."""

__version__ = "0.1.0"
