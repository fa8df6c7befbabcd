import json
from dataclasses import replace

import pytest

from ms_recover.errors import FormatError, MissingInputError
from ms_recover.formats.manifest import decode_manifest, encode_manifest, read_manifest
from ms_recover.model.compose import Runs
from ms_recover.model.manifest import Digests, Manifest, RunStep, TrainingRecord
from ms_recover.model.provenance import SAVED, Provenance, ProvenanceSource
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step

FULL = "xxh3_128:" + "0f" * 16
MANIFEST = Manifest(
    run_id="20261120-ab",
    rank=3,
    world_size=8,
    step=Step(2, 77),
    cumulative_step=154,
    file="test-2_77.ckpt",
    size=187383,
    digests=Digests(FULL, (FULL, "xxh3_128:" + "a1" * 16)),
    parameters=(Parameter("a.weight", "Float32", (4, 2), 32), Parameter("schrittgröße", "Int32", (), 4)),
    group=(3, 7),
    strategy_digest=FULL,
    provenance=SAVED,
    tool="ms_recover 0.1.0",
)
TRAINING = TrainingRecord(1763900000123, RunStep("before", Step(1, 3)), 77, 8, ("bank", "queue"), FULL)


@pytest.mark.parametrize(
    "manifest",
    [
        MANIFEST,
        replace(MANIFEST, cumulative_step=None, strategy_digest=None, run_id=""),
        replace(MANIFEST, parameters=(), digests=Digests(FULL)),
        replace(MANIFEST, training=TrainingRecord(1763900000123)),
        replace(MANIFEST, training=TRAINING),
        replace(MANIFEST, training=replace(TRAINING, host="node1.example")),
        replace(MANIFEST, training=replace(TRAINING, host="node1.example", machine="1f2e3d4c-5b6a")),
        replace(MANIFEST, training=replace(TRAINING, base_prefix="lr_0.5", start_number=0)),
        replace(MANIFEST, training=replace(TRAINING, base_prefix="lr_0.5", start_number=3)),
    ],
)
def test_round_trip(manifest):
    data = encode_manifest(manifest)
    assert decode_manifest(data, "x") == manifest
    assert encode_manifest(decode_manifest(data, "x")) == data
    json.loads(data)


@pytest.mark.parametrize("end", range(0, len(encode_manifest(MANIFEST)) - 2, 7))
def test_a_manifest_that_was_cut_off_is_refused(end):
    with pytest.raises(FormatError, match=r"some\.json"):
        decode_manifest(encode_manifest(MANIFEST)[:end], "some.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 3),
        ("rank", -1),
        ("rank", 9),
        ("rank", True),
        ("rank", "3"),
        ("world_size", 2),
        ("group", []),
        ("group", [1]),
        ("digest", "md5:00"),
        ("digest", "xxh3_128:zz"),
        ("parameters", {}),
        ("parameters", [{}]),
        ("parameters", [3]),
        ("size", 1.5),
        ("file", None),
        ("cumulative_step", -4),
        ("strategy_digest", ""),
        ("training", {}),
        ("training", None),
        ("training", json.loads(encode_manifest(replace(MANIFEST, training=TRAINING)))["training"] | {"started": -1}),
        (
            "training",
            json.loads(encode_manifest(replace(MANIFEST, training=TRAINING)))["training"] | {"started": 1 << 62},
        ),
        (
            "training",
            json.loads(encode_manifest(replace(MANIFEST, training=TRAINING)))["training"] | {"epoch_steps": 0},
        ),
    ],
)
def test_what_cannot_be_is_refused(key, value):
    fields = json.loads(encode_manifest(MANIFEST))
    fields[key] = value
    with pytest.raises(FormatError):
        decode_manifest(json.dumps(fields).encode(), "x")


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"\xff", b"[" * 100_000, b"1e999", b'{"version": 1}'])
def test_other_files_are_no_manifests(data):
    with pytest.raises(FormatError):
        decode_manifest(data, "x")


def test_reading_files(tmp_path):
    path = tmp_path / "a.manifest.json"
    with pytest.raises(MissingInputError):
        read_manifest(path)
    path.write_bytes(encode_manifest(MANIFEST))
    assert read_manifest(path) == MANIFEST


def test_a_manifest_of_a_written_slice_says_which_bytes_are_whose_and_which_types_were_cast():
    runs = Runs(4, 8, 2, ((3, 2, 6),))
    cast = (("b", "Float16"), ("a", "BFloat16"), ("c", "Float16"))
    fields = json.loads(encode_manifest(replace(MANIFEST, ranges=(("a.weight", 1, runs),), cast=cast)))
    assert fields["ranges"] == [["a.weight", 1, 4, 8, 2, [[3, 2, 6]]]]
    assert fields["cast"] == {"BFloat16": ["a"], "Float16": ["b", "c"]}
    assert fields.keys() - json.loads(encode_manifest(MANIFEST)).keys() == {"ranges", "cast"}


def test_a_list_of_parameters_that_is_known_is_shared():
    data, listed = encode_manifest(MANIFEST), tuple(replace(one) for one in MANIFEST.parameters)
    assert decode_manifest(data, "x", listed).parameters is listed
    first, second = listed
    for other in (
        (first,),
        (second, first),
        (replace(first, name="b"), second),
        (first, replace(second, nbytes=5)),
        (first, replace(second, dtype="Float32")),
        (replace(first, shape=(2, 4)), second),
    ):
        assert decode_manifest(data, "x", other).parameters == MANIFEST.parameters


LAYOUT = Provenance(
    kind="composed", evidence="layout", sources=tuple(ProvenanceSource(None, one) for one in ("a", "b/c"))
)


@pytest.mark.parametrize(
    ("origin", "provenance"),
    [
        ("saved", SAVED),
        ("anything else", SAVED),
        ("sealed by vote", Provenance(kind="sealed", evidence="vote")),
        ("sealed by a lamp", Provenance(kind="sealed", evidence="structure")),
        (
            "recovered from rank 4 (d/a (b).ckpt), by vote",
            Provenance(kind="copied", evidence="vote", sources=(ProvenanceSource(4, "d/a (b).ckpt"),)),
        ),
        ("recovered from a, b/c, by layout", LAYOUT),
        ("recovered from a, b/c, by layout; of rank 4 are the values of x, y", LAYOUT),
    ],
)
def test_the_origin_of_version_1_is_a_provenance(origin, provenance):
    fields = json.loads(encode_manifest(MANIFEST)) | {"version": 1, "origin": origin}
    del fields["provenance"]
    expected = replace(provenance, borrowed=("x", "y")) if ";" in origin else provenance
    assert decode_manifest(json.dumps(fields).encode(), "x").provenance == expected
    for lacking in ("origin", "version"):
        with pytest.raises(FormatError):
            decode_manifest(json.dumps({key: fields[key] for key in fields if key != lacking}).encode(), "x")
