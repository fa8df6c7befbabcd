import errno
import os
import re

import pytest

from ms_recover.errors import FormatError, MissingInputError, StorageError
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
    said = re.escape(f"writing /x: {denied_text()}")
    with pytest.raises(StorageError, match=said), explained("writing", "/x"):
        raise OSError(code, os.strerror(code))


def test_errors_of_ms_recover_pass_as_they_are():
    with pytest.raises(FormatError, match=r"^damaged$"), explained("reading", "/x"):
        raise FormatError("damaged")
