"""/run_code in languages other than Python, as a SandboxFusion client uses it: what is listed runs, and a compiler's
word comes back."""

from __future__ import annotations

import asyncio
import base64
import re
import shutil

import pytest

from ..env_process import Http, growing

pytestmark = [pytest.mark.extended, pytest.mark.slow]


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


@pytest.fixture
async def http(python_server):
    async with Http(python_server[0]) as http:
        yield http


async def run(http: Http, language: str, code: str, **fields) -> dict:
    """With minutes for what is not to be stopped: this machine may be slow, or stall."""
    patience = {"run_timeout": 600, "compile_timeout": 600}
    request = {"code": code, "language": language, **patience, **fields}
    status, body, _ = await http.send("POST", "/run_code", json=request)
    assert status == 200, body
    return body


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def test_what_is_installed_is_listed_and_no_more(http):
    tools = {"bash": "bash", "cpp": "g++", "nodejs": "node"}
    listed = (await http.send("GET", "/schema"))[1]["languages"]
    assert listed[0] == "python"
    assert set(listed) - {"python", "go"} == {language for language, tool in tools.items() if shutil.which(tool)}


async def test_without_languages_there_is_python_only(cold_server):
    async with Http(cold_server) as http:
        assert (await http.send("GET", "/schema"))[1]["languages"] == ["python"]
        body = await run(http, "bash", "echo 1")
    assert body["status"] == "SandboxError" and re.search(r"'bash'.*'python'", body["message"])


async def test_bash_reads_stdin_and_files_and_its_files_come_back_even_when_it_fails(http):
    code = 'read word; echo "$word $(tr a-z A-Z < in/a)"; echo -n made > out; echo no >&2; exit 3'
    body = await run(
        http, "bash", code, stdin="hello\n", files={"in/a": encoded(b"file")}, fetch_files=["out", "in/a", "none"]
    )
    result = body["run_result"]
    assert (body["status"], body["compile_result"], result["return_code"]) == ("Failed", None, 3)
    assert (result["stdout"], result["stderr"]) == ("hello FILE\n", "no\n")
    assert body["files"] == {"out": encoded(b"made"), "in/a": encoded(b"file")}


async def test_a_script_finds_the_usual_tools_and_its_pipes_end_as_in_a_shell(http):
    body = await run(
        http,
        "bash",
        "set -o pipefail; yes | head -n 1; echo $?; echo 3 4 | awk '{ print $1 + $2 }'; python3 -c 'print(6 * 7)'; ls",
    )
    assert (body["status"], body["run_result"]["stdout"]) == ("Success", "y\n141\n7\n42\nmain.sh\n")


async def test_nothing_of_the_server_is_left_open_in_a_program(http):
    body = await run(http, "bash", "cd /proc/self/fd; for fd in *; do [ -e $fd ] && echo $fd; done", fetch_files=["x"])
    assert set(body["run_result"]["stdout"].split()) <= {"0", "1", "2", "255"}  # 255: the script itself


async def test_a_script_that_sleeps_too_long_is_stopped_with_all_that_it_started(http):
    code = "echo begun; trap '' TERM INT HUP; (sleep 1000 &); sleep 1000"
    for seconds in growing(0.5):
        body = await run(http, "bash", code, run_timeout=seconds)
        if body["run_result"]["stdout"]:
            break
    assert (body["status"], body["run_result"]["status"], body["run_result"]["return_code"]) == (
        "Failed",
        "TimeLimitExceeded",
        None,
    )
    assert body["run_result"]["stdout"] == "begun\n"


async def test_a_file_of_the_request_with_the_scripts_name_is_what_it_was(http):
    files = {"main.sh": encoded(b"theirs"), "main2.sh": encoded(b"theirs too")}
    body = await run(http, "bash", "cat main.sh main2.sh; echo; echo $0", files=files, fetch_files=["main.sh"])
    assert (body["run_result"]["stdout"], body["files"]) == (
        "theirstheirs too\nmain3.sh\n",
        {"main.sh": encoded(b"theirs")},
    )


@needs("g++")
async def test_cpp_is_compiled_with_the_requests_headers_then_run_with_its_stdin_and_files(http):
    code = '#include <iostream>\n#include <fstream>\n#include "my/twice.h"\nint main() {'
    code += 'int x; std::cin >> x; std::ofstream("out") << x; std::cout << twice(x); return 5; }'
    header = encoded(b"inline int twice(int x) { return 2 * x; }")
    body = await run(
        http,
        "cpp",
        code,
        stdin="21",
        files={"my/twice.h": header, "main": encoded(b"a file")},
        fetch_files=["out", "main"],
    )
    assert (body["status"], body["run_result"]["return_code"], body["run_result"]["stdout"]) == ("Failed", 5, "42")
    assert (body["compile_result"]["status"], body["compile_result"]["return_code"]) == ("Finished", 0)
    assert body["files"] == {"out": encoded(b"21"), "main": encoded(b"a file")}


@needs("g++")
async def test_what_does_not_compile_is_failed_with_the_compilers_word_and_no_run(http):
    body = await run(http, "cpp", "int main() { return x; }", files={"a": encoded(b"a")}, fetch_files=["a"])
    assert (body["status"], body["message"], body["run_result"]) == ("Failed", "", None)
    assert (body["compile_result"]["status"], body["compile_result"]["return_code"]) == ("Finished", 1)
    assert "main.cpp:1:21: error: ‘x’ was not declared in this scope" in body["compile_result"]["stderr"]
    assert body["files"] == {"a": encoded(b"a")}


@needs("g++")
async def test_a_compiler_that_takes_too_long_is_stopped_and_nothing_is_run(http):
    nested = "".join(
        f"template <class T> struct S{i} {{ S{i - 1}<P<T, 0>> a; S{i - 1}<P<T, 1>> b; }};" for i in range(1, 40)
    )
    code = (
        "template <class T, int> struct P {}; template <class T> struct S0 {};"
        f" {nested} S39<int> s; int main() {{}}"
    )
    body = await run(http, "cpp", code, compile_timeout=0.5)
    assert (body["status"], body["compile_result"]["status"], body["run_result"]) == (
        "Failed",
        "TimeLimitExceeded",
        None,
    )


@needs("g++")
async def test_a_program_of_many_megabytes_does_not_compile_and_says_so(http):
    body = await run(http, "cpp", "char big[40 << 20] = {1};\nint main() {}")
    assert (body["status"], body["run_result"], body["compile_result"]["return_code"]) == ("Failed", None, 1)
    assert body["compile_result"]["stderr"]  # ours, or the linker's own word that its directory is full


@needs("g++")
async def test_a_crash_is_the_signals_number(http):
    body = await run(http, "cpp", "int main() { *(volatile int *)nullptr = 1; }")
    assert (body["status"], body["run_result"]["return_code"]) == ("Failed", -11)


@needs("g++")
async def test_the_requests_memory_bounds_the_run_and_not_the_compiler(http):
    code = "#include <vector>\nint main() { std::vector<char> v(256 << 20, 1); return v[5]; }"
    small, large = await run(http, "cpp", code, memory_limit_MB=64), await run(http, "cpp", code, memory_limit_MB=512)
    assert small["compile_result"]["return_code"] == 0
    assert (small["run_result"]["return_code"], "bad_alloc" in small["run_result"]["stderr"]) == (-6, True)
    assert large["run_result"]["return_code"] == 1


@needs("node")
async def test_nodejs_reads_stdin_and_files_and_hands_files_back(http):
    code = (
        "const fs = require('fs'); fs.writeFileSync('out', fs.readFileSync('in'));"
        " console.log(fs.readFileSync(0, 'utf8').length); process.exit(4)"
    )
    body = await run(http, "nodejs", code, stdin="x" * 100_000, files={"in": encoded(b"\0\xff")}, fetch_files=["out"])
    assert (body["status"], body["run_result"]["return_code"], body["run_result"]["stdout"]) == (
        "Failed",
        4,
        "100000\n",
    )
    assert body["files"] == {"out": encoded(b"\0\xff")}


@needs("node")
async def test_a_javascript_heap_ends_below_the_limit_and_garbage_does_not_fill_it(http):
    grows = "const a = []; for (;;) a.push(new Array(1e5).fill(a.length))"
    body = await run(http, "nodejs", grows, memory_limit_MB=192)
    assert (body["status"], "heap out of memory" in body["run_result"]["stderr"]) == ("Failed", True)
    garbage = "let n = 0; for (let i = 0; i < 3000; i++) n += new Array(1e4).fill(i).length; console.log(n)"
    assert (await run(http, "nodejs", garbage, memory_limit_MB=192))["run_result"]["stdout"] == "30000000\n"


async def test_go_is_compiled_and_run_where_it_is_served(http):
    if "go" not in (await http.send("GET", "/schema"))[1]["languages"]:
        pytest.skip("go is not served here")
    code = 'package main\nimport "fmt"\nfunc main() { var x int; fmt.Scan(&x); fmt.Println(2 * x) }'
    assert (await run(http, "go", code, stdin="21"))["run_result"]["stdout"] == "42\n"
    assert "undefined: x" in (await run(http, "go", "package main\nfunc main() { x() }"))["compile_result"]["stderr"]


async def test_as_many_programs_at_once_as_there_are_callers_each_get_their_own_answer(http):
    bodies = await asyncio.gather(*[run(http, "bash", f"echo {i} > f; sleep 0.05; cat f") for i in range(12)])
    assert [body["run_result"]["stdout"] for body in bodies] == [f"{i}\n" for i in range(12)]
