"""Changes without a reload: hints, stages, dialogs, copying, themes, and a line that was cut."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


def _mark(page) -> None:
    page.evaluate("window.neverReloaded = true")


def _reloaded(page) -> bool:
    return not page.evaluate("window.neverReloaded === true")


def test_the_stages_of_a_start_move_without_a_reload(open_page, site):
    page = open_page("/models/qwen3-coder")
    operation = page.locator("#operation")
    expect(operation).to_contain_text("14 GiB of 28 GiB")
    expect(page.locator("[data-live-state]").last).to_have_text("Live")
    expect(operation.locator("li[aria-current=step]")).to_have_text("Load the model")
    _mark(page)
    site.happen("launch-moves-on")
    expect(operation).to_contain_text("shard 5 of 6")
    expect(operation).to_contain_text("24 GiB of 28 GiB")
    expect(page.locator(".timeline")).to_contain_text("Shard five.")
    site.happen("launch-ends")
    expect(page.locator(".page-head .badge")).to_have_text("Ready")
    expect(operation).to_be_empty()
    assert not _reloaded(page)


def test_what_a_person_opened_stays_open_when_the_page_reads_itself_again(open_page):
    page = open_page("/")
    link = page.get_by_role("link", name="Atlas").first
    link.focus()
    _mark(page)
    with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
        page.evaluate("document.body.dispatchEvent(new CustomEvent('mirbad:resync'))")
    page.wait_for_timeout(200)
    assert page.evaluate("document.activeElement.textContent.trim()") == "Atlas"
    assert not _reloaded(page)


def test_a_machine_joins_under_the_eyes_of_the_person_who_asked_it(open_page, site):
    page = open_page("/nodes/-/add")
    page.get_by_label("Node id").fill("Forge!")
    page.get_by_role("button", name="Create join command").click()
    expect(page.locator("#id_node_id_error")).to_be_visible()
    page.get_by_label("Node id").fill("forge")
    page.get_by_role("button", name="Create join command").click()
    token = page.locator("#join-token")
    expect(token).to_have_text(re.compile(r"^[0-9a-f]{16}\.[\w-]{43}$"))
    expect(page.locator("#join-command")).to_contain_text("forge")
    expect(page.locator("#join-command")).not_to_contain_text(token.inner_text())
    expect(page.locator("#join-progress")).to_contain_text("Waiting for the machine")
    _mark(page)
    site.happen("forge-enrolls")
    expect(page.locator("#join-progress .spki span")).to_have_count(16)
    page.get_by_role("button", name="Reject").click()
    dialog = page.get_by_role("dialog", name="Reject?")
    expect(dialog).to_contain_text("The id can be used again")
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="approve").click()
    expect(page.locator("#join-progress")).to_contain_text("has joined")
    assert not _reloaded(page)
    page.reload()
    expect(page.locator("#join-token")).to_have_count(0)


def test_a_refusal_says_why_and_leaves_the_page(open_page):
    page = open_page("/models/gemma-3-27b")
    _mark(page)
    page.get_by_role("button", name="Start").click()
    notice = page.locator("#notices .notice.error")
    expect(notice).to_contain_text("offline")
    notice.get_by_role("button", name="Dismiss").click()
    expect(notice).to_have_count(0)
    assert not _reloaded(page)


def test_draining_asks_first_and_shows_at_once(open_page):
    page = open_page("/nodes/local")
    page.get_by_role("link", name="Drain…").first.click()
    page.get_by_role("button", name="Drain local").click()
    expect(page.locator(".page-head .badge")).to_have_text("Draining")
    _mark(page)
    expect(page.locator("#notices .notice.success")).to_contain_text("draining")
    page.get_by_role("button", name="Undrain").click()
    expect(page.locator(".page-head .badge")).to_have_text("Online")
    assert not _reloaded(page)


def test_a_viewer_sees_no_buttons_that_would_be_refused(open_page):
    page = open_page("/models/phi-4", person="viewer")
    expect(page.get_by_role("heading", name="Phi 4")).to_be_visible()
    for name in ("Start", "Stop", "Delete", "Edit"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)


def test_a_key_is_shown_once_and_copied(open_page):
    page = open_page("/keys/new", permissions=["clipboard-read", "clipboard-write"])
    page.get_by_label("Name").fill("browser")
    page.get_by_role("button", name="Create key").click()
    secret = page.locator("#key-secret")
    expect(secret).to_have_text(re.compile(r"^ssk_[\w-]{43}$"))
    page.locator("[data-copy=key-secret]").click()
    expect(page.locator("[data-copy=key-secret]")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == secret.inner_text()
    page.get_by_role("link", name="Done").click()
    expect(page.locator("tr", has_text="browser")).to_contain_text("Active")
    assert "ssk_" + secret_rest(page) not in page.content()
    page.locator("tr", has_text="browser").get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(page.locator("tr", has_text="browser")).to_have_count(0)


def secret_rest(page) -> str:
    """Return text that the list must not show: more of a secret than its prefix."""
    return page.locator("tr", has_text="browser").locator(".mono").first.inner_text().removesuffix("…").ljust(47, "x")


def test_the_theme_is_kept(open_page):
    page = open_page("/nodes", scheme="light")
    switch = page.locator("[data-theme-switch]")
    dark_before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    switch.click()
    switch.click()
    expect(switch).to_have_text("Theme: dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark_before
    page.goto(page.url.replace("/nodes", "/models"))
    assert page.locator("html").get_attribute("data-theme") == "dark"


def test_the_page_says_so_when_its_line_is_cut_and_comes_back(open_page):
    page = open_page("/nodes")
    state = page.locator(".side [data-live-state]")
    expect(state).to_have_text("Live")
    page.evaluate("live.socket.close()")
    expect(state).to_have_text("Live", timeout=15_000)


def test_the_menu_of_a_phone_opens_and_leads_on(open_page):
    page = open_page("/", width=390)
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="Operations", exact=True).click()
    expect(page.get_by_role("heading", name="Operations")).to_be_visible()


def test_the_keyboard_reaches_the_page_first(open_page):
    page = open_page("/models")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_model_is_defined_with_the_folders_that_the_node_reported(open_page):
    page = open_page("/models/-/new")
    page.get_by_label("Model id").fill("small-talk")
    page.get_by_label("Node", exact=True).select_option("local")
    page.locator("select#id_folder").select_option("smollm2-135m")
    page.locator("select#id_file").select_option("smollm2-135m-instruct-q8_0.gguf")
    page.get_by_label("Runtime").select_option("vllm")
    page.get_by_label("Delivery").select_option("process")
    page.get_by_role("button", name="Create model").click()
    expect(page.get_by_role("alert").filter(has_text="Not saved")).to_be_visible()
    expect(page.get_by_label("GGUF file")).to_have_value("smollm2-135m-instruct-q8_0.gguf")
    page.get_by_label("Runtime").select_option("llama.cpp")
    page.get_by_role("button", name="Create model").click()
    expect(page.get_by_role("heading", name="small-talk")).to_be_visible()
    expect(page.locator(".facts").first).to_contain_text("smollm2-135m")


EVENTS = "".join(
    f'data: {{"choices": [{{"index": 0, "delta": {{"content": "{word} "}}}}]}}\n\n'
    for word in ("Hello", "from", "here")
)


def test_the_playground_reads_a_stream_and_says_how_fast_it_was(open_page):
    page = open_page("/playground?model=smollm2-135m")
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}\n\ndata: [DONE]\n\n'
    page.route(
        "**/playground/stream", lambda route: route.fulfill(content_type="text/event-stream", body=EVENTS + usage)
    )
    page.get_by_label("Message").fill("Say hello")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.you .said")).to_have_text("Say hello")
    expect(page.locator(".turn.model .said")).to_have_text("Hello from here ")
    expect(page.locator(".turn.model .figures")).to_contain_text("first token after")
    expect(page.locator(".turn.model .figures")).to_contain_text("3 tokens")


def test_the_playground_tells_a_refusal_in_its_own_words(open_page):
    page = open_page("/playground?model=gemma-3-27b")
    page.get_by_label("Message").fill("Hello?")
    page.keyboard.press("Enter")
    expect(page.locator(".turn.model.wrong .said")).to_contain_text(
        re.compile(r"gemma-3-27b|borealis|gateway is starting")
    )
