"""Listings can be read again, by browsers and by our own client."""

import json

import pytest

from ms_recover.serving.pages import Row, listing_html, listing_json, wants_json
from ms_recover.stores.http_listing import parse_listing
from ms_recover.stores.store import FileInfo

NAMES = [
    "a b.bin",
    "ä ö.bin",
    "a#b?c&d=e.bin",
    "100%.bin",
    "a%2Fb.bin",
    "+.bin",
    "x:y.bin",
    "<b>&amp;.bin",
    "\udcff.bin",
]
ROWS = [Row(name="ckpt_dir0", size=None, mtime_ns=10**18)] + [
    Row(name=name, size=number, mtime_ns=10**18 + number, etag='"x"') for number, name in enumerate(NAMES)
]


@pytest.mark.parametrize("kind", ["application/json", "text/html; charset=utf-8"])
def test_a_listing_is_read_as_it_was_written(kind):
    data = listing_json(ROWS) if "json" in kind else listing_html("some <folder>", ROWS)
    found = parse_listing(data, kind)
    assert [(one.name, one.kind) for one in found] == sorted(
        [("ckpt_dir0", "folder"), *((name, "file") for name in NAMES)]
    )


def test_a_listing_has_what_a_scan_asks_of_each_file():
    rows = [Row(name="f", size=3, mtime_ns=10**18 + 7, etag='"t"', digest="d"), Row(name="x", size=None, mtime_ns=5)]
    first, second = parse_listing(listing_json(rows), "application/json")
    assert first.info == FileInfo(size=3, mtime_ns=10**18 + 7, version='"t"', digest="d")
    assert second.info is None


def test_json_is_that_of_nginx_and_more():
    first, second = json.loads(listing_json(ROWS))[:2]
    assert first == {
        "name": "ckpt_dir0",
        "type": "directory",
        "mtime": "Sun, 09 Sep 2001 01:46:40 GMT",
        "mtime_ns": 10**18,
    }
    assert (second["type"], second["size"], second["etag"]) == ("file", 0, '"x"')


@pytest.mark.parametrize(
    ("accept", "query", "json_wanted"),
    [
        ("*/*", "", False),
        ("text/html,application/xhtml+xml", "", False),
        ("application/json", "", True),
        ("application/json, text/html;q=0.9", "", True),
        ("text/html, application/json", "", False),
        ("*/*", "format=json", True),
        ("application/json", "format=html", False),
    ],
)
def test_who_gets_json(accept, query, json_wanted):
    assert wants_json(accept, query) is json_wanted
