"""The experiment of each slice, by manifests and by the numbers behind prefixes."""

from dataclasses import replace
from itertools import chain, product

import pytest

from ms_recover.model.manifest import RunStep, TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.planning.tree.prefixes import base_of, find_experiments, rerun_of
from tests.support.inventories import slice_file
from tests.unit.planning.test_contents import backed


def bare(prefix, *ranks):
    """Return slices that have no manifest."""
    return [slice_file(rank, prefix=prefix) for rank in ranks or (0,)]


def stating(prefix, base=None, rank=0, **training):
    """Return a slice with a manifest, which may state its experiment."""
    return backed(slice_file(rank, prefix=prefix), "a", training=TrainingRecord(100, base_prefix=base, **training))


RESUMED = {"resumed_from": RunStep("before", Step(1, 1), 50)}


@pytest.mark.parametrize(
    ("prefix", "base", "number"),
    [
        ("CKP", "CKP", 0),
        ("CKP_3", "CKP", 3),
        ("CKP_12-network", "CKP-network", 12),
        ("CKP-network", "CKP-network", 0),
        ("_1", "_1", 0),
        ("_1-network", "_1-network", 0),
        ("-network", "-network", 0),
        ("_1_2", "_1", 2),
        ("CKP_1234567890", "CKP_1234567890", 0),
        ("two\nlines_4", "two\nlines", 4),
        ("", "", 0),
    ],
)
def test_a_number_is_that_of_a_rerun_where_a_prefix_stands_before_it(prefix, base, number):
    assert (base_of(prefix), rerun_of(prefix)) == (base, number)


def test_every_rerun_of_a_prefix_has_its_base_and_its_number():
    for start, mark in product(("a", "a_b", "a_", "7", "a_1-b", "\u0665"), ("", "-network", "-trainable_params")):
        for number in (1, 9, 10, 999999999):
            assert base_of(f"{start}_{number}{mark}") == f"{start}{mark}"
            assert rerun_of(f"{start}_{number}{mark}") == number


@pytest.mark.parametrize(
    ("files", "given", "expected"),
    [
        ([bare("n_1"), bare("n")], (), "n"),
        ([bare("n_1")], (), "n_1"),
        ([[stating("n_1", "m")]], (), "m"),
        ([[stating("n_1", "m")], bare("n_1", 1)], (), "m"),
        ([bare("n_1"), [stating("k", "n_1")]], (), "n_1"),
        ([bare("n_1"), bare("n"), [stating("k", "n_1")]], (), "n_1"),
        ([bare("n_1"), [stating("k", "n")]], (), "n"),
        ([[stating("n_1", **RESUMED)]], (), "n"),
        ([[stating("n_1", **RESUMED)]], ("n_1",), "n_1"),
        ([[stating("n_1")], bare("n")], ("n_1",), "n_1"),
        ([bare("n_1"), bare("n")], ("n_1",), "n"),
        ([bare("n_1", 1), bare("n_2", 0)], (), "n"),
        ([bare("n_1", 0, 1), bare("n_2", 0, 1)], (), "n_1"),
        ([bare("n_1", 0, 1), bare("n_2", 1)], (), "n_1"),
        ([[stating("n_1", rank=1)], bare("n_2", 0)], (), "n_1"),
        ([bare("n_1", 1), [stating("n_2", rank=0)]], (), "n_1"),
        ([bare("n_1", 1), bare("n", 0), [stating("n_2", "n_1", 2)]], (), "n_1"),
        ([[stating("n_1", "n"), stating("n_1", "n_1", 1)], bare("n_1", 2)], (), "n_1"),
    ],
)
def test_the_experiment_that_a_prefix_stands_for(files, given, expected):
    """As `find_experiments` says: `n_1` is a start of `n`, or an experiment of its own, or what its manifests state."""
    assert find_experiments(chain(*files), given).of_name("n_1") == expected


def test_each_slice_is_of_the_experiment_that_its_own_manifest_states():
    first, second, other = stating("n_1", "n"), stating("n_1", "n_1", 1), bare("n_2", 2)[0]
    names = find_experiments([first, second, other])
    assert [names.of(file) for file in (first, second, other)] == ["n", "n_1", "n"]
    assert names.of_name("k_1") == "k"
    assert names.split([first, second, other]) == [[first, other], [second]]


@pytest.mark.parametrize(
    ("start_number", "prefix", "base", "expected"),
    [(5, "n", "n", 5), (0, "n_3", "n", 0), (None, "n_3", "n", 3), (None, "n_3", "n_3", 0), (None, "n", "n", 0)],
)
def test_the_number_of_a_start_is_stated_or_that_of_the_name(start_number, prefix, base, expected):
    file = stating(prefix, base, start_number=start_number)
    assert find_experiments([file]).number_of(file) == expected
    without = replace(file, manifest=None)
    assert find_experiments([file]).number_of(without) == (0 if prefix == base else 3)
