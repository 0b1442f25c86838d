# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A headless Chromium over its DevTools pipe: what a page draws, asks for and complains about. Needs no library.

The protocol: messages of JSON with a NUL behind each, to the browser's file descriptor 3, from its 4
(https://chromedevtools.github.io/devtools-protocol/).
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import time
import types
import typing as t

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser")
#: for one answer, and for a page to load, in seconds
ANSWER_S = 300.0


@dataclasses.dataclass
class Page:
    """What came of a page. requests: URLs; errors: what its console and its scripts complained about; value: of the expression."""

    requests: list[str] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    value: t.Any = None


class Browser:
    """One browser with a profile of its own below *directory*, ended with everything that it started."""

    def __init__(self, directory: pathlib.Path) -> None:
        assert PROGRAM is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        arguments = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe",
            "--disable-background-networking", "--disable-component-update", "--disable-extensions",
            f"--user-data-dir={directory}",
        ]  # fmt: skip

        def place() -> None:
            os.dup2(to_browser, 60)
            os.dup2(from_browser, 61)
            os.dup2(60, 3)
            os.dup2(61, 4)

        self._process = subprocess.Popen(
            [PROGRAM, *arguments], preexec_fn=place, close_fds=False, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(directory), "XDG_CONFIG_HOME": str(directory)},
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._events: list[dict[str, t.Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)
        os.close(self._write)
        os.close(self._read)

    def open(self, path: pathlib.Path, expression: str, screen: tuple[int, int] = (1280, 4000)) -> Page:
        """Load a file on a screen of so many pixels, let it come to rest, and evaluate *expression* in it, a promise's value too."""
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{domain}.enable", session)
        size = {"width": screen[0], "height": screen[1], "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", session, **size)
        self._events.clear()
        self._ask("Page.navigate", session, url=path.as_uri())
        self._until("Page.loadEventFired")
        rest = "new Promise(done => requestAnimationFrame(() => setTimeout(done, 200)))"
        self._ask("Runtime.evaluate", session, expression=rest, awaitPromise=True)
        told = self._ask("Runtime.evaluate", session, expression=expression, returnByValue=True, awaitPromise=True)
        page = Page(value=told["result"].get("value"))
        for event in self._events:
            self._take(event["method"], event["params"], page)
        self._ask("Target.closeTarget", targetId=target)
        return page

    def _take(self, method: str, params: dict[str, t.Any], page: Page) -> None:
        if method == "Network.requestWillBeSent":
            page.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            page.errors.append(params["exceptionDetails"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            page.errors.append(" ".join(str(argument.get("value")) for argument in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            page.errors.append(params["entry"]["text"])

    def _ask(self, method: str, session: str = "", **params: t.Any) -> dict[str, t.Any]:
        self._number += 1
        request = {
            "id": self._number,
            "method": method,
            "params": params,
            **({"sessionId": session} if session else {}),
        }
        os.write(self._write, json.dumps(request).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                assert "error" not in message, message
                result: dict[str, t.Any] = message["result"]
                return result
            if "method" in message:
                self._events.append(message)

    def _until(self, method: str) -> None:
        while not any(event["method"] == method for event in self._events):
            message = self._message()
            if "method" in message:
                self._events.append(message)

    def _message(self) -> dict[str, t.Any]:
        deadline = time.monotonic() + ANSWER_S
        while b"\0" not in self._buffer:
            ready, _unused, _unused = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self._read, 1 << 20)
            assert received, "the browser ended"
            self._buffer += received
        text, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, t.Any] = json.loads(text)
        return message
