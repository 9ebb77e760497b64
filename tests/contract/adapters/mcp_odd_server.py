"""An MCP server by hand, over stdio: answers that a careless server gives. Its one argument, if any, is a directory in
which it keeps what the tool `keep` was given."""

import json
import os
import sys
import time

TOOLS = [
    {"name": name, "description": name, "inputSchema": {"type": "object", "properties": {}}}
    for name in ("structured", "surrogate", "chatter", "keep", "daemon")
]


def answer(message):
    params = message.get("params") or {}
    if message["method"] == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        }
    if message["method"] == "tools/list":
        return {"tools": TOOLS}
    if params["name"] == "structured":
        return {"content": [], "structuredContent": {"sum": 3}}
    if params["name"] == "keep":
        open(os.path.join(sys.argv[1], str(len(os.listdir(sys.argv[1])))), "w").close()
        return {"content": [{"type": "text", "text": str(len(os.listdir(sys.argv[1])))}]}
    if params["name"] == "daemon":
        child = os.fork()
        if child == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            for fd in range(3):
                os.close(fd)
            time.sleep(600)
            os._exit(0)
        os.waitpid(child, 0)
        return {"content": [{"type": "text", "text": str(os.getpid())}]}
    if params["name"] == "chatter":
        print("a line that is no message", flush=True)
    return {"content": [{"type": "text", "text": "\ud800" if params["name"] == "surrogate" else "said"}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer(message)}), flush=True)
