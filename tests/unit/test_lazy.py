"""Public names that load on use."""

import importlib
import subprocess
import sys

import pytest

import ms_recover
from ms_recover.lazy import lazy_names


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "lazy_package").mkdir()
    (tmp_path / "lazy_package" / "home.py").write_text("value = 7\n")
    (tmp_path / "lazy_package" / "__init__.py").write_text(
        "from ms_recover.lazy import lazy_names\n"
        "__getattr__, __dir__ = lazy_names(__name__, {'value': 'lazy_package.home'})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield importlib.import_module("lazy_package")
    for name in ("lazy_package", "lazy_package.home"):
        sys.modules.pop(name, None)


def test_a_name_is_imported_when_it_is_used(package):
    assert "value" in dir(package)
    assert "lazy_package.home" not in sys.modules
    assert package.value == 7
    assert "lazy_package.home" in sys.modules


def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'other'"):
        _ = package.other
    assert not hasattr(ms_recover, "nonsense")


def test_every_public_name_is_listed():
    assert set(ms_recover.__all__) <= set(dir(ms_recover))
    assert lazy_names("ms_recover", {"x": "y"})[1]()[-1] == "x"


@pytest.mark.processes
@pytest.mark.parametrize("room", ["loading", "splitting", "training", "worlds"])
def test_importing_a_room_loads_none_of_its_modules_and_nothing_heavy(room):
    program = (
        f"import sys, ms_recover.{room} as room; dir(room)\n"
        "heavy = {'mindspore', 'numpy', 'asyncio', 'typing'}.intersection(sys.modules)\n"
        "print(*heavy, *(name for name in sys.modules if name.startswith(f'{room.__name__}.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("room", ["loading", "splitting", "training", "worlds"])
def test_the_public_names_of_a_room_are_those_it_says(room):
    package = importlib.import_module(f"ms_recover.{room}")
    assert list(package.__all__) == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module 'ms_recover.{room}' has no attribute 'nonsense'"):
        _ = package.nonsense
