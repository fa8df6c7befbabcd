"""What an install brings."""

import configparser
from pathlib import Path

import pytest

SETUP = Path(__file__).parents[2] / "setup.cfg"


@pytest.mark.parametrize("extra", ["mindspore", "splitting"])
def test_numpy_is_that_for_which_mindspore_is_compiled(extra):
    """With numpy 2 the first scalar operator of a process raises, and no bfloat16 parameter can be made."""
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    wanted = [line.replace(" ", "") for line in setup["options.extras_require"][extra].splitlines()]
    assert "numpy>=1.22,<2" in wanted
    assert any(line.startswith("mindspore") for line in wanted)
