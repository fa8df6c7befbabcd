"""State files beside slices, here and in a store."""

import pytest

from ms_recover.errors import FormatError, MissingInputError, VerificationError
from ms_recover.execution.state_files import (
    CLAIM,
    read_claim,
    read_state,
    read_state_in,
    read_state_unproven,
    write_state,
)
from ms_recover.file_names import STATE_SUFFIX
from ms_recover.formats.state import encode_state
from ms_recover.model.state import SliceClaim
from ms_recover.stores.digest import digest_of
from ms_recover.stores.local_store import LocalStore

VALUES = {"scale": 2.0, "count": 7}
READ_ONLY = 0o400


@pytest.fixture
def path(tmp_path):
    (tmp_path / "slice.ckpt").touch()
    return tmp_path / "slice.ckpt"


def test_what_is_written_is_read_by_its_digest(path):
    digest = write_state(str(path), encode_state(VALUES))
    beside = path.with_name(path.name + STATE_SUFFIX)
    assert digest == digest_of(beside.read_bytes())
    assert beside.stat().st_mode & 0o777 == READ_ONLY
    assert read_state(str(path), digest) == VALUES
    assert read_state_unproven(str(path)) == VALUES
    assert read_state_in(LocalStore(str(path.parent)), path.name, digest) == VALUES


def test_one_of_another_digest_is_refused_where_one_is_known(path):
    write_state(str(path), encode_state(VALUES))
    other = digest_of(b"others")
    with pytest.raises(VerificationError, match="its contents are not those that the manifest of the slice names"):
        read_state(str(path), other)
    with pytest.raises(VerificationError, match="it is not what the slice's manifest names"):
        read_state_in(LocalStore(str(path.parent)), path.name, other)


def test_what_is_no_state_file_is_named(path):
    digest = write_state(str(path), b"something else")
    for read in (lambda: read_state(str(path), digest), lambda: read_state_unproven(str(path))):
        with pytest.raises(FormatError, match=f"{path.name}{STATE_SUFFIX} is not a state file that can be read"):
            read()


def test_one_that_nothing_proves_is_read_up_to_a_size(path, monkeypatch):
    data = encode_state(VALUES)
    digest = write_state(str(path), data)
    monkeypatch.setattr("ms_recover.execution.state_files.MOST_STATE", len(data))
    assert read_state_unproven(str(path)) == VALUES
    monkeypatch.setattr("ms_recover.execution.state_files.MOST_STATE", len(data) - 1)
    with pytest.raises(FormatError, match=f"has {len(data)} bytes"):
        read_state_unproven(str(path))
    assert read_state(str(path), digest) == VALUES


def test_a_claim_says_whose_a_slice_is(path):
    with pytest.raises(MissingInputError):
        read_claim(str(path))
    write_state(str(path), encode_state(VALUES))
    assert read_claim(str(path)) is None
    claim = SliceClaim(base_prefix="net", prefix="net_1", run_id="run", started=7)
    write_state(str(path), encode_state({CLAIM: claim.values}))
    assert read_claim(str(path)) == claim
