"""Write a small two-language text file to train on: the same arguments always give the same bytes.

The second language is a word-for-word translation of the first with the order of the words reversed, so that there is
something to learn: a dictionary and a rule.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


def sentence_pairs(lines: int, words: int, longest: int, seed: int) -> list[tuple[str, str]]:
    """Make sentence pairs.

    Parameters
    ----------
    lines : int
        Number of pairs.
    words : int
        Words of each language.
    longest : int
        Words of the longest sentence; the shortest has three.
    seed : int
        Same seed, same pairs.
    """
    rng = random.Random(seed)
    spellings = [first + second + third for first in SYLLABLES for second in SYLLABLES for third in SYLLABLES]
    chosen = rng.sample(spellings, 2 * words)
    dictionary = list(zip(chosen[:words], chosen[words:], strict=True))
    # Word k is met about 1/k as often as the first, as in natural text.
    weights = [1.0 / (rank + 1) for rank in range(words)]
    pairs = []
    for _ in range(lines):
        picked = rng.choices(dictionary, weights, k=rng.randint(3, longest))
        pairs.append((" ".join(word for word, _ in picked), " ".join(word for _, word in reversed(picked))))
    return pairs


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path, help="file to write")
    parser.add_argument("--lines", type=int, default=2464, help="sentence pairs; default: 77 batches of 32")
    parser.add_argument("--words", type=int, default=1000, help="words of each language")
    parser.add_argument("--longest", type=int, default=10, help="words of the longest sentence")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same file")
    options = parser.parse_args()
    if options.lines < 1 or options.longest < 3 or not 1 <= options.words <= len(SYLLABLES) ** 3 // 2:
        parser.error("--lines must be at least 1, --longest at least 3, --words between 1 and 171500")
    text = "".join(
        f"{source}\t{target}\n"
        for source, target in sentence_pairs(options.lines, options.words, options.longest, options.seed)
    )
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(text, encoding="utf-8")
    print(f"{options.path}: {options.lines} sentence pairs")


if __name__ == "__main__":
    main()
