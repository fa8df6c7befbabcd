from ms_recover.execution.compose import complete_slice
from ms_recover.execution.destination import LocalDestination
from ms_recover.formats.header import crc_problem, read_header
from ms_recover.model.actions import FileState, Replica
from ms_recover.model.compose import ComposeAction, ComposedParameter, Piece, Runs
from ms_recover.stores.digest import digest_of
from ms_recover.stores.local_store import LocalStore
from ms_recover.testing.trees import make_tree
from tests.support.convert import as_safetensors
from tests.support.mishaps import overwrite


def test_the_crc_of_a_composed_slice_is_of_its_bytes_where_a_source_is_bad(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=2, parameters={"w": 3000, "b": 7})
    metadata = (("format", "ms"), ("remove_redundancy", "True"))
    slices = [as_safetensors(tree / f"ckpt_dir{rank}" / "test-1_8.ckpt", metadata, crc=True) for rank in (0, 1)]
    header, data = read_header(slices[1]), slices[1].read_bytes()
    parameters = []
    for parameter, (place,) in zip(header.parameters, header.contents, strict=True):
        digest = digest_of(data[place.start : place.end])
        piece = Piece(0, Runs(0, 0, place.length), place.length, digest, alternatives=(1,))
        parameters.append(ComposedParameter(parameter, (piece,)))
    first = header.contents[0][0].start
    overwrite(slices[0], data[:first] + bytes([data[first] ^ 1]) + data[first + 1 :])
    action = ComposeAction(
        rank=0,
        sources=tuple(
            Replica(rank, f"ckpt_dir{rank}/{path.name}", FileState(path.stat().st_size, path.stat().st_mtime_ns))
            for rank, path in enumerate(slices)
        ),
        model=0,
        parameters=tuple(parameters),
        target="made.safetensors",
        replaces=None,
        reason="",
        kind="complete",
    )
    result = complete_slice(action, LocalStore(str(tree)), LocalDestination(str(tree)), verify=True, dry_run=False)
    made = tree / "made.safetensors"
    assert len(result.dropped) == 1
    expected = as_safetensors(
        tree / "ckpt_dir1" / "test-1_8.ckpt", (metadata[0], ("remove_redundancy", "False")), crc=True
    )
    assert made.read_bytes() == expected.read_bytes()  # which holds all, dealt to nobody
    with made.open("rb") as file:
        found = crc_problem(
            lambda at, count: file.seek(at) and file.read(count), made.stat().st_size, read_header(made)
        )
    assert found is None
