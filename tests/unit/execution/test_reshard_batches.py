"""Which files of a reshard are written out of one reading."""

from types import SimpleNamespace

from ms_recover.execution.reshard import batches
from ms_recover.model.reshard import TargetFile


def file(rank, group, parameters=(0,), part=None):
    return TargetFile(rank=rank, target=f"{rank}-{parameters}", parameters=parameters, group=group, kind=part)


def ranks(files, jobs, *own):
    plan = SimpleNamespace(parameters=[SimpleNamespace(own=number in own) for number in range(4)])
    return [[(one.rank, one.parameters) for one in held] for held in batches(plan, files, jobs)]


def test_replicas_go_together_and_files_of_one_checkpoint_do_not():
    replicas = [file(rank, (rank % 2, rank % 2 + 2)) for rank in range(4)]
    assert ranks(replicas, 4) == [[(0, (0,)), (2, (0,))], [(1, (0,)), (3, (0,))]]
    pieces = [file(0, (0,), (number,)) for number in range(3)]
    assert ranks(pieces, 2) == [[(0, (0,))], [(0, (1,))], [(0, (2,))]]


def test_own_values_are_alone():
    replicas = [file(rank, (0, 1), (0, 1)) for rank in range(2)]
    assert ranks(replicas, 1, 1) == [[(0, (0, 1))], [(1, (0, 1))]]
    assert ranks(replicas, 1, 2) == [[(0, (0, 1)), (1, (0, 1))]]


def test_half_of_the_threads_have_a_batch_and_none_is_large():
    one = tuple(range(64))
    replicas = [file(rank, one) for rank in range(64)]
    assert [len(held) for held in batches(SimpleNamespace(parameters=[]), replicas, 16)] == [8] * 8
    assert [len(held) for held in batches(SimpleNamespace(parameters=[]), replicas, 1)] == [16] * 4
    assert [len(held) for held in batches(SimpleNamespace(parameters=[]), replicas, 256)] == [1] * 64
