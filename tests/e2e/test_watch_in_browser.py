"""The live page in a real browser: it follows a run by itself, fits a phone, and keeps what the reader opened.

The test installs what it needs: playwright into a directory of its own, and Debian's chromium where there is none.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import time

import pytest
from PIL import Image

from openrlhf_tir.config import Logger
from openrlhf_tir.telemetry import heartbeat
from openrlhf_tir.telemetry.metrics import MetricsLog
from tests.unit.observability.test_watch import STATUS, drop_a_group

pytestmark = pytest.mark.long
WAIT_MS = 60_000


def write_status(run_dir, **facts):
    known = {"time": time.time(), "pid": 1, "since_start_s": 92.0, "stage": "", "stage_note": "", "notice": []}
    (run_dir / heartbeat.FILE).write_text(json.dumps({**known, "status": STATUS, **facts}))


@pytest.fixture(scope="module")
def playwright(tmp_path_factory):
    """Playwright, and the path of a chromium that it drives."""
    directory = tmp_path_factory.mktemp("playwright")
    installed = subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--target", directory, "playwright"], capture_output=True
    )
    if installed.returncode:
        pytest.skip("playwright cannot be installed: no package registry")
    if shutil.which("chromium") is None:
        subprocess.run(["apt-get", "install", "-y", "-qq", "chromium"], capture_output=True)
    if shutil.which("chromium") is None:
        pytest.skip("chromium cannot be installed")
    sys.path.append(str(directory))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as session:
        yield session
    sys.path.remove(str(directory))


@pytest.fixture(scope="module")
def browser(playwright):
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    yield browser
    browser.close()


@pytest.fixture
def watched(tmp_path):
    """-> (run directory, URL). The run has not made an update yet."""
    run_dir = tmp_path / "a-run-with-a-rather-long-name-2026-11-26"
    run_dir.mkdir()
    write_status(run_dir)
    drop_a_group(run_dir, "a wrong answer")
    command = [sys.executable, "-m", "openrlhf_tir.cli", "watch", str(run_dir), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    address = re.search(r"http://\S+", server.stdout.readline())
    yield run_dir, address[0]
    server.terminate()
    server.wait(120)


@pytest.fixture
def open_page(browser):
    contexts = []

    def opened(url, width=1280, **options):
        # Playwright's own waiting evaluates strings, which the page's policy forbids to everybody else.
        context = browser.new_context(viewport={"width": width, "height": 844}, bypass_csp=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.faults = []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()


def test_the_page_follows_the_run_without_being_loaded_again(watched, open_page):
    run_dir, url = watched
    page = open_page(url)
    page.get_by_text("waiting for groups: 3 of 16 accepted").wait_for()
    assert page.locator("figure").count() == 0
    page.locator("details.sample summary").first.click()  # the first one is open: now it is closed
    with MetricsLog(run_dir, Logger(tensorboard_dir=None)) as log:
        for step in range(1, 6):
            log.log(step, {"reward_mean": step / 10, "accuracy": 0.5})
    write_status(run_dir, status={**STATUS, "step": 5, "waits_for": "learner at work for 0:03"})
    page.get_by_text("learner at work for 0:03").wait_for(timeout=WAIT_MS)
    page.locator("figure#reward img").wait_for(timeout=WAIT_MS)
    page.locator("figure#reward").scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('#reward img').naturalWidth > 0", timeout=WAIT_MS)
    assert page.evaluate("document.querySelector('#reward img').naturalWidth") == 1440
    assert page.locator("[role=progressbar]").get_attribute("aria-valuenow") == "5"
    assert not page.locator("details.sample").first.evaluate("sample => sample.open"), "the reader had closed it"
    write_status(run_dir, ended="finished")
    page.locator(".pill", has_text="finished").wait_for(timeout=WAIT_MS)
    assert "finished" in page.title() and page.faults == []


def test_on_a_phone_nothing_is_wider_than_the_screen_and_figures_are_made_for_it(watched, open_page):
    run_dir, url = watched
    with MetricsLog(run_dir, Logger(tensorboard_dir=None)) as log:
        for step in range(1, 6):
            log.log(step, {"reward_mean": step / 10, "accuracy": 0.5, "entropy": 0.4, "grad_norm": 1.0})
    write_status(run_dir, notice=["WARNING: " + "x" * 300])
    page = open_page(url, width=390)
    page.locator("figure#reward").scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('#reward img').naturalWidth > 0", timeout=WAIT_MS)
    assert page.evaluate("document.querySelector('#reward img').naturalWidth") == 704
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    sizes = page.evaluate(
        "[...document.querySelectorAll('p, td, pre, strong')].map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12 and page.faults == []


def test_a_dark_page_shows_figures_on_the_colour_of_their_card_with_light_text(watched, open_page):
    run_dir, url = watched
    with MetricsLog(run_dir, Logger(tensorboard_dir=None)) as log:
        for step in range(1, 6):
            log.log(step, {"reward_mean": step / 10})
    page = open_page(url, color_scheme="dark")
    page.locator("figure#reward").scroll_into_view_if_needed()
    page.wait_for_function("document.querySelector('#reward img').naturalWidth > 0", timeout=WAIT_MS)
    card = Image.open(io.BytesIO(page.locator("figure#reward").screenshot())).convert("RGB")
    plot = Image.open(io.BytesIO(page.locator("figure#reward img").screenshot())).convert("RGB")
    assert plot.getpixel((2, 2)) == card.getpixel((20, 6)) == (0x17, 0x1A, 0x20)
    assert plot.convert("L").getextrema()[1] > 220


def test_a_server_that_is_gone_is_said_and_the_last_state_stays(watched, open_page):
    _, url = watched
    page = open_page(url)
    page.route("**/state.json", lambda route: route.abort())
    page.locator("#lost").wait_for(state="visible", timeout=WAIT_MS)
    assert page.get_by_text("waiting for groups: 3 of 16 accepted").is_visible()
    page.unroute("**/state.json")
    page.locator("#lost").wait_for(state="hidden", timeout=WAIT_MS)
