"""Make a file to train on from the texts of WMT14: one sentence pair per line, source, tab, target.

Either from the test sets (``test-full.tgz``, or the folder that it holds), whose sentences are marked up as SGML, or
from two plain texts with a sentence per line each, such as Europarl's. docs/wmt14.md says where they are to be had.
"""

from __future__ import annotations

import argparse
import html
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

SEGMENT = re.compile(r"<seg id=\"(\d+)\">(.*?)</seg>", re.DOTALL)
DOCUMENT = re.compile(r"<doc[^>]*\bdocid=\"([^\"]*)\"[^>]*>(.*?)</doc>", re.DOTALL | re.IGNORECASE)
WORD = re.compile(r"\w+(?:['\u2019-]\w+)*['\u2019]?|[^\w\s]")


def test_sets(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    """Return the sentence pairs of newstest2014 in two languages.

    Parameters
    ----------
    path : Path
        ``test-full.tgz``, or the folder ``test-full``.
    source, target : str
        Languages as in the names of files: ``fr`` and ``en``.

    Raises
    ------
    ValueError
        When there is no such test set, or its texts do not have the same sentences.
    """
    foreign = source if target == "en" else target
    names = [[f"newstest2014-{foreign}en-{kind}.{one}.sgm" for kind in ("ref", "src")] for one in (source, target)]
    texts = [_segments(_read(path, either)) for either in names]
    if texts[0].keys() != texts[1].keys():
        odd = sorted(texts[0].keys() ^ texts[1].keys())[0]
        raise ValueError(f"{path}: sentence {odd[1]} of {odd[0]} is in one language only")
    return ((text, texts[1][place]) for place, text in texts[0].items())


def plain_texts(source: Path, target: Path) -> Iterator[tuple[str, str]]:
    """Return the pairs of two files with a sentence per line; ValueError when one has more lines than the other."""
    with source.open(encoding="utf-8", newline="\n") as one, target.open(encoding="utf-8", newline="\n") as other:
        try:
            yield from zip(one, other, strict=True)
        except ValueError as error:
            raise ValueError(f"{source} and {target} do not have the same number of lines") from error


def lines_of(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Return the lines of the file: words and punctuation separated by spaces, pairs with an empty side left out."""
    for pair in pairs:
        source, target = (" ".join(WORD.findall(text)) for text in pair)
        if source and target:
            yield f"{source}\t{target}\n"


def _segments(text: str) -> dict[tuple[str, int], str]:
    return {
        (document, int(number)): html.unescape(sentence).strip()
        for document, body in DOCUMENT.findall(text)
        for number, sentence in SEGMENT.findall(body)
    }


def _read(path: Path, names: list[str]) -> str:
    """Return the text of the first of some files in a folder or an archive."""
    if path.is_dir():
        found = {name: path / name for name in names if (path / name).is_file()}
        if found:
            return next(iter(found.values())).read_text(encoding="utf-8")
    else:
        with tarfile.open(path) as archive:
            members = {Path(member.name).name: member for member in archive if member.isfile()}
            for name in names:
                file = archive.extractfile(members[name]) if name in members else None
                if file is not None:
                    return file.read().decode("utf-8")
    raise ValueError(f"{path} has no {names[0]}")


def main() -> int:
    """Write the file; 1, and the reason, when the texts do not fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("output", type=Path, help="file to write, the DATASET_PATH of the scripts")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--test-full", type=Path, help="test-full.tgz, or the folder test-full")
    given.add_argument("--texts", type=Path, nargs=2, metavar=("SOURCE", "TARGET"), help="a sentence per line each")
    parser.add_argument("--pair", default="fr-en", help="with --test-full: source and target language")
    parser.add_argument("--most", type=int, default=None, help="write so many pairs at most")
    options = parser.parse_args()
    languages = options.pair.split("-")
    if len(languages) != 2 or "en" not in languages:
        parser.error(f"--pair {options.pair}: two languages, one of them en, such as fr-en")
    count = 0
    try:
        pairs = test_sets(options.test_full, *languages) if options.test_full else plain_texts(*options.texts)
        with options.output.open("w", encoding="utf-8", newline="\n") as file:
            for line in lines_of(pairs):
                if count == options.most:
                    break
                file.write(line)
                count += 1
    except (OSError, ValueError, tarfile.TarError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.output}: {count} sentence pairs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
