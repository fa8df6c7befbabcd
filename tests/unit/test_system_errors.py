import errno
import os

import pytest

from ms_recover.errors import FormatError, MissingInputError, PermissionDeniedError, StorageError
from ms_recover.system_errors import denied_text, explained


@pytest.mark.parametrize(
    ("code", "advice"), [(errno.ENOSPC, "free some space"), (errno.EIO, "system log"), (errno.EROFS, "read-only")]
)
def test_system_errors_say_what_to_do(code, advice):
    with pytest.raises(StorageError, match=advice), explained("writing", "/x"):
        raise OSError(code, os.strerror(code))


def test_missing_is_missing_input():
    with pytest.raises(MissingInputError, match="/x"), explained("reading", "/x"):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_denied_permission_names_path_and_user(code):
    with pytest.raises(PermissionDeniedError) as caught, explained("writing", "/x"):
        raise OSError(code, os.strerror(code))
    assert str(caught.value) == f"writing /x: {denied_text()}; check who owns it, or run as that user"
    assert f"uid {os.geteuid()}" in denied_text()


def test_errors_of_ms_recover_pass_as_they_are():
    with pytest.raises(FormatError, match=r"^damaged$"), explained("reading", "/x"):
        raise FormatError("damaged")
