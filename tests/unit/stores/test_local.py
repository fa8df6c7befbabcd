import pytest

from ms_recover.errors import FormatError, MissingInputError
from ms_recover.stores import local
from ms_recover.stores.local import read_text


def test_text_is_read_up_to_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("two")
    assert read_text(str(path)) == "two"
    with monkeypatch.context() as patched, pytest.raises(FormatError, match="longer than 2 bytes"):
        patched.setattr(local, "_MOST_TEXT", 2)
        read_text(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(FormatError, match="not text"):
        read_text(str(path))
    with pytest.raises(MissingInputError):
        read_text(str(tmp_path / "none"))
