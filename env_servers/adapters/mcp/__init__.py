"""The Model Context Protocol: any MCP server's tools as an environment, and our functions as an MCP server."""
