import subprocess
import sys

import pytest

import ms_recover.training


@pytest.mark.processes
def test_importing_the_package_does_not_import_mindspore():
    program = "import sys, ms_recover.training as t; dir(t); sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ms_recover.training.nonsense
