"""Sentence pairs of a tab-separated text file as a MindSpore dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import mindspore.dataset as ds
import numpy as np
from model import MASKED

UNK, PAD, BOS, EOS = range(4)
"""Numbers of the special tokens; words follow, the most frequent first."""


def build_vocabulary(sentences: Iterable[list[str]], size: int) -> dict[str, int]:
    """Number the most frequent words; ties go by spelling, so that every rank numbers alike."""
    counts = Counter(word for sentence in sentences for word in sentence)
    words = sorted(counts, key=lambda word: (-counts[word], word))[: size - (EOS + 1)]
    return {word: EOS + 1 + index for index, word in enumerate(words)}


class SentencePairs:
    """The sentence pairs of a file, as arrays of token numbers.

    Parameters
    ----------
    path : str
        Text file, one pair per line: source, tab, target; words separated by spaces.
    src_len, tgt_len : int
        Tokens per sentence; longer ones are cut, shorter ones padded.
    vocab : int
        Tokens per language, special ones included.

    Raises
    ------
    ValueError
        When a line has no tab or more than one, or the file has no line.
    """

    def __init__(self, path: str, src_len: int, tgt_len: int, vocab: int) -> None:
        pairs: list[tuple[list[str], list[str]]] = []
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
            if line.strip():
                fields = line.split("\t")
                if len(fields) != 2:
                    raise ValueError(f"{path}, line {number}: expected 'source<tab>target', got {len(fields)} field(s)")
                pairs.append((fields[0].split(), fields[1].split()))
        if not pairs:
            raise ValueError(f"{path} holds no sentence pairs; make_dataset.py writes such a file")
        source_words = build_vocabulary((source for source, _ in pairs), vocab)
        target_words = build_vocabulary((target for _, target in pairs), vocab)
        self._source = np.full((len(pairs), src_len), PAD, np.int32)
        self._target = np.full((len(pairs), tgt_len + 1), PAD, np.int32)
        for index, (source, target) in enumerate(pairs):
            source_ids = [source_words.get(word, UNK) for word in source][:src_len]
            target_ids = [BOS, *(target_words.get(word, UNK) for word in target), EOS][: tgt_len + 1]
            self._source[index, : len(source_ids)] = source_ids
            self._target[index, : len(target_ids)] = target_ids

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        source, target = self._source[index], self._target[index]
        mask = np.where(source == PAD, MASKED, 0.0).astype(np.float32).reshape(1, 1, -1)
        return source, mask, target[:-1], target[1:], (target[1:] != PAD).astype(np.float32)


def create_dataset(pairs: SentencePairs, batch_size: int, shards: int, shard: int, seed: int) -> ds.Dataset:
    """Make the shuffled, batched dataset of one rank.

    Parameters
    ----------
    pairs : SentencePairs
        What to train on.
    batch_size : int
        Sentence pairs per step over all shards.
    shards, shard : int
        Number of shards, and which one this rank reads. Ranks with the same number read the same rows.
    seed : int
        Seed of the shuffling; every rank must give the same.
    """
    ds.config.set_seed(seed)
    columns = ["source", "mask", "target", "label", "weight"]
    rows = ds.GeneratorDataset(
        pairs, columns, shuffle=True, num_shards=shards, shard_id=shard, python_multiprocessing=False
    )
    return rows.batch(batch_size // shards, drop_remainder=True)
