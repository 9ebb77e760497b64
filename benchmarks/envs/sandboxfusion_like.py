"""python -m benchmarks.envs.sandboxfusion_like: a server that runs code as SandboxFusion does, to compare with. It
isolates nothing.

    POST /run_code -> temporary directory -> shell -> fresh interpreter -> wait for its end -> read the pipes -> reply

Same HTTP stack and launcher as our servers, so that a comparison is about how the code is run.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.command import command_parser
from env_servers.env import Env, Step
from env_servers.launch import add_serving_flags, serve, serving_config
from env_servers.python_tir.run_code import CommandRunResult, RunCodeReply, RunCodeRequest, parse_run_status
from env_servers.serving import create_env_app
from openrlhf_tir.protocol import UNISOLATED


async def run_as_sandboxfusion(request: RunCodeRequest) -> RunCodeReply:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as workdir:
        script = Path(workdir, "main.py")
        script.write_text(request.code)
        start = time.perf_counter()
        process = await asyncio.create_subprocess_shell(
            f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}",
            cwd=workdir,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None and stdout is not None and stderr is not None, "all three are pipes"
        if request.stdin:
            stdin.write(request.stdin.encode())
        stdin.close()
        try:
            await asyncio.wait_for(process.wait(), request.run_timeout)
            status = "Finished"
        except TimeoutError:
            status = "TimeLimitExceeded"
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        result = CommandRunResult(
            status=status,
            execution_time=time.perf_counter() - start,
            return_code=process.returncode if status == "Finished" else None,
            stdout=(await stdout.read()).decode(),
            stderr=(await stderr.read()).decode(),
        )
    outcome, message = parse_run_status(None, result)
    return RunCodeReply(status=outcome, message=message, run_result=result)


class _NoSteps(Env):
    async def step(self, action: str, deadline_s: float) -> Step:
        return Step()


def main() -> None:
    parser = command_parser(__doc__)
    add_serving_flags(parser, workers=64)
    args = parser.parse_args()
    app = create_env_app(
        _NoSteps, serving_config(args, env="sandboxfusion_like", action="none: use /run_code", isolation=UNISOLATED)
    )

    @app.post("/run_code")
    async def run_code(body: RunCodeRequest) -> RunCodeReply:
        return await run_as_sandboxfusion(body)

    serve(app, args)


if __name__ == "__main__":
    main()
