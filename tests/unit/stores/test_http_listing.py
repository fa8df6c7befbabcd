"""Listings as web servers write them, and pages that are none."""

import json
import tracemalloc
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.stores.http_listing import MOST_HTML, parse_listing
from ms_recover.stores.store import FileInfo

NGINX = b"""<html>\r
<head><title>Index of /run7/</title></head>\r
<body>\r
<h1>Index of /run7/</h1><hr><pre><a href="../">../</a>
<a href="ckpt_dir0/">ckpt_dir0/</a>                         22-Nov-2026 19:33                   -
<a href="a%20very%20long%20name%3A1.ckpt">a very long na..&gt;</a>        22-Nov-2026 19:33    1100\r
</pre><hr></body>\r
</html>\r
"""
APACHE = b"""<!DOCTYPE HTML PUBLIC "-//W3C//DTD HTML 3.2 Final//EN">
<html><head><title>Index of /run7</title></head><body><h1>Index of /run7</h1>
<table><tr><th><a href="?C=N;O=D">Name</a></th><th><a href="?C=M;O=A">Last modified</a></th></tr>
<tr><td><a href="/">Parent Directory</a></td></tr>
<tr><td><a href="ckpt_dir0/">ckpt_dir0/</a></td></tr>
<tr><td><a href="a%20very%20long%20name:1.ckpt">a very long..&gt;</a></td></tr>
</table><address>Apache/2.4 at <a href="https://httpd.apache.org/">localhost</a></address></body></html>
"""
PYTHON = b"""<!DOCTYPE HTML><html lang="en"><head><title>Directory listing for /run7/</title></head><body>
<h1>Directory listing for /run7/</h1><hr><ul>
<li><a href="ckpt_dir0/">ckpt_dir0/</a></li>
<li><a href="a%20very%20long%20name%3A1.ckpt">a very long name:1.ckpt</a></li></ul><hr></body></html>
"""
HTML, JSON = "text/html", "application/json"


@pytest.mark.parametrize("page", [NGINX, PYTHON])
def test_pages_of_servers(page):
    found = parse_listing(page, f"{HTML}; charset=utf-8")
    assert [(one.name, one.kind) for one in found] == [("a very long name:1.ckpt", "file"), ("ckpt_dir0", "folder")]


def test_links_that_lead_elsewhere_are_no_entries():
    assert [one.name for one in parse_listing(APACHE, HTML)] == ["a very long name:1.ckpt", "ckpt_dir0"]


def test_json_of_nginx():
    data = b'[\n{ "name":"d", "type":"directory", "mtime":"x" },\n{ "name":"f", "type":"file", "size":1 },\n'
    data += b'{ "name":"p", "type":"other" }\n]'
    assert [(one.name, one.kind) for one in parse_listing(data, JSON)] == [
        ("d", "folder"),
        ("f", "file"),
        ("p", "other"),
    ]
    assert parse_listing(b"[]", JSON) == []


@pytest.mark.parametrize(
    "row",
    [
        '"size":1, "mtime":"Sun, 09 Sep 2001 01:46:40 GMT"',
        '"size":-1, "mtime_ns":1',
        '"size":true, "mtime_ns":1',
        '"size":1, "mtime_ns":1.5',
        '"size":"1", "mtime_ns":1',
        '"mtime_ns":1',
        f'"size":{1 << 63}, "mtime_ns":1',
        f'"size":1, "mtime_ns":{1 << 63}',
        f'"size":1, "mtime_ns":{-1 << 63}',
    ],
)
def test_a_state_that_is_not_exact_is_asked_for(row):
    [found] = parse_listing(f'[{{"name":"f", "type":"file", {row}}}]'.encode(), JSON)
    assert (found.name, found.kind, found.info) == ("f", "file", None)


@pytest.mark.parametrize(("size", "mtime_ns"), [(0, 0), ((1 << 63) - 1, (1 << 63) - 1), (5, 1 - (1 << 63))])
def test_a_state_that_is_exact_is_taken(size, mtime_ns):
    row = {"name": "f", "type": "file", "size": size, "mtime_ns": mtime_ns, "etag": '"t"', "digest": "\ud800"}
    [found] = parse_listing(json.dumps([row]).encode(), JSON)
    assert found.info == FileInfo(size=size, mtime_ns=mtime_ns, version='"t"', digest=None)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (NGINX[:200], HTML),
        (NGINX[:-20], HTML),
        (b"<html><head><title>Welcome</title></head><body><a href='x'>x</a></body></html>", HTML),
        (b"", HTML),
        (b"[", JSON),
        (b"{}", JSON),
        (b"[1]", JSON),
        (b'[{"type":"file"}]', JSON),
        (b'[{"name":"../x","type":"file"}]', JSON),
        (b'[{"name":"","type":"file"}]', JSON),
        (b'[{"name":"..","type":"directory"}]', JSON),
        (b"[" * 100_000, JSON),
        (b"a\nb\n", "text/plain"),
        (NGINX, ""),
    ],
)
def test_what_is_no_whole_listing_is_refused(data, kind):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_listing(data, kind)


def test_a_name_that_leads_out_is_refused():
    page = PYTHON.replace(b"ckpt_dir0/", b"%2e%2e%2fetc/", 1)
    with pytest.raises(ValueError, match="etc"):
        parse_listing(page, HTML)


PIECES = ("<", "<a ", "<a href=", '<a href="', "<!--", "<!---->", "<script>", "&#", "<title>", "<!", "<?", " ", " href")
"""What a page may repeat without ever closing it."""


@pytest.mark.parametrize("piece", PIECES)
def test_a_page_costs_time_by_its_length_alone(piece):
    """The longest page is read within the limit of a test; ``html.parser`` took 13 s for 160 KB of some of these."""
    begin = "<title>Index of /</title>"
    data = (begin + piece * (MOST_HTML // len(piece))).encode()[:MOST_HTML]
    with pytest.raises(ValueError, match=r"page and no listing|cut off"):
        parse_listing(data, HTML)


def test_a_longer_page_is_refused_unread():
    with pytest.raises(ValueError, match="more than 4,194,304"):
        parse_listing(b" " * (MOST_HTML + 1), HTML)


@pytest.mark.parametrize("row", [b"{},", b"[],", b"0,", b'{"name":"f"},'])
def test_json_costs_memory_by_a_bound(row):
    data = b"[" + row * ((60 << 20) // len(row)) + b"0]"
    tracemalloc.start()
    with pytest.raises(ValueError, match="too many entries"):
        parse_listing(data, JSON)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


def test_half_a_character_in_a_name_is_refused_with_its_place():
    with pytest.raises(ValueError, match="with half a character at 2"):
        parse_listing(b'[{"name":"ab\\ud800c","type":"file"}]', JSON)
    [found] = parse_listing(b'[{"name":"ab\xff","type":"file"}]', JSON)  # a name of bytes that are no UTF-8
    assert found.name == "ab\udcff"


class Links(HTMLParser):
    """The links as Python's own parser finds them."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        if tag == "a":
            self.found += [value for name, value in attributes if name == "href" and value]


ATTRIBUTES = st.sampled_from(["", ' class="x"', " title='a name'", ' data-href="no"', " download"])
NAMES = st.text("abc.%20&;'+-_~ ", min_size=1, max_size=8).filter(lambda name: name.strip(". "))


@given(st.lists(st.tuples(NAMES, ATTRIBUTES, ATTRIBUTES, st.sampled_from(["a", "A"])), max_size=8), st.booleans())
def test_links_are_those_of_python_own_parser(rows, commented):
    lines = [f'<{tag}{one} href="{name}"{other}>{name}</{tag}>' for name, one, other, tag in rows]
    if commented:
        lines.insert(0, '<!-- <a href="hidden">hidden</a> -->')
    page = "<html><head><title>Index of /</title></head><body>" + "\n".join(lines) + "</body></html>"
    links = Links()
    links.feed(page)
    expected = {unquoted for link in links.found if (unquoted := named(link)) is not None}
    assert {one.name for one in parse_listing(page.encode(), HTML)} == expected


def named(link):
    from urllib.parse import unquote

    path = link.removeprefix("./").partition("?")[0].partition("#")[0]
    name = unquote(path, errors="surrogateescape")
    return None if not path or path.startswith("/") or name in (".", "..") else name
