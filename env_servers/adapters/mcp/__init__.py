"""Tools of any MCP server (Model Context Protocol). And our functions as an MCP server."""
