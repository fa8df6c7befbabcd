"""Slices of one format made into slices of the other."""

from ms_recover.formats.header import read_header
from ms_recover.formats.image import make_image
from ms_recover.formats.safetensors import update_crc
from ms_recover.model.slices import SliceHeader

METADATA = (("format", "ms"), ("remove_redundancy", "False"))
"""What ModelCheckpoint writes."""


def as_safetensors(path, metadata=METADATA, crc=False):
    """Write the slice at `path` once more beside itself, as safetensors; return where."""
    header = read_header(path)
    assert not header.problems
    whole = path.read_bytes()
    contents = {
        parameter.name: b"".join(whole[piece.start : piece.end] for piece in pieces)
        for parameter, pieces in zip(header.parameters, header.contents, strict=True)
    }
    crc_num = None
    if crc:
        crc_num = 0
        for parameter in sorted(header.parameters, key=lambda parameter: parameter.name):
            crc_num = update_crc(crc_num, parameter, [contents[parameter.name]])
        metadata = (*metadata, ("crc_num", ""))
    image = make_image(header.parameters, SliceHeader("safetensors", 0, metadata=metadata), crc_num=crc_num)
    data = bytearray(image.size)
    for offset, literal in image.literals:
        data[offset : offset + len(literal)] = literal
    for parameter, (piece,) in zip(image.parameters, image.contents, strict=True):
        data[piece.start : piece.end] = contents[parameter.name]
    target = path.with_suffix(".safetensors")
    target.write_bytes(bytes(data))
    return target
