"""The verb load_slice: one slice into memory, compared with its manifest before anything gets it.

>>> import mindspore as ms
>>> from ms_recover import load_slice
>>> parameters = load_slice("output/ckpt_dir3/test-2_77.ckpt")                     # doctest: +SKIP
>>> ms.load_param_into_net(network, parameters)                                    # doctest: +SKIP
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ms_recover.errors import FormatError, MissingInputError, UsageError, VerificationError
from ms_recover.execution.state_files import read_state_in
from ms_recover.file_names import MANIFEST_SUFFIX, last_named_rank, ranks_in_folders
from ms_recover.formats.header import parse_header
from ms_recover.formats.manifest import MAX_SIZE, decode_manifest
from ms_recover.loading.contents import SliceContents, read_contents
from ms_recover.loading.kinds import values_module
from ms_recover.loading.path_arguments import path_text
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter, SliceHeader
from ms_recover.model.state import StateTensor
from ms_recover.model.texts import name_some
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.urls import is_url, open_plain, shown_url

if TYPE_CHECKING:
    from ms_recover.stores.store import OpenFile, Store

_log = logging.getLogger(__name__)

_NEXT = "recover-ckpt plan ROOT shows where to get it from"


def load_slice(path: str | os.PathLike[str], verify: bool = True, *, buffers: bool = False) -> dict[str, Any]:
    """Load one slice, a ``.ckpt`` or safetensors file of any origin, each byte read once.

    Parameters
    ----------
    path : str or path
        The file, or its URL.
    verify : bool
        Digest the bytes while they are read, and compare each parameter and the file with the manifest beside it;
        without a manifest with the CRC that the slice has, if it has one. Otherwise the structure alone is checked.
    buffers : bool
        Load the persistent buffers of the network too (``Cell.register_buffer``), which are in the state file beside
        the slice: ``network.load_state_dict(load_slice(path, buffers=True), strict=False)`` takes all of it, while
        ``load_param_into_net`` takes parameters alone. Their names are those in the program's own network.

    Returns
    -------
    dict of str to mindspore.Parameter
        As ``mindspore.load_checkpoint`` returns it, in the order of the file: ready for ``load_param_into_net``. A
        string is a str, a map parameter a list of three arrays. The parameters share the memory that was read into;
        neighbours up to 64 MiB lie in one piece, which goes when the last of them goes. The file may change afterwards.

    Raises
    ------
    VerificationError
        When a digest or the CRC differs, when the file is not what its manifest lists, or changes while it is read.
    FormatError
        When the file is no slice, is cut off or damaged, or is encrypted, or its manifest cannot be read.
    MissingInputError, PermissionDeniedError, StorageError
        When it cannot be read.
    UsageError
        When the path is none, nothing opens such a URL, or MindSpore is not installed.
    """
    text, tensors = _checked(path), values_module("mindspore")
    with _place(text) as (store, name):
        stated = _manifest_of(store, name) if verify or buffers else None
        manifest = stated if verify else None
        contents, shown = load_contents(store, name, manifest, crc=verify), f"{store.url.rstrip('/')}/{name}"
        beside = _buffers_of(store, name, stated, _where(shown, stated)) if buffers else {}
    if verify and manifest is None:
        rest = "structure and the CRC of the slice" if contents.checked else "structure of the slice only"
        _log.warning("%s: it has no manifest, so the loaded values rest on the %s", _where(shown, None), rest)
    values: dict[str, Any] = tensors.parameters_of(contents)
    values |= {listed.name: tensors.value_of(listed, memory) for listed, memory in beside.items()}
    return values


def _buffers_of(store: Store, name: str, manifest: Manifest | None, where: str) -> dict[Parameter, memoryview]:
    """Return the persistent buffers that were saved with a slice; errors as for `read_state_in`."""
    training = manifest.training if manifest is not None else None
    if training is None or training.state_digest is None:
        _log.warning("%s: no state file is known for it, so that it gives no buffers", where)
        return {}
    saved = read_state_in(store, name, training.state_digest).get("buffers") or {}
    return {
        Parameter(one, tensor.dtype, tensor.shape, len(tensor.data)): memoryview(tensor.data)
        for one, tensor in saved.items()
        if isinstance(tensor, StateTensor)
    }


def load_contents(store: Store, name: str, manifest: Manifest | None, *, crc: bool = True) -> SliceContents:
    """Read one slice of a store into memory, and compare it with its manifest, without one with its CRC.

    Errors are those of `load_slice`.
    """
    with store.open(name) as opened:
        where = _where(opened.name, manifest)
        if manifest is not None:
            _check_file(opened, name.rpartition("/")[2], manifest, where)
        header = _header_of(opened, where)
        if manifest is not None and header.parameters != manifest.parameters:
            odd = _odd(header, manifest)
            raise VerificationError(f"{where}: it does not list the parameters that its manifest lists: see {odd}")
        try:
            found = read_contents(opened, header, digest=manifest is not None, crc=crc and manifest is None)
        except VerificationError as error:
            what = "it changed while it was read, so nothing was loaded; is training writing it?"
            raise VerificationError(f"{where}: {what}") from error
    if found.problem is not None:
        raise VerificationError(f"{where}: {found.problem}, so nothing was loaded; {_NEXT}")
    if manifest is not None:
        _compare(found, manifest, where)
    return found


def _checked(path: Any) -> str:
    text = path_text("path", path, "the path or URL of a slice")
    return text if is_url(text) else os.path.abspath(os.path.expanduser(text))


@contextmanager
def _place(text: str) -> Iterator[tuple[Store, str]]:
    """Open the store that has a file; give it, and the file's path there."""
    if not is_url(text):
        yield LocalStore("/"), text[1:]
        return
    folder, _, name = text.rpartition("/")
    if not name or folder.endswith(":/"):
        raise UsageError(f"{shown_url(text)}: it names no file; give the URL of a slice")
    with open_plain(folder) as store:
        yield store, name


def _manifest_of(store: Store, name: str) -> Manifest | None:
    path = name + MANIFEST_SUFFIX
    try:
        data = store.read_small(path, "a manifest", MAX_SIZE)
    except MissingInputError:
        return None
    return decode_manifest(data, f"{store.url.rstrip('/')}/{path}")


def _where(name: str, manifest: Manifest | None) -> str:
    """Name a slice as messages do: rank and step where they are known, and the path."""
    if manifest is not None:
        return f"rank {manifest.rank}, step {manifest.step}, {name}"
    *folders, last = name.split("/")
    named = last_named_rank(last)
    rank = named["rank"] if named is not None else next(reversed(ranks_in_folders(folders)), None)
    return name if rank is None else f"rank {rank}, {name}"


def _check_file(opened: OpenFile, name: str, manifest: Manifest, where: str) -> None:
    if manifest.file != name:
        raise VerificationError(f"{where}: its manifest is that of {manifest.file}; was one of them renamed?")
    if manifest.size != opened.size:
        raise VerificationError(
            f"{where}: it has {opened.size} bytes, its manifest says {manifest.size}: it was cut off or "
            f"replaced; {_NEXT}"
        )


def _header_of(opened: OpenFile, where: str) -> SliceHeader:
    header = parse_header(opened.read_at, opened.size, name=opened.name)
    if header.problems:
        raise FormatError(f"{where}: {header.problems[0]}, so nothing was loaded; {_NEXT}")
    if header.encryption is not None:
        raise FormatError(
            f"{where}: it is encrypted with {header.encryption}, and only its key opens it: load it with "
            f"mindspore.load_checkpoint(..., dec_key=KEY, dec_mode={header.encryption!r})"
        )
    return header


def _odd(header: SliceHeader, manifest: Manifest) -> str:
    theirs = {parameter.name: parameter for parameter in manifest.parameters}
    odd = [parameter.name for parameter in header.parameters if theirs.pop(parameter.name, None) != parameter]
    return name_some(odd + list(theirs))


def _compare(found: SliceContents, manifest: Manifest, where: str) -> None:
    assert found.digests is not None
    pairs = zip(found.parameters, found.digests.parameters, manifest.digests.parameters, strict=True)
    odd = [parameter.name for parameter, one, expected in pairs if one != expected]
    if odd:
        plural = "" if len(odd) > 1 else "s"
        raise VerificationError(
            f"{where}: {name_some(odd)} differ{plural} from the manifest, so nothing was loaded; {_NEXT}"
        )
    if found.digests.file != manifest.digests.file:
        raise VerificationError(
            f"{where}: its bytes outside the parameters differ from the manifest, so nothing was loaded; {_NEXT}"
        )
