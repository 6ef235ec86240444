"""What somebody does in a browser to log in: follows, fills in each page's form, and sends it. CA_FILE USER PASSWORD CODE URL.

CODE is entered where a page asks for one (device authorization); `-`: none.
"""

import http.cookiejar
import ssl
import sys
import urllib.parse
import urllib.request
from html.parser import HTMLParser

PAGES = 15


class Form(HTMLParser):
    """The page's first form that is sent by POST."""

    def __init__(self, text: str):
        super().__init__()
        self.action, self.fields, self.button = None, {}, None
        self.inside = self.done = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "form" and not self.done and given.get("method", "get").lower() == "post":
            self.inside, self.action = True, given.get("action") or ""
        if not self.inside or not given.get("name"):
            return
        kind = given.get("type", "submit" if tag == "button" else "text")
        if kind in ("submit", "button"):
            self.button = self.button or (given["name"], given.get("value") or "")
        elif tag == "input" and (kind != "checkbox" or "checked" in given):
            self.fields[given["name"]] = given.get("value") or ""

    def handle_endtag(self, tag):
        if tag == "form" and self.inside:
            self.inside, self.done = False, True


def main() -> int:
    ca, user, password, code, url = sys.argv[1:]
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca)),
        urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()),
    )
    known = {"login": user, "username": user, "password": password, "user_code": code}
    answer = opener.open(url, timeout=20)
    for _ in range(PAGES):
        text = answer.read().decode()
        form = Form(text)
        if answer.url.startswith("http://127.0.0.1:") or form.action is None:
            print(answer.url, text[-300:])
            return 0
        fields = {name: known.get(name, value) for name, value in form.fields.items()}
        if form.button is not None:
            fields[form.button[0]] = form.button[1]
        where = urllib.parse.urljoin(answer.url, form.action)
        request = urllib.request.Request(
            where, urllib.parse.urlencode(fields).encode(), {"Referer": answer.url}
        )
        answer = opener.open(request, timeout=20)
    print(f"no end after {PAGES} pages: {answer.url}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
