"""Serve the tools of any MCP server.

MCP is the Model Context Protocol. `functions` does the opposite: our functions as an MCP server.
"""
