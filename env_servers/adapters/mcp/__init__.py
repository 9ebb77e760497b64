"""Tools of any MCP server (Model Context Protocol). The folder also serves our functions as an MCP server."""
