"""MindFormers' own loader in a process of its own: one request a line in, one answer a line out.

`tests.support.mindformers_loader` starts it with the interpreter of an environment that has MindFormers. All ranks run
one after the other in this process: rank and size come from ``RANK_ID`` and ``RANK_SIZE``, as MindFormers reads them
where no communication is initialized, and its barriers have nobody to wait for.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

PACKAGES = ("mindformers", "mindformers.core", "mindformers.trainer", "mindformers.models")
"""Packages whose ``__init__`` imports every model, and with them transformers, datasets and an accelerator's kernels.
Their modules are imported one by one instead; each is MindFormers' own."""


def import_mindformers() -> None:
    home = next(Path(entry) for entry in sys.path if (Path(entry) / "mindformers").is_dir())
    version = next(home.glob("mindformers-*.dist-info")).name.removesuffix(".dist-info").partition("-")[2]
    for name in PACKAGES:
        package = types.ModuleType(name)
        package.__path__ = [str(home / name.replace(".", "/"))]
        package.__version__ = version  # type: ignore[attr-defined]
        sys.modules[name] = package
    importlib.import_module("mindformers.tools")  # first: the packages above import it in this order
    resume = importlib.import_module("mindformers.tools.resume_ckpt")
    resume.barrier_world = lambda action=None: None


def act_as(rank: int, ranks: int, output: str) -> None:
    os.environ.update(RANK_ID=str(rank), RANK_SIZE=str(ranks), LOCAL_DEFAULT_PATH=output)


def digest(value: Any) -> str:
    return hashlib.sha256(value.asnumpy().tobytes()).hexdigest()


def resume_new(root: str, ranks: int, output: str, target: str | None = None) -> Any:
    """Resume every rank from a tree of weights 2.0: what ``load_checkpoint`` does, up to the network.

    A job is the one that saved the tree, or that of another metadata.json, the `target`.
    """
    checkpoint = importlib.import_module("mindformers.checkpoint.checkpoint")
    metadata = importlib.import_module("mindformers.checkpoint.metadata")
    reshard = importlib.import_module("mindformers.checkpoint.reshard")
    loaded = {}
    for rank in range(ranks):
        act_as(rank, ranks, output)
        iteration = checkpoint.get_checkpoint_path(root)
        sources, files = metadata.get_metadata_of_checkpoint(iteration)
        wanted = sources if target is None else metadata.load_metadata(target)[0]
        own = {
            name: pieces[0]
            for name, pieces in wanted.items()
            if "accu_grads" not in name
            and (pieces[0].layout is None or rank in pieces[0].layout.to_dict()["rank_list"])
        }
        loader = reshard.ReshardLoader(iteration, own, sources, files)
        loaded[rank] = {name: digest(value) for name, value in loader.load().items()}
    common = checkpoint.CommonInfo.load_common(os.path.join(iteration, "common.json"))
    return {"path": iteration, "tensors": loaded, "common": vars(common)}


def resume_legacy(root: str, ranks: int, output: str, form: str) -> Any:
    """Resume every rank from a legacy tree: the slice MindFormers chooses, loaded by MindSpore."""
    resume = importlib.import_module("mindformers.tools.resume_ckpt")
    mindspore = importlib.import_module("mindspore")
    loaded, names = {}, {}
    for rank in range(ranks):
        act_as(rank, ranks, output)
        names[rank] = resume.get_resume_checkpoint(root, True, ckpt_format=form)
        path = os.path.join(root, f"rank_{rank}", names[rank])
        loaded[rank] = {name: digest(value) for name, value in mindspore.load_checkpoint(path, format=form).items()}
    return {"names": names, "tensors": loaded}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # MindFormers logs to standard output
    import_mindformers()
    calls = {"new": resume_new, "legacy": resume_legacy}
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = calls[request.pop("format")](**request)
        except Exception as error:  # an answer like any other
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
