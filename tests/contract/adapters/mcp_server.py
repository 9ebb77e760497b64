"""An MCP server written with the package's own class, as its users write one. stdio, or HTTP on a given port."""

import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
notes: list[str] = []


@server.tool()
def note(text: str) -> int:
    """Keep a text; how many there are."""
    notes.append(text)
    return len(notes)


@server.tool()
def divide(a: float, b: float) -> float:
    """a / b."""
    return a / b


@server.tool()
def crash() -> str:
    """Ends the server's process."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
