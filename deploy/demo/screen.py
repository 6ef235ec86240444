"""The demo's screen: lines that stay, and on a terminal one bar below them. Piped: lines alone, plain ASCII marks."""

import os
import shutil
import sys
import time


class Screen:
    def __init__(self):
        self.live = sys.stdout.isatty() and os.environ.get("TERM", "") != "dumb"
        encoding = (sys.stdout.encoding or "").lower()
        self.unicode = self.live and encoding.startswith("utf")
        self.color = self.live and "NO_COLOR" not in os.environ
        self.began = time.monotonic()
        self._bar = ""
        self._plain_bar_at = 0.0

    def clock(self) -> str:
        seconds = int(time.monotonic() - self.began)
        return f"{seconds // 60}:{seconds % 60:02d}"

    def line(self, text: str = "") -> None:
        self._clear()
        print(self.shown(text), flush=True)
        self._draw()

    def shown(self, text: str) -> str:
        return text if self.unicode else plain(text)

    def event(self, text: str) -> None:
        self.line(f"{self.clock():>5}  {text}")

    def bar(self, share: float, text: str) -> None:
        """The state of things; piped it becomes a line every 10 s."""
        share = min(1.0, max(0.0, share))
        if not self.live:
            if time.monotonic() - self._plain_bar_at >= 10:
                self._plain_bar_at = time.monotonic()
                print(plain(f"{self.clock():>5}  {100 * share:3.0f}%  {text}"), flush=True)
            return
        width = 24
        filled = int(width * share)
        drawn = (
            ("━" * filled + "╸" * (filled < width) + "─" * (width - filled - 1))
            if self.unicode
            else "#" * filled + "-" * (width - filled)
        )
        self._bar = f"{drawn} {100 * share:3.0f}%  {text}"
        self._clear()
        self._draw()

    def end_bar(self) -> None:
        self._clear()
        self._bar = ""

    def mark(self, holds: bool) -> str:
        if not self.unicode:
            return "ok" if holds else "MISSED"
        text = "✔" if holds else "✘"
        return f"\x1b[{32 if holds else 31}m{text}\x1b[0m" if self.color else text

    def _clear(self) -> None:
        if self._bar:
            sys.stdout.write("\r\x1b[K")

    def _draw(self) -> None:
        if self._bar:
            columns = shutil.get_terminal_size().columns
            sys.stdout.write(self._bar[: columns - 1])
            sys.stdout.flush()


def plain(text: str) -> str:
    for sign, ascii_sign in (
        ("→", "->"),
        ("≤", "<="),
        ("·", "-"),
        ("…", "..."),
        ("✔", "ok"),
        ("✘", "MISSED"),
    ):
        text = text.replace(sign, ascii_sign)
    return text.encode("ascii", "replace").decode()
