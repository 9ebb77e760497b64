"""Serve the tools of any server of verl-tool. Actions of several sessions are sent to it as one batch."""
