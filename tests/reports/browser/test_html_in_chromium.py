"""The page in a real browser: silent on the network, deaf to hostile text, usable by keyboard."""

import json
from pathlib import Path

import pytest

from reports.html_report import report_html

pytestmark = pytest.mark.slow

PAYLOADS = json.loads((Path(__file__).parents[2] / "data/hostile_payloads.json").read_text())
TAB, ENTER, ESCAPE, DOWN = "\ue004", "\ue007", "\ue00c", "\ue015"
# What a page with a harmless text is made of; a hostile text must add nothing to it.
STRANGE = """
  const known = new Set(arguments[0]);
  const strange = [];
  for (const element of document.querySelectorAll("*")) {
    if (!known.has(element.tagName.toLowerCase())) { strange.push(element.tagName); }
    for (const name of element.getAttributeNames()) {
      if (/^on|^style$|^src|^action$/i.test(name)) { strange.push(element.tagName + " " + name); }
    }
    if (element.matches("a:not([href^='#'])")) { strange.push("link away"); }
  }
  return strange;
"""


@pytest.fixture
def page(tmp_path, incident, records, key):
    path = tmp_path / "report.html"
    path.write_bytes(report_html(incident, records, key=key))
    return path


def shown(browser):
    return browser.script(
        "return [...document.querySelectorAll('#list > article')]"
        ".filter(a => !a.hidden).map(a => a.querySelector('h3 bdi').textContent)"
    )


def choose(browser, control, value):
    """Press the down key on a select until it says `value`."""
    browser.script("document.getElementById(arguments[0]).focus()", control)
    for _ in range(10):
        if browser.script("return document.activeElement.value") == value:
            return
        browser.keys(DOWN)
    raise AssertionError(f"{control} offers no {value}")


def tags_of_harmless_pages(browser, hostile_case, key, tmp_path):
    tags = set()
    for text in ("harmless words", ""):
        for reveal in (False, True):
            path = tmp_path / "harmless.html"
            path.write_bytes(report_html(*hostile_case(text), reveal, key=key))
            browser.open(path)
            tags |= set(browser.script(
                "return [...document.querySelectorAll('*')].map(e => e.tagName.toLowerCase())"
            ))  # fmt: skip
    return sorted(tags)


@pytest.mark.parametrize("which", ["incident", "healthy", "undecided"])
def test_the_page_asks_the_network_for_nothing_and_logs_no_error(
    which, request, browser, records, key, tmp_path
):
    path = tmp_path / "report.html"
    path.write_bytes(report_html(request.getfixturevalue(which), records, key=key))
    browser.open(path)
    assert browser.script("return document.title").endswith("kvaudit")
    assert browser.requests() == [path.as_uri()]
    assert browser.console() == []


def test_the_beacon_and_the_owned_mark_do_show_a_page_that_is_not_escaped(
    browser, beacon, tmp_path
):
    path = tmp_path / "unescaped.html"
    path.write_text(f"<img src={beacon.url}/control><script>window.owned=1</script>")
    browser.open(path)
    assert browser.script("return window.owned") == 1
    assert f"{beacon.url}/control" in browser.requests()
    assert "/beacon/control" in beacon.hits


def test_no_hostile_text_runs_loads_or_builds_anything(
    browser, beacon, hostile_case, key, tmp_path
):
    known = tags_of_harmless_pages(browser, hostile_case, key, tmp_path)
    beacon.hits.clear()
    for number, payload in enumerate(PAYLOADS):
        text = payload["text"].replace("BEACON", beacon.url) * payload.get("repeat", 1)
        for reveal in (False, True):
            path = tmp_path / f"hostile-{number}-{reveal}.html"
            path.write_bytes(report_html(*hostile_case(text), reveal, key=key))
            browser.open(path)
            told = f"{payload['name']}, reveal={reveal}"
            assert browser.script("return window.owned") is None, told
            assert browser.requests() == [path.as_uri()], told
            assert browser.console() == [], told
            assert browser.script(STRANGE, known) == [], told
            assert browser.script("return document.querySelectorAll('script').length") == 1, told
            width = browser.script(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert width <= 0, f"{told}: {width} pixels wider than the window"
            assert "shown" in browser.script("return document.querySelector('.count').textContent")
    assert beacon.hits == []


def test_search_by_keyboard_leaves_only_what_matches(browser, page):
    browser.open(page)
    assert len(shown(browser)) == 6
    browser.keys("/", *"trigger-4")
    assert shown(browser) == ["trigger-4"]
    assert "1 of 6" in browser.script("return document.querySelector('.count').textContent")
    browser.keys(ESCAPE)
    assert len(shown(browser)) == 6


def test_tab_reaches_every_control_in_order(browser, page):
    browser.open(page)
    browser.keys("/")
    reached = []
    for _ in range(5):
        browser.keys(TAB)
        reached.append(browser.script("return document.activeElement.id"))
    assert reached == ["rule", "severity", "source", "sink", "order"]


@pytest.mark.parametrize(
    ("control", "choice", "left"),
    [("rule", "KVA101", 6), ("severity", "critical", 6), ("source", "a", 2), ("sink", "d", 2)],
)
def test_each_filter_works_by_keyboard(browser, page, control, choice, left):
    browser.open(page)
    choose(browser, control, choice)
    assert len(shown(browser)) == left


def test_sorting_by_time_and_tenant_changes_the_order(browser, page):
    def column(name):
        return browser.script(
            "return [...document.querySelectorAll('#list > article')]"
            ".map(a => a.dataset[arguments[0]])",
            name,
        )

    browser.open(page)
    browser.script(
        "const list = document.getElementById('list'); list.prepend(list.lastElementChild)"
    )
    assert column("time") != sorted(column("time"))
    choose(browser, "order", "time")
    assert column("time") == sorted(column("time"))
    assert column("sink") != sorted(column("sink"))
    choose(browser, "order", "tenant")
    assert column("sink") == sorted(column("sink"))


def test_a_permalink_shows_and_focuses_its_answer_even_when_it_was_filtered_out(browser, page):
    browser.open(page)
    anchor = browser.script("return [...document.querySelectorAll('#list > article')].at(-1).id")
    browser.keys("/", *"trigger-0")
    browser.script("location.hash = arguments[0]", anchor)
    focused = "return document.activeElement.id"
    for _ in range(50):
        if browser.script(focused) == anchor:
            break
    assert browser.script(focused) == anchor
    assert len(shown(browser)) == 6


def test_nothing_found_is_said_and_can_be_undone(browser, page):
    browser.open(page)
    browser.keys("/", *"nosuchtext")
    assert shown(browser) == []
    assert browser.script("return document.getElementById('none').hidden") is False
    browser.script("document.getElementById('reset').focus()")
    browser.keys(ENTER)
    assert len(shown(browser)) == 6


def test_without_its_script_the_page_shows_every_answer_and_no_dead_control(browser, page):
    without = page.with_name("no-script.html")
    text = page.read_text(encoding="utf-8")
    without.write_text(text[: text.index("<script>")] + "</body></html>", encoding="utf-8")
    browser.open(without)
    assert len(shown(browser)) == 6
    assert browser.script("return document.querySelector('.tools').hidden") is True
    browser.keys("/", *"trigger-4")
    assert len(shown(browser)) == 6


def test_on_a_phone_nothing_is_wider_than_the_screen(phone, page):
    phone.open(page)
    assert phone.script("return innerWidth") == 390
    assert phone.script("return document.documentElement.scrollWidth") <= 390
