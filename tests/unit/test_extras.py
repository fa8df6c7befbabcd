"""What an install brings, and what is said of it."""

import configparser
from pathlib import Path

import pytest

from ms_recover.version import __version__

ROOT = Path(__file__).parents[2]


def extras():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup["options.extras_require"]


@pytest.mark.parametrize("extra", ["mindspore", "splitting"])
def test_numpy_is_that_for_which_mindspore_is_compiled(extra):
    """With numpy 2 the first scalar operator of a process raises, and no bfloat16 parameter can be made."""
    wanted = [line.replace(" ", "") for line in extras()[extra].splitlines()]
    assert "numpy>=1.22,<2" in wanted
    assert any(line.startswith("mindspore") for line in wanted)


def test_all_has_every_extra_that_needs_no_mindspore():
    named = extras()["all"].strip().removeprefix("ms-recover[").removesuffix("]").split(", ")
    without = {name for name, wanted in extras().items() if "mindspore" not in wanted}
    assert set(named) == without - {"all", "dev"}


def test_the_citation_is_of_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
