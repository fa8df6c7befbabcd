"""Write slices with MindSpore itself, and what MindSpore reads back from them. Run with mindspore installed::

    python tests/unit/formats/write_real_files.py FOLDER [GROUP_INFO ...]

``FOLDER/oracle.json`` gets, per file, the names, types and shapes that ``mindspore.load_checkpoint`` answers (null when
it refuses), and for each GROUP_INFO what ``mindspore.restore_group_info_list`` answers. ``tests/data/formats`` and
``tests/data/safetensors`` were made by this script.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Generator, Parameter, Tensor, nn
from mindspore.dataset import GeneratorDataset
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint, serialization

KEY = b"0123456789abcdef"
PLAIN = [
    "bool_",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
]


def entry(name: str, data: Any) -> dict[str, Any]:
    return {"name": name, "data": data}


def of_type(name: str) -> Tensor:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    if name == "bfloat16":
        return Tensor(values, ms.bfloat16)
    if name == "qint4x2":
        return Tensor(values.astype(np.int8), ms.qint4x2)
    return Tensor(values).astype(getattr(ms, name))


def weights(*shapes: tuple[int, ...]) -> list[dict[str, Any]]:
    random = np.random.default_rng(7)
    values = [random.random(shape, dtype=np.float32) for shape in shapes]
    return [entry(f"w{i}", Parameter(Tensor(value), name=f"w{i}")) for i, value in enumerate(values)]


def load(path: Path, **options: Any) -> dict[str, Any] | None:
    try:
        loaded = ms.load_checkpoint(str(path), **options)
    except (ValueError, KeyError):  # KeyError: complex types of safetensors files
        return None
    return {
        name: ["str", []] if isinstance(value, str) else [str(value.dtype), list(value.shape)]
        for name, value in loaded.items()
    }


def train(folder: Path) -> None:
    """Let ModelCheckpoint write ``trained-1_1.safetensors``."""
    data = np.random.default_rng(7).random((2, 4), dtype=np.float32)
    dataset = GeneratorDataset([(data, data[:, :2])], ["x", "y"], shuffle=False)
    network = nn.Dense(4, 2)
    model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), learning_rate=1e-3))
    config = CheckpointConfig(save_checkpoint_steps=1, format="safetensors")
    model.train(1, dataset, ModelCheckpoint("trained", str(folder), config), dataset_sink_mode=False)


def main(folder: Path, group_files: list[str]) -> None:
    oracle: dict[str, Any] = {}

    def save(name: str, entries: Any, load_options: dict[str, Any] | None = None, **options: Any) -> None:
        path = folder / f"{name}.ckpt"
        path.unlink(missing_ok=True)
        ms.save_checkpoint(entries, str(path), **options)
        while not path.exists():  # async_save
            time.sleep(0.01)
        oracle[path.name] = load(path, **(load_options or {}))

    types = [entry(f"of.{name}", of_type(name)) for name in [*PLAIN, "qint4x2"]]
    types.append(entry("scalar", Parameter(Tensor(1.5, ms.float32), name="scalar")))
    appended = {
        "epoch_num": 3,
        "lr": 0.1,
        "flag": True,
        "text": "h\u00e9llo \U0001f409",
        "nothing": "",
        "rng": Generator(),
    }
    save("types", types, append_dict=appended)
    save("crc", types, append_dict=appended, crc_check=True)
    save("complex", [entry(f"of.{name}", of_type(name)) for name in ("complex64", "complex128")])
    save("async", weights((4, 5), (3,)), async_save=True)
    save("zero_size_async", [*weights((0, 3), (2, 2))], async_save=True)

    network = nn.Dense(4, 2)
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-3)
    save("cell", nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), optimizer))

    three = weights((40, 16), (40, 16), (3, 7))
    serialization.ENCRYPT_BLOCK_SIZE = 1  # KiB, 64 MiB otherwise
    for mode in ("AES-GCM", "AES-CBC", "SM4-CBC"):
        save(f"encrypted_{mode}", three, enc_key=KEY, enc_mode=mode, load_options={"dec_key": KEY, "dec_mode": mode})
    save("encrypted_crc", three[2:], enc_key=KEY, crc_check=True, load_options={"dec_key": KEY})

    serialization.SLICE_SIZE = 1  # KiB, 512 MiB otherwise
    save("pieces", three)
    save("pieces_crc", three, crc_check=True)
    save("pieces_async", [*weights((1, 700), (40, 16))], async_save=True)

    def save_tensors(name: str, entries: Any, **options: Any) -> None:
        path = folder / f"{name}.safetensors"
        path.unlink(missing_ok=True)
        ms.save_checkpoint(entries, str(path), format="safetensors", **options)
        oracle[path.name] = load(path, format="safetensors")

    save_tensors("model", three)
    # numpy has bfloat16 through ml_dtypes or MindSpore's patched numpy 1 only
    without = [one for one in types if one["name"] != "of.bfloat16"]
    without.append(entry("of.nothing", weights((0, 3))[0]["data"]))
    plain = {key: value for key, value in appended.items() if not isinstance(value, str)}
    save_tensors("types", without, append_dict=plain)
    save_tensors("crc", without[:-1], append_dict=plain, crc_check=True)
    train(folder)
    save_tensors("deduplicated", three[1:], remove_redundancy=True)
    save_tensors("complex", [entry("c", of_type("complex64")), three[2]])
    oracle["group_files"] = {name: ms.restore_group_info_list(name) for name in group_files}
    (folder / "oracle.json").write_text(json.dumps(oracle, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
