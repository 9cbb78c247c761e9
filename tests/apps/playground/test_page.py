"""The page in a browser: draw, predict, retrain, reconnect; and how it looks, with screenshots in
pytest's folder.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.chromium import Browser, chromium_missing, open_browser
from support.pages import serving
from warpfit.apps.playground.server import Playground
from warpfit.apps.playground.session import Digits
from warpfit.data import load_dataset

NO_CHROMIUM = chromium_missing()
pytestmark = pytest.mark.skipif(NO_CHROMIUM is not None, reason=str(NO_CHROMIUM))

READY = "document.getElementById('status').dataset.state === 'ready'"
TRAINED = f"{READY} && document.getElementById('fact-accuracy').textContent !== '–'"
GUESSED = "/^[0-9]$/.test(document.getElementById('guess').textContent)"
ZERO = [
    (0.5 + 0.2 * math.sin(math.tau * idx / 24), 0.5 - 0.32 * math.cos(math.tau * idx / 24))
    for idx in range(25)
]
SIZES = [(1280, 800), (1920, 1080), (1024, 700), (800, 900), (390, 844), (320, 640)]

# What is wrong with the layout, in words: boxes outside of the page or over each other, text that
# does not fit.
LAYOUT = """
const wrong = [], width = document.documentElement.clientWidth;
const isShown = (each) => each.checkVisibility() && each.getBoundingClientRect().width > 0;
const name = (each) => each.id || each.className || each.tagName;
const whole = document.documentElement.scrollWidth;
if (whole > width) wrong.push(`the page is ${whole} wide`);
for (const each of [...document.body.querySelectorAll('*')].filter(isShown)) {
  const box = each.getBoundingClientRect();
  if (box.left < -0.5 || box.right > width + 0.5) wrong.push(`${name(each)} is outside`);
}
const kinds = 'h1,h2,p,dd,dt,label,output,button,legend,.value,select';
const texts = [...document.querySelectorAll(kinds)];
for (const each of texts.filter(isShown)) {
  if (each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).display !== 'inline')
    wrong.push(`${name(each)} overflows: ${each.textContent}`);
}
const apart = (selector) => {
  const all = [...document.querySelectorAll(selector)].filter(isShown);
  all.forEach((one, idx) => all.slice(idx + 1).forEach((other) => {
    const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
    if (a.left < b.right - 0.5 && b.left < a.right - 0.5
        && a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5)
      wrong.push(`${name(one)} is over ${name(other)}`);
  }));
};
apart('header > *'); apart('.panel');
apart('.controls .field, .buttons button'); apart('.facts dl > div');
apart('.curves figure'); apart('.answer > *'); apart('.board > *');
return wrong;
"""

# The pixels of a canvas, by way of another, lest Chromium complain that the page's is read.
PIXELS = """
const shown = document.getElementById(arguments[0]);
const copy = new OffscreenCanvas(shown.width, shown.height);
const context = copy.getContext('2d', { willReadFrequently: true });
context.drawImage(shown, 0, 0);
const { data } = context.getImageData(0, 0, copy.width, copy.height);
"""

# How many pixels of a canvas have ink.
INK = (
    PIXELS
    + """
return data.filter((value, idx) => idx % 4 === 3 && value > 0).length;
"""
)

# How many columns have ink in what the network sees.
LIT_COLUMNS = f"""(() => {{
{PIXELS.replace("arguments[0]", "'seen'")}
return new Set([...Array(64).keys()].filter((at) => data[4 * at] > 60).map((at) => at % 8)).size;
}})()"""

# How many colours a canvas shows.
COLOURS = (
    PIXELS
    + """
return new Set(new Uint32Array(data.buffer)).size;
"""
)

# The contrast between an element's text and the page under it, as WCAG has it.
CONTRAST = """
const light = (colour) => {
  const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map((each) => each / 255)
    .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (each) => {
  const colour = getComputedStyle(each).backgroundColor;
  return colour === 'rgba(0, 0, 0, 0)' ? ground(each.parentElement) : colour;
};
const texts = [...document.querySelectorAll(arguments[0])];
return texts.filter((each) => each.checkVisibility() && !each.disabled).map((each) => {
  const [a, b] = [light(getComputedStyle(each).color), light(ground(each))].sort((x, y) => y - x);
  return [(a + 0.05) / (b + 0.05), each.textContent];
});
"""


@pytest.fixture(scope="module")
def digits() -> Digits:
    return Digits(load_dataset("digits", flat=True), size=8, top=1)


@pytest.fixture(scope="module")
def shared(digits: Digits) -> Iterator[Playground]:
    with serving(digits) as playground:
        yield playground


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def page(shared: Playground, browser: Browser) -> Iterator[Browser]:
    """The page, just opened, with its first training done; nothing may be said on the console."""
    browser.resize(*SIZES[0])
    browser.colours("light")
    browser.open(shared.url)
    browser.wait(TRAINED, "the first training")
    yield browser
    browser.frames()
    # What the next test would find again, and what the page would still keep.
    browser.script("sessionStorage.clear(); Storage.prototype.setItem = () => {}")
    assert browser.console() == []


def slide(page: Browser, identity: str, position: str) -> None:
    """Move a slider as a hand does, to JavaScript's idea of a position."""
    page.script(
        f"const e = document.getElementById(arguments[0]); e.value = {position};"
        "e.dispatchEvent(new Event('input', {bubbles: true}));",
        identity,
    )


def stop_early(page: Browser) -> None:
    """End the training after some epochs, if there is one."""
    page.wait(
        "/^[1-9]/.test(document.getElementById('fact-epoch').textContent)", "the first epochs"
    )
    page.script("document.getElementById('stop').click()")
    page.wait(TRAINED, "the end of the training")


def shares(page: Browser, bars: str) -> list[float]:
    texts = page.script(
        "return [...document.querySelectorAll(`#${arguments[0]} .value`)].map((each) => "
        "each.textContent)",
        bars,
    )
    return [float(text.removesuffix(" %")) for text in texts]


def test_the_first_opening_trains_a_network(page: Browser, shared: Playground) -> None:
    assert page.text("status-text") == "Ready · CPU"
    assert page.text("fact-epoch") == "20 of 20"
    assert page.text("fact-data") == "digits, 1,438 rows"
    assert page.text("fact-engine") == "layerwise, float32"
    assert page.text("fact-reason") == "Why this engine: on the CPU there is one engine, layerwise"
    assert float(page.text("fact-accuracy").removesuffix(" %")) > 90
    assert page.text("fact-seconds").endswith((" ms", " µs", " s"))
    assert "test 9" in page.script(
        "return document.getElementById('accuracy').getAttribute('aria-label')"
    )
    asked = page.script("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert asked
    assert all(address.startswith(shared.url) for address in asked)


def test_a_drawing_is_recognised_while_it_is_drawn(page: Browser) -> None:
    page.draw("pad", ZERO[:4])
    page.wait(GUESSED, "an answer to the first stroke")
    page.draw("pad", ZERO[3:])
    page.wait("document.getElementById('guess').textContent === '0'", "a nought")
    found = shares(page, "bars")
    assert sum(found) == pytest.approx(100, abs=0.6)
    assert max(found) == found[0]
    assert page.text("guess-share") == f"{found[0]:.1f} %"
    assert page.script(COLOURS, "seen") > 3
    page.click("clear")
    page.wait(
        "document.getElementById('guess-share').textContent === 'nothing drawn'", "an empty drawing"
    )
    page.click("sample")
    page.wait(GUESSED, "an answer to a test digit")


@pytest.mark.slow
def test_the_last_of_many_strokes_is_asked_about(page: Browser) -> None:
    page.script("""
        const pad = document.getElementById('pad');
        for (let idx = 0; idx < 20; idx += 1)
          pad.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowDown', shiftKey: true }));
    """)  # at once: the first answer comes when all are drawn
    page.wait(f"{LIT_COLUMNS} <= 2", "a line")


@pytest.mark.slow
def test_a_change_trains_another_network(page: Browser) -> None:
    assert page.text("fact-parameters") == "9,610"
    page.draw("pad", ZERO)
    page.wait(GUESSED, "an answer")
    before = shares(page, "bars")
    slide(page, "width", "3")
    slide(page, "width", "4")
    assert page.text("fact-parameters") == "9,610"  # only when the hand rests
    page.wait(
        "document.getElementById('fact-parameters').textContent === '460'", "a network of 6 units"
    )
    page.wait(TRAINED, "its training")
    assert shares(page, "bars") != before
    page.choose("optimizer", "rmsprop")
    page.wait("document.getElementById('status').dataset.state === 'training'", "another training")
    page.wait(TRAINED, "its end")


def test_train_stop_and_reset(page: Browser) -> None:
    slide(page, "epochs", "e.max")
    slide(page, "batch_size", "0")  # takes long enough to be stopped
    page.wait(
        "/of 1000$/.test(document.getElementById('fact-epoch').textContent)", "a long training"
    )
    page.wait(
        "!document.getElementById('fact-epoch').textContent.startsWith('0 ')", "its first epoch"
    )
    page.click("stop")
    page.wait(READY, "its end")
    done = int(page.text("fact-epoch").split()[0])
    assert 1 <= done < 1000
    page.click("train")
    page.wait("document.getElementById('status').dataset.state === 'training'", "more of it")
    page.wait(
        f"parseInt(document.getElementById('fact-epoch').textContent) > {done}", "the next epoch"
    )
    page.click("reset")
    page.wait("document.getElementById('fact-epoch').textContent === '0 of 0'", "a new network")
    page.wait(READY, "its end")
    assert page.text("fact-accuracy") == "–"


@pytest.mark.slow
def test_decisions_are_drawn_while_it_trains(page: Browser) -> None:
    page.click("tab-points")
    stop_early(page)
    assert page.text("fact-data") == "spirals, 400 rows"
    assert page.text("legend") == "class Aclass B"
    early = page.script(PIXELS + "return data.join()", "plane")
    slide(page, "epochs", "5")  # 20 epochs
    page.choose("points", "moons")
    page.wait("document.getElementById('fact-epoch').textContent === '20 of 20'", "the training")
    assert page.script(PIXELS + "return data.join()", "plane") != early
    assert float(page.text("fact-accuracy").removesuffix(" %")) > 85
    found = classes_shown(page)
    assert found[0] > 0.2
    assert found[1] > 0.2
    assert sum(shares(page, "place-bars")) == pytest.approx(100, abs=0.6)
    page.choose("points", "blobs")
    page.wait(
        "document.getElementById('legend').textContent === 'class Aclass Bclass C'", "three classes"
    )
    page.wait("document.getElementById('fact-epoch').textContent === '20 of 20'", "the training")
    assert min(classes_shown(page)) > 0.15
    page.click("tab-digits")
    assert page.text("fact-data") == "digits, 1,438 rows"


def classes_shown(page: Browser) -> list[float]:
    """Return how much of the decision image is nearest in hue to the colour of each class."""
    code = """
        const hue = ([r, g, b]) => Math.atan2(Math.sqrt(3) * (g - b), 2 * r - g - b);
        const style = getComputedStyle(document.documentElement);
        const count = document.querySelectorAll('#legend span').length;
        const hues = Array.from({ length: count }, (_, idx) => {
          const hex = style.getPropertyValue(`--class-${idx}`).trim().slice(1);
          return hue([0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
        });
        const found = hues.map(() => 0);
        for (let at = 0; at < data.length; at += 4) {
          const own = hue(data.subarray(at, at + 3));
          const turn = (by) => Math.abs(Math.atan2(Math.sin(by), Math.cos(by)));
          const away = hues.map((each) => turn(own - each));
          found[away.indexOf(Math.min(...away))] += 4 / data.length;
        }
        return found;
    """
    return page.script(PIXELS + code, "plane")


@pytest.mark.slow
def test_the_keyboard_is_enough(page: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    page.keys("pad", *[Keys.SHIFT + Keys.ARROW_DOWN] * 12)
    page.wait(GUESSED, "an answer")
    page.keys("pad", Keys.DELETE)
    page.wait(
        "document.getElementById('guess-share').textContent === 'nothing drawn'", "an empty drawing"
    )
    page.keys("depth", Keys.ARROW_RIGHT)
    page.wait(
        "document.getElementById('fact-parameters').textContent === '26,122'", "another layer"
    )
    stop_early(page)
    page.keys("tab-digits", Keys.ARROW_RIGHT)
    stop_early(page)
    assert page.script("return document.activeElement.id") == "tab-points"
    before = page.text("place")
    page.keys("plane", *[Keys.ARROW_UP] * 3)
    assert page.text("place") != before


def test_every_control_has_a_name(page: Browser) -> None:
    unnamed = page.script("""
        return [...document.querySelectorAll('input, select, button, canvas, [role]')]
          .filter((each) => !(each.labels?.length || each.textContent.trim()
              || each.getAttribute('aria-label')
            || each.getAttribute('aria-labelledby'))).map((each) => each.outerHTML)
          .filter((each) => !each.includes('notice-text'));
    """)
    assert unnamed == []


@pytest.mark.slow
def test_a_failure_is_shown_until_a_training_starts(page: Browser) -> None:
    for name, position in (("lr", "e.max"), ("depth", "e.max"), ("width", "e.max")):
        slide(page, name, position)
    page.choose("activation", "silu")
    page.choose("optimizer", "sgd")
    page.wait("!document.getElementById('notice').hidden", "the failure")
    assert page.text("notice-text").startswith(
        "Training failed: the loss or a weight is not finite in epoch "
    )
    assert page.script(LAYOUT) == []
    slide(page, "lr", "0")
    page.wait("document.getElementById('notice').hidden", "another training")
    page.click("stop")


@pytest.mark.slow
def test_it_connects_again_when_the_server_restarts(
    digits: Digits, browser: Browser, tmp_path: Path
) -> None:
    browser.resize(*SIZES[0])
    with serving(digits) as playground:
        browser.open(playground.url)
        browser.wait(TRAINED, "the first training")
        slide(browser, "width", "5")
        browser.wait("document.getElementById('fact-parameters').textContent === '610'", "8 units")
        browser.wait(TRAINED, "their training")
        browser.draw("pad", ZERO)
        browser.wait(GUESSED, "an answer")
    browser.wait(
        "document.getElementById('status').dataset.state === 'lost'", "the end of the server"
    )
    assert "keeps your settings" in browser.text("notice-text")
    assert browser.script("return document.getElementById('train').disabled")
    assert browser.script(LAYOUT) == []
    browser.screenshot(tmp_path / "disconnected.png")
    slide(browser, "depth", "2")  # also what is changed meanwhile
    with serving(digits, port=playground.port):
        browser.wait(TRAINED, "the new server")
        assert (
            browser.text("notice-text")
            == "Connected again. Your settings were kept; the network trains anew."
        )
        assert browser.text("fact-parameters") == "682"
        browser.wait(GUESSED, "an answer to the drawing that was there")
        browser.open("about:blank")
    browser.console()  # says that the server was away


class EmptyPage(BaseHTTPRequestHandler):
    """A page of another program on this machine."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_pages_of_others_are_refused(shared: Playground, browser: Browser) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), EmptyPage) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            browser.open(f"http://127.0.0.1:{other.server_port}/")
            heard = browser.driver.execute_async_script(
                "const done = arguments[1], socket = new WebSocket(arguments[0]);"
                "socket.onopen = () => done('open'); socket.onerror = () => done('refused');",
                f"ws://127.0.0.1:{shared.port}/session",
            )
            browser.open("about:blank")
        finally:
            other.shutdown()
            thread.join()
    assert heard == "refused"
    assert "Unexpected response code: 403" in " ".join(browser.console())


@pytest.mark.slow
@pytest.mark.in_turns(3)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_how_it_looks(page: Browser, tmp_path: Path, scheme: str) -> None:
    page.colours(scheme)
    page.draw("pad", ZERO)
    page.wait(GUESSED, "an answer")
    for task, canvases in (("digits", ("pad", "seen")), ("points", ("plane",))):
        page.click(f"tab-{task}")
        stop_early(page)
        for width, height in SIZES if scheme == "light" else SIZES[::4]:
            page.resize(width, height)
            page.screenshot(tmp_path / f"{task}-{scheme}-{width}.png")
            assert page.script(LAYOUT) == [], (task, width)
            for canvas in (*canvases, "loss", "accuracy"):
                assert page.script(COLOURS, canvas) > 2, (task, canvas, width)
        page.resize(*SIZES[0])
        assert page.script("return document.documentElement.scrollHeight") <= SIZES[0][1]
        texts: list[Any] = page.script(
            CONTRAST, "h1, h2, p, dt, dd, label, output, button, legend, select, .value"
        )
        assert len(texts) > 30
        assert [(ratio, text) for ratio, text in texts if ratio < 4.5] == []


def test_a_reload_keeps_settings_and_drawing(page: Browser, tmp_path: Path) -> None:
    page.draw("pad", ZERO)
    page.wait(GUESSED, "a guess")
    page.choose("activation", "tanh")
    slide(page, "width", "4")
    before = page.script("return document.querySelector('output[for=width]').textContent")
    page.wait(
        "sessionStorage.length === 1 && !document.getElementById('pad-empty').checkVisibility()",
        "keeping",
    )
    ink = page.script(INK, "pad")
    page.driver.refresh()
    page.wait(TRAINED, "the training after the reload")
    page.wait(GUESSED, "a guess after the reload")
    assert page.script("return document.getElementById('activation').value") == "tanh"
    assert page.script("return document.querySelector('output[for=width]').textContent") == before
    assert page.script(INK, "pad") == ink > 1000
    page.screenshot(tmp_path / "reloaded.png")


@pytest.mark.slow
def test_a_reload_keeps_the_tab(page: Browser) -> None:
    page.click("tab-points")
    page.choose("points", "spirals")
    stop_early(page)
    page.driver.refresh()
    stop_early(page)
    assert page.script("return document.querySelector('main').dataset.task") == "points"
    assert page.script("return document.getElementById('points').value") == "spirals"


@pytest.mark.slow
@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    "kept", ["{", "3", '{"task": 7, "settings": {"digits": {"width": "wide"}}, "drawing": {}}']
)
def test_what_nobody_kept_is_left_aside(page: Browser, kept: str) -> None:
    page.script("sessionStorage.setItem('warpfit playground', arguments[0])", kept)
    page.driver.refresh()
    page.wait(TRAINED, "the training after the reload")
    assert page.script("return document.querySelector('main').dataset.task") == "digits"
