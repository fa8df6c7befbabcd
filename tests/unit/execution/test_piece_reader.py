"""Pieces of slices: what they are compared with, and who takes the place of one that proves bad."""

from dataclasses import replace

import pytest
import xxhash

from ms_recover import api
from ms_recover.errors import VerificationError
from ms_recover.execution import piece_reader
from ms_recover.execution.context import ActionContext
from ms_recover.execution.piece_reader import PieceReader, compose_values
from ms_recover.formats.header import read_header
from ms_recover.model.actions import FileState, Replica
from ms_recover.model.compose import ComposeAction, ComposedParameter, Piece, Runs
from ms_recover.model.slices import Parameter
from ms_recover.stores.digest import digest_of
from ms_recover.stores.local import StoppedError
from ms_recover.stores.local_store import LocalStore
from ms_recover.testing.trees import make_tree
from tests.support.distant import DistantStore
from tests.support.mishaps import overwrite

HALF = Runs(4, 0, 16)
"""16 bytes of the middle of a parameter."""


class Slices:
    """Three slices that hold the same, and the action that takes half of one parameter of them."""

    def __init__(self, root):
        make_tree(root, data_parallel=3, model_parallel=1, parameters={"w": 12, "b": 7})
        self.root, self.paths = root, [file.path for file in api.scan(root).slices]
        header, data = read_header(root / self.paths[0]), (root / self.paths[0]).read_bytes()
        self.place = {one.name: ranges[0] for one, ranges in zip(header.parameters, header.contents, strict=True)}
        self.data = {name: data[one.start : one.end] for name, one in self.place.items()}
        self.stores = {}

    def flip(self, number, name, at):
        """Change a byte of a parameter without a trace in size and time."""
        path = self.root / self.paths[number]
        data = bytearray(path.read_bytes())
        data[self.place[name].start + at] ^= 1
        overwrite(path, bytes(data))

    def action(self, runs=HALF, *, digest=True, name="w", source_bytes=None):
        whole = self.data[name]
        piece = Piece(
            0,
            runs,
            len(whole) if source_bytes is None else source_bytes,
            digest_of(whole) if digest else None,
            alternatives=(1, 2),
        )
        states = [(self.root / path).stat() for path in self.paths]
        return ComposeAction(
            rank=0,
            sources=tuple(
                Replica(rank, path, FileState(state.st_size, state.st_mtime_ns))
                for rank, (path, state) in enumerate(zip(self.paths, states, strict=True))
            ),
            model=0,
            parameters=(ComposedParameter(Parameter(name, "Int8", (runs.bytes,), runs.bytes), (piece,)),),
            target="made.ckpt",
            replaces=None,
            reason="",
        )

    def read(self, action, store=None, **options):
        """The contents that are read, and the sources that were dropped."""
        dropped = []
        context = ActionContext(tree=store or LocalStore(str(self.root)), **options)
        (value,) = compose_values(action, context, {}, dropped)
        assert value.digest == digest_of(bytes(value.data))
        return bytes(value.data), [text.partition(":")[0] for text in dropped]


@pytest.fixture
def slices(tmp_path):
    return Slices(tmp_path / "tree")


WHERE = pytest.mark.parametrize("distant", [False, True], ids=["here", "distant"])


@WHERE
def test_a_part_is_taken_of_contents_that_are_right_as_a_whole(distant, slices):
    """Also where the damage lies beside the part: who altered that may have altered anything."""
    store = DistantStore(slices.root) if distant else None
    part = slices.data["w"][4:20]
    assert slices.read(slices.action(), store) == (part, [])
    slices.flip(0, "w", 0)
    assert slices.read(slices.action(), store) == (part, ["rank 0"])
    slices.flip(1, "w", 40)
    assert slices.read(slices.action(), store) == (part, ["rank 0", "rank 1"])


@WHERE
def test_without_a_digest_the_part_is_taken_as_it_is(distant, slices):
    slices.flip(0, "w", 0)
    found, dropped = slices.read(slices.action(digest=False), DistantStore(slices.root) if distant else None)
    assert (found, dropped) == (slices.data["w"][4:20], [])


@WHERE
def test_all_contents_are_compared_while_they_are_read(distant, slices):
    whole = Runs(0, 0, len(slices.data["w"]))
    store = DistantStore(slices.root) if distant else None
    assert slices.read(slices.action(whole), store) == (slices.data["w"], [])
    slices.flip(0, "w", 5)
    assert slices.read(slices.action(whole), store) == (slices.data["w"], ["rank 0"])


def test_where_every_source_is_bad_the_first_says_why(slices):
    for number in range(3):
        slices.flip(number, "w", 0)
    with pytest.raises(VerificationError, match=f"{slices.paths[0]} holds other contents of 'w'"):
        slices.read(slices.action())


def test_a_parameter_of_another_size_is_not_taken(slices):
    with pytest.raises(VerificationError, match="does not hold 'w' as the plan saw it: plan again"):
        slices.read(slices.action(digest=False, source_bytes=44))
    odd = slices.action(digest=False)
    item = replace(odd.parameters[0], parameter=Parameter("other", "Int8", (16,), 16))
    with pytest.raises(VerificationError, match="does not hold 'other' as the plan saw it"):
        slices.read(replace(odd, parameters=(item,)))


def test_a_source_that_is_not_what_the_plan_saw_is_dropped(slices):
    action = slices.action()
    path = slices.root / slices.paths[0]
    path.chmod(0o600)
    path.write_bytes(path.read_bytes() + b"x")
    assert slices.read(action) == (slices.data["w"][4:20], ["rank 0"])


def test_what_was_proven_once_is_not_read_again(slices):
    """A part of a distant slice costs as much as all of that parameter, and no more."""
    spent = []
    for runs in (HALF, Runs(0, 0, len(slices.data["w"]))):
        store = DistantStore(slices.root)
        slices.read(slices.action(runs), store)
        spent.append((store.bytes, len(store.of("read"))))
    assert spent[0] == spent[1]


def test_contents_that_were_proven_are_so_for_all_that_share_the_knowledge(slices):
    proven = set()
    action, context = slices.action(), ActionContext(tree=LocalStore(str(slices.root)))
    with PieceReader(action, context, None, proven) as reader:
        assert reader.fill(action.parameters[0], memoryview(bytearray(16))) == digest_of(slices.data["w"][4:20])
    assert proven == {(slices.paths[0], "w")}
    slices.flip(0, "w", 0)  # which nobody looks at any more
    with PieceReader(action, context, None, proven) as reader:
        reader.fill(action.parameters[0], memoryview(bytearray(16)))
        assert (reader.used, reader.dropped) == ([slices.paths[0]], [])


def test_a_parameter_may_have_another_name_in_its_sources(slices):
    action = slices.action()
    item = replace(action.parameters[0], parameter=Parameter("new", "Int8", (16,), 16))
    with PieceReader(action, ActionContext(tree=LocalStore(str(slices.root))), {"new": "w"}) as reader:
        memory = bytearray(16)
        reader.fill(item, memoryview(memory))
    assert bytes(memory) == slices.data["w"][4:20]


def test_reading_ends_when_it_is_asked_to(slices):
    for runs in (HALF, Runs(0, 0, len(slices.data["w"]))):
        with pytest.raises(StoppedError):
            slices.read(slices.action(runs), stop=lambda: True)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_few_files_are_open_at_a_time_and_each_is_what_it_was_when_it_is_closed(most, slices, monkeypatch):
    monkeypatch.setattr(piece_reader, "_MOST_OPEN", most)
    action = slices.action()
    with PieceReader(action, ActionContext(tree=LocalStore(str(slices.root)))) as reader:
        for number in (0, 1, 2, 0, 1, 2):
            assert reader.opened(number).name.endswith(slices.paths[number])
            assert len(reader._open) <= most
        files = list(reader._open.values())
    for file in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.read_at(0, 1)


def test_the_form_of_the_preferred_source_is_followed_or_of_the_first_that_can_be_read(slices):
    action = slices.action()
    path = slices.root / slices.paths[1]
    overwrite(path, b"\xff" * path.stat().st_size)
    with PieceReader(action, ActionContext(tree=LocalStore(str(slices.root)))) as reader:
        assert (reader.model(2), reader.model(1), reader.model(1)) == (2, 0, 0)
        assert len(reader.dropped) == 1
        digest = xxhash.xxh3_128()
        assert b"".join(map(bytes, reader.proven(action.parameters[0], digest))) == slices.data["w"][4:20]
