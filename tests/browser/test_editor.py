"""The editor's placement in a real browser: what fits is said while one types, and the best place is chosen for one."""

import os
import tempfile
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.browser.conftest import Watch, _chromium, _site, signed_in
from tests.browser.looks import require_no_scrolling

pytestmark = pytest.mark.browser
SHOTS = Path(os.environ.get("MIRBAD_TEST_SHOTS") or tempfile.mkdtemp(prefix="mirbad-shots-"))
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
WIDTHS = {1440: 900, 390: 844}


@pytest.fixture(scope="module")
def octo(tmp_path_factory):
    _chromium()
    with _site(tmp_path_factory.mktemp("octo"), "octo") as running:
        yield running


@pytest.fixture
def editor(octo, browser):
    """A signed-in page; afterwards nothing wrong may have happened in it."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    watch = Watch(octo.url)
    watch.over(context)
    signed_in(context, octo.url)
    page = context.new_page()
    page.set_default_timeout(10_000)
    yield page
    context.close()
    assert watch.wrong == []


def picture(page, name):
    SHOTS.mkdir(parents=True, exist_ok=True)
    found = []
    for width, height in WIDTHS.items():
        page.set_viewport_size({"width": width, "height": height})
        require_no_scrolling(page, name, width)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            page.screenshot(path=SHOTS / f"editor-{name}-{width}-{scheme}.png", full_page=True)
            violations = Axe().run(page, options=RULES).response["violations"]
            found += [
                f"{width} {scheme} {item['id']}: {node['html'][:120]}" for item in violations for node in item["nodes"]
            ]
    page.set_viewport_size({"width": 1440, "height": 900})
    assert found == []


def test_a_new_model_is_told_where_it_fits_and_is_placed_on_the_best(editor, octo):
    page = editor
    page.goto(f"{octo.url}/models/-/new?node=octo&folder=qwen3-14b&runtime=vllm&delivery=container")
    page.locator("#fit").get_by_text("Choose a GPU").wait_for()
    page.locator("#gpu-choice input").first.check()
    page.locator("#fit").get_by_text("Does not fit now").first.wait_for()
    options = [text.strip() for text in page.locator("#id_node option").all_inner_texts()]
    assert any(text.startswith("Octo · fits") for text in options), options
    assert any("offline" in text for text in options)
    assert page.locator("#id_node option[value=cirrus]").is_disabled()
    # A card of another kind cannot work with the one that is ticked.
    assert page.locator("#gpu-choice input").nth(7).is_disabled()
    picture(page, "refusal")
    page.get_by_role("button", name="Choose best node").click()
    page.get_by_text("Not saved yet").wait_for()
    assert page.locator("#id_node").input_value() == "octo"
    assert page.locator("#gpu-choice input:checked").count() >= 1
    page.locator("#fit").get_by_text("Fits", exact=True).first.wait_for()
    page.get_by_text("How this was estimated").click()
    picture(page, "placed")


def test_an_answer_that_a_newer_question_replaces_is_no_alarm(editor, octo):
    page = editor
    page.goto(f"{octo.url}/models/-/new?node=octo&folder=qwen3-14b&runtime=vllm&delivery=container")
    page.locator("#fit").get_by_text("Choose a GPU").wait_for()
    asked = []

    def hold_the_first(route):
        asked.append(route)
        if len(asked) > 1:
            route.continue_()

    page.route("**/models/-/fit", hold_the_first)
    page.locator("#gpu-choice input").first.check()
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/fit")):
        while not asked:
            page.wait_for_event("request")
        page.locator("#gpu-choice input").nth(1).check()
    page.locator("#fit").get_by_text("Does not fit now").first.wait_for()
    assert len(asked) == 2
    assert page.locator("#notices > *").count() == 0


def test_a_card_that_is_gone_is_said_and_the_node_is_left_by_a_move_only(editor, octo):
    page = editor
    page.goto(f"{octo.url}/models/qwen3-14b/edit")
    page.get_by_text("GPU — · no longer on octo").first.wait_for()
    page.locator("#fit").get_by_text("gpu_unknown").wait_for()
    assert page.locator("select#id_node").count() == 0
    picture(page, "gone")


def test_a_start_that_does_not_fit_asks_with_the_numbers(editor, octo):
    page = editor
    page.goto(f"{octo.url}/models/qwen3-full")
    page.get_by_role("button", name="Start", exact=True).click()
    page.wait_for_url(f"{octo.url}/models/qwen3-full/start/ask")
    page.get_by_text("GPU 0: needs").wait_for()
    assert page.get_by_role("button", name="Start anyway").is_visible()
    picture(page, "asks")
