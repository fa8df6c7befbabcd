"""Manifests that are decoded by the text of one before are what the decoder makes of them."""

import json
from dataclasses import replace

import pytest

from ms_recover.errors import FormatError
from ms_recover.formats.manifest import decode_manifest, encode_manifest
from ms_recover.formats.manifest_cache import KnownManifests
from ms_recover.model.manifest import Digests, RunStep, TrainingRecord
from ms_recover.model.slices import ParameterList
from ms_recover.model.steps import Step
from tests.support.histories import saved

NAMES = ("w", 'a "digest": "xxh3_128:00000000000000000000000000000000"', "\u00fc\n\\")


def digest(number):
    return f"xxh3_128:{number:032x}"


def manifest(step=1, rank=0, *, names=NAMES, **changes):
    made = saved(rank, Step(1, step), lambda *_: "", names=names).manifest
    digests = Digests(digest(step), tuple(digest(100 * step + rank + place) for place in range(len(names))))
    return replace(made, digests=digests, parameters=tuple(made.parameters), **changes)


def test_equal_lists_are_shared_and_nothing_else_is_taken_over():
    known = KnownManifests()
    training = TrainingRecord(5, RunStep("old", Step(1, 2), 3), 7, rank_local=("w",))
    made = [manifest(), manifest(2), manifest(3, 5, training=training, strategy_digest=digest(9)), manifest(4)]
    found = [known.decode(encode_manifest(one), "it") for one in made]
    assert found == made == [decode_manifest(encode_manifest(one), "it") for one in made]
    assert all(one.parameters is found[0].parameters for one in found)
    assert isinstance(found[0].parameters, ParameterList)


def test_other_lists_are_told_apart():
    known = KnownManifests()
    for names in (NAMES, NAMES[:2], ("w",), (), NAMES[::-1]):
        for step in (1, 2):
            one = manifest(step, names=names)
            assert known.decode(encode_manifest(one), "it") == one


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"shape": [4]', b'"shape": [5]'),
        (b'"bytes": 16', b'"bytes": -1'),
        (b"xxh3_128:0000", b"xxh3_128:00G0"),
        (b"\n ]\n}", b""),
        (b"\n ]\n}", b'\n ], "parameters": []}'),
        (b'"rank": 0', b'"rank": -1'),
        (b'"version": 2', b'"version": 9'),
        (b'"run_id"', b'"x": {\n "parameters": [], "run_id"'),
    ],
)
def test_damage_is_found_as_without_it(old, new):
    data = encode_manifest(manifest())
    known = KnownManifests()
    known.decode(encode_manifest(manifest(2)), "it")
    assert old in data
    damaged = data.replace(old, new)
    assert outcome(known.decode, damaged) == outcome(decode_manifest, damaged)


def outcome(decode, data):
    """Return what a decoder makes of a manifest: that, or the text of its error."""
    try:
        return decode(data, "it")
    except FormatError as error:
        return str(error)


def test_a_digest_that_is_no_digest_is_refused_by_both():
    known = KnownManifests()
    for step in (1, 2, 3):
        data = encode_manifest(manifest(step)).replace(b"xxh3_128:", b"md5:")
        with pytest.raises(FormatError):
            known.decode(data, "it")


def test_other_layouts_of_a_manifest_are_read_without_it():
    known, made = KnownManifests(), manifest()
    compact = json.dumps(json.loads(encode_manifest(made))).encode()
    umlaut = encode_manifest(made).replace(b"\\u00fc", "\u00fc".encode())
    for data in (compact, umlaut, encode_manifest(made), compact, umlaut):
        assert known.decode(data, "it") == made
    for damaged in (b"", compact[:-2], umlaut[:-4], umlaut.replace("\u00fc".encode(), b"\xff")):
        assert outcome(known.decode, damaged) == outcome(decode_manifest, damaged)


def test_a_list_that_is_known_elsewhere_is_shared():
    listed = ParameterList(manifest().parameters)
    for known in (KnownManifests(), KnownManifests()):
        assert all(known.decode(encode_manifest(manifest(step)), "it", listed).parameters is listed for step in (1, 2))


def test_only_so_many_lists_are_kept():
    known = KnownManifests()
    made = [manifest(names=(f"w{number}",)) for number in range(70)]
    first = [known.decode(encode_manifest(one), "it") for one in made]
    again = [known.decode(encode_manifest(one), "it") for one in made]
    assert first == again == made
    assert [one.parameters is other.parameters for one, other in zip(first, again, strict=True)].count(True) == 64
