"""The page in a real browser: silent on the network, deaf to hostile text, usable by keyboard."""

import json
import time
from pathlib import Path

import pytest

from reports import html_report
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


def wait_until(browser, condition):
    for _ in range(40):
        if browser.script(condition):
            return
        time.sleep(0.05)
    raise AssertionError(f"never true: {condition}")


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


def search(browser):
    assert len(shown(browser)) == 6
    browser.keys("/", *"trigger-4")
    assert shown(browser) == ["trigger-4"]
    assert "1 of 6" in browser.script("return document.querySelector('.count').textContent")
    browser.keys(ESCAPE)
    assert len(shown(browser)) == 6


def search_from_the_field(browser):
    browser.script("document.getElementById('query').focus()")
    browser.keys(*"trigger-4")
    assert shown(browser) == ["trigger-4"]


def filter_by_each_select(browser):
    for control, choice, left in (
        ("rule", "KVA101", 6), ("severity", "critical", 6), ("source", "a", 2), ("sink", "b", 2),
    ):  # fmt: skip
        choose(browser, control, choice)
        assert len(shown(browser)) == left
    choose(browser, "sink", "d")
    assert shown(browser) == []


def sort_by_time_and_tenant(browser):
    def column(name):
        return browser.script(
            "return [...document.querySelectorAll('#list > article')]"
            ".map(a => a.dataset[arguments[0]])",
            name,
        )

    browser.script(
        "const list = document.getElementById('list'); list.prepend(list.lastElementChild)"
    )
    assert column("time") != sorted(column("time"))
    choose(browser, "order", "time")
    assert column("time") == sorted(column("time"))
    assert column("sink") != sorted(column("sink"))
    choose(browser, "order", "tenant")
    assert column("sink") == sorted(column("sink"))


def follow_a_permalink_to_an_answer_that_was_filtered_out(browser):
    anchor = browser.script("return document.getElementById('list').lastElementChild.id")
    choose(browser, "source", "a")
    browser.script("location.hash = arguments[0]", anchor)
    wait_until(browser, f"return document.activeElement.id === '{anchor}'")
    assert len(shown(browser)) == 6


def undo_a_search_without_result(browser):
    browser.script("document.getElementById('query').focus()")
    browser.keys(*"nosuchtext")
    assert shown(browser) == []
    assert browser.script("return document.getElementById('none').hidden") is False
    browser.script("document.getElementById('reset').focus()")
    browser.keys(ENTER)
    assert len(shown(browser)) == 6


def show_more(browser):
    assert len(shown(browser)) == 4
    browser.script("document.getElementById('more').focus()")
    browser.keys(ENTER)
    assert len(shown(browser)) == 6
    assert browser.script("return document.activeElement.closest('article') !== null")
    assert browser.script("return document.getElementById('more-line').hidden") is True


# Each interaction, and the piece of script without which it cannot work.
INTERACTIONS = {
    search: 'document.addEventListener("keydown"',
    search_from_the_field: 'query.addEventListener("input"',
    filter_by_each_select: 'select.addEventListener("change"',
    sort_by_time_and_tenant: 'order.addEventListener("change"',
    follow_a_permalink_to_an_answer_that_was_filtered_out: 'addEventListener("hashchange"',
    undo_a_search_without_result: 'byId("reset").addEventListener("click"',
    show_more: 'byId("more").addEventListener("click"',
}


@pytest.mark.parametrize("interact", INTERACTIONS, ids=lambda interact: interact.__name__)
def test_each_interaction_works_by_keyboard_and_not_without_its_script(
    interact, browser, incident, records, key, tmp_path, monkeypatch
):
    if interact is show_more:
        monkeypatch.setattr(html_report, "SINKS_SHOWN_AT_ONCE", 4)
    path = tmp_path / "with.html"
    path.write_bytes(report_html(incident, records, key=key))
    browser.open(path)
    interact(browser)

    piece, asset = INTERACTIONS[interact], html_report._asset
    event = piece.rpartition('"')[0].rpartition('"')[2]
    dead = piece.replace(f'"{event}"', '"nothing"')
    assert piece in asset("report.js")
    monkeypatch.setattr(html_report, "_asset", lambda name: asset(name).replace(piece, dead))
    path = tmp_path / "without.html"
    path.write_bytes(report_html(incident, records, key=key))
    browser.open(path)
    with pytest.raises(AssertionError):
        interact(browser)


def test_tab_reaches_every_control_in_order(browser, page):
    browser.open(page)
    browser.keys("/")
    reached = []
    for _ in range(5):
        browser.keys(TAB)
        reached.append(browser.script("return document.activeElement.id"))
    assert reached == ["rule", "severity", "source", "sink", "order"]


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
