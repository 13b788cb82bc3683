"""A real headless Chromium, driven over the WebDriver protocol, and a beacon to stay dark."""

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

START_TIMEOUT_S = 30
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--window-size=1440,1000",
)  # fmt: skip


class Browser:
    """One WebDriver session."""

    def __init__(self, port, options):
        self._root = f"http://127.0.0.1:{port}"
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def open(self, path):
        """Open a file from disk and drop what earlier pages logged."""
        self.call("POST", "/url", {"url": "about:blank"})
        self._log("performance"), self._log("browser")
        self.call("POST", "/url", {"url": path.absolute().as_uri()})

    def script(self, body, *args):
        """Run a function body in the page and return its value."""
        return self.call("POST", "/execute/sync", {"script": body, "args": list(args)})

    def keys(self, *keys):
        """Press and release keys one after another, as a keyboard does."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self.call("POST", "/actions", {"actions": [source]})

    def requests(self):
        """Return the addresses that the page asked for since it was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self._log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def console(self):
        """Return what the page wrote to its console since it was opened, errors included."""
        return [entry["message"] for entry in self._log("browser")]

    def call(self, method, path, body=None):
        return self._call(method, self._session + path, body)

    def close(self):
        self._call("DELETE", self._session)

    def _log(self, kind):
        return self.call("POST", "/se/log", {"type": kind})

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as reply:
            return json.loads(reply.read())["value"]


@pytest.fixture(scope="session")
def driver_port():
    if not shutil.which("chromedriver") or not shutil.which("chromium"):
        pytest.skip("needs Debian's chromium and chromium-driver on the path")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["chromedriver", f"--port={port}", "--log-level=OFF"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    yield port
    process.terminate()
    process.wait(timeout=START_TIMEOUT_S)


@pytest.fixture(scope="session")
def browser(driver_port, tmp_path_factory):
    profile = tmp_path_factory.mktemp("profile")
    args = [*FLAGS, f"--user-data-dir={profile}"]
    browser = Browser(driver_port, {"binary": shutil.which("chromium"), "args": args})
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def phone(driver_port, tmp_path_factory):
    profile = tmp_path_factory.mktemp("phone")
    options = {
        "binary": shutil.which("chromium"),
        "args": [*FLAGS, f"--user-data-dir={profile}"],
        "mobileEmulation": {"deviceMetrics": {"width": 390, "height": 844, "pixelRatio": 2.0}},
    }
    browser = Browser(driver_port, options)
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def beacon():
    """Serve the loopback; `hits` holds every path that anything asked for."""
    hits = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hits.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.hits = hits
    server.url = f"http://127.0.0.1:{server.server_address[1]}/beacon"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()
