# SPDX-FileCopyrightText: gpufabric.cluster contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Says what is being done while a person waits; one plain line a step where nobody watches."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import typing as t

_REDRAW_S = 0.5


class Progress:
    """Reports steps on a stream: a line redrawn with its seconds on a terminal, else one line when a step has ended."""

    def __init__(self, stream: t.TextIO | None = None, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._live = not quiet and self._stream.isatty()

    def say(self, text: str) -> None:
        """One line, now."""
        if not self._quiet:
            self._stream.write(f"lab: {text}\n")
            self._stream.flush()

    @contextlib.contextmanager
    def step(self, text: str) -> t.Iterator[None]:
        """Show text and its running time until the block ends."""
        begun = time.monotonic()
        ended = threading.Event()
        drawer = threading.Thread(target=self._redraw, args=(text, begun, ended), daemon=True) if self._live else None
        if drawer:
            drawer.start()
        try:
            yield
        except BaseException:
            self._finish(text, begun, ended, drawer, "failed")
            raise
        self._finish(text, begun, ended, drawer, "done")

    def _redraw(self, text: str, begun: float, ended: threading.Event) -> None:
        while not ended.wait(_REDRAW_S):
            self._stream.write(f"\r\x1b[Klab: {text} … {time.monotonic() - begun:.0f} s")
            self._stream.flush()

    def _finish(
        self, text: str, begun: float, ended: threading.Event, drawer: threading.Thread | None, outcome: str
    ) -> None:
        if drawer:
            ended.set()
            drawer.join()
            self._stream.write("\r\x1b[K")
        self.say(f"{text}: {outcome} in {time.monotonic() - begun:.1f} s")
