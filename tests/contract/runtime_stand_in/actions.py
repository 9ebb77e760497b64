"""python -m tests.contract.runtime_stand_in.actions FD KEY: the routes of OpenHands' action_execution_server that are
used here, on a given socket.

One action at a time, as there. Static commands are a process each; the others are typed into one bash. Nothing is
emulated: what is run, runs."""

from __future__ import annotations

import email
import email.policy
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from env_servers.swe.inside.editor import Editor, Refused
from env_servers.swe.inside.shell import Shell

STATIC_S = 30


class Actions:
    def __init__(self) -> None:
        self.lock, self.shell, self.editor = threading.Lock(), Shell("/testbed", dict(os.environ)), Editor()

    def run(self, action: dict) -> dict:
        with self.lock:
            return getattr(self, f"do_{action['action']}")(action["args"], action["timeout"])

    def do_run(self, args: dict, seconds: float) -> dict:
        if args.get("is_static"):
            done = subprocess.run(
                args["command"],
                shell=True,
                cwd=args["cwd"],
                capture_output=True,
                text=True,
                timeout=STATIC_S,
                check=False,
            )
            return observation("run", done.stderr or done.stdout, metadata={"exit_code": done.returncode})
        text, code = self.shell.run(args["command"], args["is_input"], seconds)
        suffix = "" if code is not None else f"\n[The command timed out after {seconds:g} seconds.]"
        told = {
            "exit_code": -1 if code is None else code,
            "working_dir": self.shell.directory,
            "prefix": "",
            "suffix": suffix,
        }
        return observation("run", text.rstrip("\n"), metadata=told)

    def do_read(self, args: dict, seconds: float) -> dict:
        return self.edited("read", "view", args)

    def do_edit(self, args: dict, seconds: float) -> dict:
        return self.edited("edit", args["command"], args)

    def edited(self, kind: str, command: str, args: dict) -> dict:
        assert args["impl_source"] == "oh_aci"
        rest = {key: value for key, value in args.items() if key not in ("command", "path", "impl_source")}
        try:
            return observation(kind, self.editor.run(command, args["path"], rest))
        except Refused as e:
            return observation(kind, f"ERROR:\n{e}")


def observation(kind: str, content: str, **extras: object) -> dict:
    return {"observation": kind, "content": content, "extras": extras, "success": True}


class Handler(BaseHTTPRequestHandler):
    actions: Actions
    key: str
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/alive":
            return self.reply(200, {"status": "ok"})
        if not self.allowed():
            return None
        packed = io.BytesIO()
        top = Path(parse_qs(url.query)["path"][0])
        with zipfile.ZipFile(packed, "w") as archive:
            for path in top.rglob("*"):
                if path.is_file():
                    archive.write(path, path.relative_to(top))
        return self.reply(200, packed.getvalue())

    def do_POST(self) -> None:
        body = (
            self.rfile.read(int(self.headers["Content-Length"])) if "Content-Length" in self.headers else self.chunks()
        )
        if not self.allowed():
            return None
        url = urlsplit(self.path)
        if url.path == "/execute_action":
            return self.reply(200, self.actions.run(json.loads(body)["action"]))
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        [part] = email.message_from_bytes(head + body, policy=email.policy.HTTP).iter_parts()
        directory = parse_qs(url.query)["destination"][0]
        os.makedirs(directory, exist_ok=True)
        with tempfile.NamedTemporaryFile(suffix=".zip") as file:
            file.write(part.get_payload(decode=True))
            file.flush()
            shutil.unpack_archive(file.name, directory)
        return self.reply(200, {"filename": part.get_filename(), "destination": directory, "recursive": True})

    def chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def allowed(self) -> bool:
        """The API's key has no business here: what runs in a container may read it."""
        if self.headers["X-Session-API-Key"] == self.key and self.headers["X-API-Key"] is None:
            return True
        self.reply(403, {"detail": "Invalid API Key"})
        return False

    def reply(self, status: int, body: dict | bytes) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *said: object) -> None:
        pass


def main() -> None:
    Handler.actions, Handler.key = Actions(), sys.argv[2]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=int(sys.argv[1]))
    server.serve_forever()


if __name__ == "__main__":
    main()
