"""The search server over HTTP: Search-R1's API, its passages, and a start that says what is wrong."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from env_servers.search.__main__ import create_search_app, main, make_retriever, parser

from ..env_process import Http, env_server
from ..in_process import serving
from ..slow_search import write_corpus
from ..tiny_encoder import make_model

pytestmark = pytest.mark.slow  # it waits for servers

SEARCH = "env_servers.search"


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("search")
    with env_server(SEARCH, tmp, "--corpus", write_corpus(tmp), "--topk", "2") as (url, _):
        yield url


@pytest.fixture
async def http(url):
    async with Http(url) as http:
        yield http


async def test_retrieve_has_search_r1s_format(http):
    status, body, _ = await http.send(
        "POST", "/retrieve", json={"queries": ["number 7", "nonsense"], "topk": 1, "return_scores": True}
    )
    assert status == 200
    (hit,), nothing = body["result"]
    assert hit["document"] == {"id": "7", "contents": '"7"\nThis is number 7 of them.'}
    assert hit["score"] > 0
    assert nothing == []


async def test_retrieve_without_scores_gives_documents_and_the_servers_topk(http):
    _, body, _ = await http.send("POST", "/retrieve", json={"queries": ["number 7"]})
    assert [d["id"] for d in body["result"][0]] == ["7", "0"]


async def test_an_observation_is_the_passages_as_search_r1_writes_them(http):
    _, body, _ = await http.step(await http.open({"topk": 1}), 0, " number 7 ")
    assert body["observation"] == 'Doc 1(Title: "7") This is number 7 of them.\n'
    assert body["signals"]["num_results"] == 1


@pytest.mark.parametrize(
    "malformed",
    [
        {},
        {"queries": "one"},
        {"queries": ["a"], "topk": -1},
        {"queries": ["a"], "topk": 10**9},
        {"queries": ["a" * 9000]},
    ],
)
async def test_a_malformed_request_is_refused(http, malformed):
    assert (await http.send("POST", "/retrieve", json=malformed))[0] == 422


@pytest.mark.parametrize("topk", ["abc", 10**9, 0, -1, None, [1], "1e999"])
async def test_an_invalid_number_of_passages_is_the_callers_mistake(http, topk):
    status, body, _ = await http.send("POST", "/reset", json={"task": {"topk": topk}})
    assert (status, "task" in body["detail"]) == (422, True)


async def test_the_passages_of_one_request_are_limited_in_total(http):
    for queries, topk in (1025, 1), (1024, 1000), (21, 1000):
        status, body, _ = await http.send("POST", "/retrieve", json={"queries": ["number"] * queries, "topk": topk})
        assert (status, f"{queries} " in body["detail"]) == (413, True)
    assert (await http.send("POST", "/retrieve", json={"queries": ["number"] * 1024, "topk": 3}))[0] == 200


async def test_a_huge_query_is_a_model_error(http):
    _, body, _ = await http.step(await http.open(), 0, "number " * 5000)
    assert (body["outcome"], body["signals"]["error_type"]) == ("model_error", "query_too_long")


async def test_searches_past_their_deadline_free_their_workers(tmp_path):
    flags = ["--corpus", write_corpus(tmp_path), "--workers", "2", "--retrieve-timeout", "0.3"]
    with env_server("tests.contract.slow_search", tmp_path, *flags) as (url, _):
        async with Http(url) as http:
            late = await asyncio.gather(
                *[http.step(await http.open(), 0, "endless", deadline_s=0.3) for _ in range(10)]
            )
            assert {body["outcome"] for _, body, _ in late} == {"timeout"}
            status, body, headers = await http.send("POST", "/retrieve", json={"queries": ["endless"]})
            assert (status, " 0.3 s" in body["detail"], headers["Retry-After"]) == (503, True, "1")
            assert (await http.step(await http.open(), 0, "number 7"))[1]["outcome"] == "ok"
            await http.until_running(0)


async def test_concurrent_searches_get_their_own_answers(http):
    async def one(i):
        _, body, _ = await http.send("POST", "/retrieve", json={"queries": [f"number {i}"], "topk": 1})
        return body["result"][0][0]["id"] == str(i)

    assert all(await asyncio.gather(*[one(i) for i in range(40)]))


async def test_a_full_server_says_when_to_retry(tmp_path):
    flags = ["--corpus", write_corpus(tmp_path), "--workers", "1", "--max-queue", "0"]
    with env_server("tests.contract.slow_search", tmp_path, *flags) as (url, _):
        async with Http(url) as http:
            call = asyncio.create_task(http.send("POST", "/retrieve", json={"queries": ["endless"]}))
            await http.until_running(1)
            status, _, headers = await http.send("POST", "/retrieve", json={"queries": ["number 1"]})
            assert (status, int(headers["Retry-After"]) >= 1) == (429, True)
            call.cancel()
            await http.until_running(0)
            assert (await http.send("POST", "/retrieve", json={"queries": ["number 1"]}))[0] == 200


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Three documents of which one has four passages; searches show 12 characters, pages have 40."""
    tmp = tmp_path_factory.mktemp("library")
    faust = [f'"Faust"\npart {word} of the play by Goethe' for word in ("one", "two", "three", "four")]
    rows = ['"Cats"\nsleep on mats', *faust, '"Dogs"\nrun']
    (tmp / "corpus.jsonl").write_text(
        "".join(json.dumps({"id": f"id{i}", "contents": text}) + "\n" for i, text in enumerate(rows))
    )
    with env_server(
        SEARCH, tmp, "--corpus", str(tmp / "corpus.jsonl"), "--snippet-chars", "12", "--page-chars", "40", "--topk", "2"
    ) as (url, _):
        yield url


async def test_a_retrieved_document_can_be_read_page_by_page(library):
    async with Http(library) as http:
        session = await http.open()
        _, found, _ = await http.step(session, 0, "three Goethe")
        assert found["observation"].splitlines()[0] == 'Doc 1(Title: "Faust") part three o ...'
        shown = [
            (await http.step(session, i, json.dumps({"open": target})))[1]
            for i, target in enumerate(["1", "1 page 2", "Doc 1, page 3"], 1)
        ]
        heads, texts = zip(*(body["observation"].split("\n", 1) for body in shown), strict=True)
        pages = shown[0]["signals"]["pages"]
        assert list(heads) == [f'Doc 1(Title: "Faust") page {i} of {pages}' for i in (1, 2, 3)]
        assert " ".join(texts).split()[:10] == ["part", "one", "of", "the", "play", "by", "Goethe", "part", "two", "of"]
        assert all(len(text) <= 41 for text in texts)
        assert (shown[0]["outcome"], shown[0]["signals"]["document_id"]) == ("ok", "id3")


@pytest.mark.parametrize(
    ("target", "error", "says"),
    [
        ("3", "no_such_document", "There is no Doc 3: the last search found 2."),
        ("0", "no_such_document", "There is no Doc 0"),
        ("1 page 99", "no_such_page", "Doc 1 has 4 pages."),
        ("the first one", "malformed_open", "Write the number of a document"),
    ],
)
async def test_an_open_action_that_fails_is_answered_with_the_reason(library, target, error, says):
    async with Http(library) as http:
        session = await http.open()
        await http.step(session, 0, "Goethe")
        _, body, _ = await http.step(session, 1, json.dumps({"open": target}))
        assert (body["outcome"], body["signals"]["error_type"], says in body["observation"]) == (
            "model_error",
            error,
            True,
        )


async def test_only_results_of_the_same_session_can_be_opened(library):
    async with Http(library) as http:
        await http.step(await http.open(), 0, "Goethe")
        _, body, _ = await http.step(await http.open(), 0, json.dumps({"open": "1"}))
        assert body["observation"] == "Nothing has been searched for yet.\n"


async def test_a_query_that_looks_like_json_is_searched_for(library):
    async with Http(library) as http:
        for query in ('{"query": "Goethe"}', '{"open": "1", "why": "Goethe"}', '{"open": Goethe'):
            assert (await http.step(await http.open(), 0, query))[1]["signals"]["num_results"] == 2


@pytest.mark.slow
async def test_dense_retrieval_is_the_same_api_over_a_real_encoder(tmp_path):
    corpus, model = tmp_path / "corpus.jsonl", tmp_path / "model"
    contents = ["the cat\nsleeps on the mat", "paris\nis the capital of france", "berlin\nis the capital of germany"]
    corpus.write_text("".join(json.dumps({"id": str(i), "contents": text}) + "\n" for i, text in enumerate(contents)))
    model.mkdir()
    args = parser().parse_args(["--corpus", str(corpus), "--dense", str(make_model(model)), "--topk", "1"])
    # In this process, which has torch and transformers already: a server of its own would import them again.
    app = create_search_app(make_retriever(args.corpus, args.index, args.dense), args)
    async with app.router.lifespan_context(app), serving(app) as port, Http(f"http://127.0.0.1:{port}") as http:
        _, body, _ = await http.send("POST", "/retrieve", json={"queries": contents, "return_scores": True})
        assert [(found[0]["document"]["id"], round(found[0]["score"], 3)) for found in body["result"]] == [
            ("0", 1.0),
            ("1", 1.0),
            ("2", 1.0),
        ]
        _, body, _ = await http.step(await http.open(), 0, contents[1])
        assert body["observation"] == "Doc 1(Title: paris) is the capital of france\n"


def test_a_second_start_reuses_the_index_of_the_first(tmp_path):
    corpus, built = Path(write_corpus(tmp_path)), []
    for _ in range(2):
        make_retriever(corpus, None, None)
        built.append((tmp_path / "corpus.jsonl.bm25" / "data.csc.index.npy").stat().st_ino)
    assert built[0] == built[1]


@pytest.mark.parametrize(
    ("lines", "flags", "says"),
    [
        ('{"contents": "a b"}\n{"contents": \n', [], r"corpus\.jsonl:2: .*\bJSON\b"),
        ('{"contents": "a b"}\n\n{"text": "a"}\n', [], r'corpus\.jsonl:3: .*"contents".*\btext\b'),
        ("", [], r"corpus\.jsonl .*\b0\b"),
        (None, [], r"corpus\.jsonl .*No such file"),
        ('{"contents": "a b"}\n', ["--topk", "0"], "--topk 0"),
        ('{"contents": "a b"}\n', ["--page-chars", "0"], "--page-chars 0"),
        ('{"contents": "a b"}\n', ["--dense", "no/such-model"], "--dense no/such-model"),
    ],
)
def test_a_corpus_or_model_that_cannot_be_served_is_refused_with_the_remedy(
    tmp_path, monkeypatch, capfd, lines, flags, says
):
    if lines is not None:
        (tmp_path / "corpus.jsonl").write_text(lines)
    monkeypatch.setattr(sys, "argv", ["search", "--corpus", str(tmp_path / "corpus.jsonl"), *flags])
    with pytest.raises(SystemExit, match=rf"^search .*{says}"):
        main()
    assert "Traceback" not in "".join(capfd.readouterr())
    assert [p.name for p in tmp_path.iterdir()] == ([] if lines is None else ["corpus.jsonl"])
