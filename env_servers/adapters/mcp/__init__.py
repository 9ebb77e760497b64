"""Serve the tools of any MCP server (Model Context Protocol). `functions` does the opposite: our functions as an MCP
server."""
