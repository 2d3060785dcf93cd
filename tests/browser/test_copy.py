"""The button that copies a link: with and without a clipboard, and with no answer."""

from __future__ import annotations

import pytest

from kit.widgets.base.scripts import script
from tests.browser.labserver import Browser

pytestmark = pytest.mark.browser

# What the explorer's row of buttons is in the page; `answer` stands for the kernel.
PAGE = """<div class="kit-history"><button class="kit-copy-link">Copy link</button>
<div id="shared" style="display:none"><div class="kit-link"><input></div></div></div>
<textarea id="paste"></textarea>"""
LISTEN = """() => {
  document.addEventListener('click', controls.copyLink);
  window.answer = (text) => {
    document.querySelector('.kit-link input').value = text;
    document.getElementById('shared').style.display = '';
  };
}"""
COUNT = """() => {
  const copy = document.execCommand.bind(document);
  window.copies = 0;
  document.execCommand = (name) => { const done = copy(name); window.copies += 1; return done; };
}"""
SAYS = "text => document.querySelector('button').textContent === text"


def prepare(browser: Browser) -> None:
    browser.page.set_content(PAGE)
    browser.page.add_script_tag(
        content=f"window.controls = {script('widgets/base/js/controls.js')};"
    )
    browser.page.evaluate(LISTEN)


def test_a_link_is_copied_without_a_clipboard_and_the_button_gets_its_name_back(offline: Browser):
    page = offline.page
    prepare(offline)
    assert page.evaluate("navigator.clipboard === undefined")  # as on a page of plain http
    page.evaluate(COUNT)
    for count in (1, 2):  # the second click comes while the button says "Copied"
        page.get_by_role("button").click()
        page.evaluate("answer('mode=lazy#range=1_2')")
        page.wait_for_function("count => window.copies === count", arg=count)
        page.wait_for_function(SAYS, arg="Copied")
    assert page.evaluate("document.activeElement.tagName") == "BUTTON"
    page.locator("#paste").focus()
    page.keyboard.press("Control+v")
    pasted = "text => document.getElementById('paste').value === text"  # the browser takes its time
    page.wait_for_function(pasted, arg="mode=lazy#range=1_2")
    page.wait_for_function(SAYS, arg="Copy link")
    assert offline.errors() == []


def test_where_nothing_copies_the_field_is_selected_for_the_user(offline: Browser):
    page = offline.page
    prepare(offline)
    page.evaluate("() => { document.execCommand = () => false; }")
    page.get_by_role("button").click()
    page.evaluate("answer('mode=lazy#')")
    page.wait_for_function(SAYS, arg="Press Ctrl + C")
    chosen = "e => [e === document.activeElement, e.selectionStart, e.selectionEnd]"
    assert page.locator(".kit-link input").evaluate(chosen) == [True, 0, len("mode=lazy#")]


def test_a_kernel_that_does_not_answer_is_said(offline: Browser):
    prepare(offline)
    page = offline.page
    page.clock.install()
    page.get_by_role("button").click()
    page.clock.run_for(5000)
    page.wait_for_function(SAYS, arg="No answer yet: the link will stand below")
    page.clock.run_for(3000)
    page.wait_for_function(SAYS, arg="Copy link")
