"""Trees of MindFormers' format "weights 2.0" of any layout, made without MindSpore and the same every time.

The parameters, layouts and names are those of the trees below ``tests/data/mindformers``, which MindFormers wrote; for
their layouts the metadata are equal to theirs byte for byte.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

from ms_recover.file_names import COMMON_NAME, METADATA_NAME, TRACKER_NAME, WeightsName
from ms_recover.formats.common_info import COMMON_MEMBERS, encode_common, encode_tracker
from ms_recover.formats.dtypes import ITEM_SIZES
from ms_recover.formats.image import safetensors_image
from ms_recover.formats.shard_entries import DTYPES
from ms_recover.formats.shard_metadata import encode_metadata
from ms_recover.model.shard_metadata import (
    NEVER_SAVED,
    CommonInfo,
    SavedLayout,
    ShardedParameter,
    ShardMetadata,
    StoredShard,
    shards_by_rank,
)
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.compare_documents import GLOBAL_STEP, ListedFile
from ms_recover.planning.claims.metadata import find_document_stages
from ms_recover.planning.claims.rebuild import saved_layout

HIDDEN = 16
ADAM = ("adam_m.", "adam_v.")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training, and how MindFormers saves it."""

    data_parallel: int = 2
    model_parallel: int = 2
    stages: int = 1
    optimizer_shards: int = 1
    layers: int = 2
    dtype: str = "float32"
    optimizer: bool = True
    remove_redundancy: bool = False
    prefix: str | None = "llama_tiny"
    adapter: bool = True
    """Have a parameter that is cut over all ranks, so that no other rank holds what one has of it."""
    batch: int = 16

    @property
    def stage_size(self) -> int:
        """The number of ranks of a stage."""
        return self.data_parallel * self.model_parallel

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.stage_size * self.stages


def make_metadata(job: Job) -> ShardMetadata:
    """Return what MindFormers writes to ``metadata.json``."""
    parameters = _parameters(job)
    model = {name: one for name, one in parameters.items() if not _is_state(name)}
    state = {name: one for name, one in parameters.items() if name not in model}
    if not job.remove_redundancy:
        stored = {**_stored(job, model, "model"), **_stored(job, state, "opt")}
        return ShardMetadata(parameters=parameters, stored={name: stored[name] for name in parameters})
    shards, order = _dealt(job, model, "model")
    if not state:
        return ShardMetadata(parameters=model, stored=shards, order=order)
    more, first = _dealt(job, state, "opt")
    model = {name: replace(one, dtype=one.type_name) for name, one in model.items()}
    return ShardMetadata(parameters={**state, **model}, stored={**more, **shards}, order=(*first, *order))


def strategies(job: Job) -> dict[int, Strategy]:
    """Return what strategy files state about a job: optimizer shards are not part of the cut there."""
    found = {}
    for stage in find_document_stages(make_metadata(replace(job, optimizer_shards=1))):
        layouts = list(stage.strategy.layouts)
        sharded = make_metadata(job).parameters
        for place, layout in enumerate(layouts):
            saved = sharded[layout.parameter].layout
            if saved and saved.counts != layout.counts:
                layouts[place] = replace(layout, opt_shard_size=job.optimizer_shards)
        found[stage.ranks[0]] = replace(stage.strategy, layouts=tuple(layouts))
    return found


def rank_regions(parameter: ShardedParameter, rank: int) -> tuple[tuple[int, int], ...] | None:
    """Return the extents of the global tensor that a rank of the layout's stage holds, None for other ranks.

    This is the statement of ``metadata.json`` itself; `cells_of` says the same of the layout in planning's terms.
    """
    layout = parameter.layout
    if not layout or not layout.rank_list[0] <= rank <= layout.rank_list[-1]:
        return None
    return parameter.region_of(layout.fragments[rank - layout.rank_list[0]])


def make_common(job: Job, iteration: int) -> CommonInfo:
    """Return what MindFormers writes to ``common.json``."""
    return CommonInfo(
        epoch_num=1,
        step_num=iteration,
        global_step=iteration,
        loss_scale=1.0,
        global_batch_size=job.batch,
        members=COMMON_MEMBERS,
    )


def file_shards(metadata: ShardMetadata) -> Mapping[str, tuple[tuple[Parameter, int], ...]]:
    """Return what each file holds: parameters as its header lists them, each with the index of its fragment."""
    found: dict[str, list[tuple[Parameter, int]]] = {name: [] for name in sorted(metadata.files)}
    for name, one in metadata.parameters.items():
        if not name.startswith(NEVER_SAVED):
            parameter = Parameter(name, one.type_name, one.local_shape, one.nbytes)
            for fragment, items in zip(one.chunks, metadata.stored[name], strict=True):
                for item in items:
                    found[item.file_name].append((parameter, fragment))
    removed = metadata.order is not None
    return {
        name: (*shards, (GLOBAL_STEP, 0)) if "opt-" in name and not removed else tuple(shards)
        for name, shards in found.items()
    }


def listed(metadata: ShardMetadata) -> dict[str, ListedFile]:
    """Return the files as their headers have them; equal lists are one object, as readers share them."""
    known: dict[tuple[Parameter, ...], tuple[Parameter, ...]] = {}
    found = {}
    for name, shards in file_shards(metadata).items():
        parameters = tuple(sorted((one for one, _ in shards), key=lambda one: one.name))
        found[name] = ListedFile(parameters=known.setdefault(parameters, parameters), size=1)
    return found


def write_job(root: Path, job: Job, iterations: Iterable[int] = (100, 200)) -> Path:
    """Write a tree as a training leaves it: iterations, and the tracker that names the last one."""
    metadata = make_metadata(job)
    text = b"".join(encode_metadata(metadata))
    files = file_shards(metadata)
    for iteration in iterations:
        folder = root / f"iteration_{iteration:08d}"
        folder.mkdir(parents=True)
        known: dict[tuple[tuple[Parameter, int], ...], bytes] = {}
        for name, shards in files.items():
            if shards not in known:
                known[shards] = file_bytes(shards, iteration)
            (folder / name).write_bytes(known[shards])
            (folder / name).chmod(0o400)
        (folder / METADATA_NAME).write_bytes(text)
        (folder / COMMON_NAME).write_bytes(encode_common(make_common(job, iteration)))
        (root / TRACKER_NAME).write_bytes(encode_tracker(iteration))
    return root


def file_bytes(shards: Iterable[tuple[Parameter, int]], iteration: int) -> bytes:
    """Return a file; the contents of a fragment are the same in each file of an iteration."""
    fragments = {parameter.name: fragment for parameter, fragment in shards}
    image = safetensors_image((parameter for parameter, _ in shards), (("format", "ms"),))
    contents = (_contents(iteration, one.name, fragments[one.name], one.nbytes) for one in image.parameters)
    return b"".join((image.literals[0][1], *contents))


@cache
def _contents(iteration: int, name: str, fragment: int, nbytes: int) -> bytes:
    if name == GLOBAL_STEP.name:
        return iteration.to_bytes(4, "little")
    return random.Random(f"{iteration} {name} {fragment}").randbytes(nbytes)


def _is_state(name: str) -> bool:
    return name.startswith((*ADAM, NEVER_SAVED))


def _parameters(job: Job) -> dict[str, ShardedParameter]:
    """Return all parameters, in MindFormers' order: by stage and by name, each before its optimizer states."""
    found: dict[str, ShardedParameter] = {}
    known: dict[tuple[object, ...], ShardedParameter] = {}
    for stage in range(job.stages):
        for name, shape, cut in sorted(_network(job, stage)):
            states = (*ADAM, *[NEVER_SAVED] * (job.stages > 1)) if job.optimizer else ()
            for start in ("", *states):
                dtype = "float32" if start else job.dtype
                key = stage, shape, cut, dtype
                if key not in known:
                    known[key] = _parameter(job, stage, shape, cut, dtype)
                found[start + name] = known[key]
    return found


def _network(job: Job, stage: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Yield name, shape and cut of the parameters of a stage: rows, columns or both, whole, or without a strategy."""
    wide, tall = HIDDEN * max(job.model_parallel // 4, 1), 2 * HIDDEN * max(job.model_parallel // 4, 1)
    if not stage:
        yield "embedding.tokentype_embeddings.weight", (5, HIDDEN), "free"
        yield "embedding.word_embeddings.weight", (3 * wide, HIDDEN), "rows"
    for layer in range(job.layers):
        if layer * job.stages // job.layers == stage:
            start = f"decoder.layers.{layer}."
            yield f"{start}input_layernorm.weight", (HIDDEN,), "whole"
            yield f"{start}mlp.linear_fc1.weight", (tall, HIDDEN), "rows"
            yield f"{start}mlp.linear_fc2.bias", (HIDDEN,), "whole"
            yield f"{start}mlp.linear_fc2.weight", (HIDDEN, tall), "columns"
            yield f"{start}self_attention.linear_proj.weight", (HIDDEN, 3 * wide), "columns"
            yield f"{start}self_attention.linear_qkv.bias", (3 * wide,), "rows"
            yield f"{start}self_attention.linear_qkv.weight", (3 * wide, HIDDEN), "rows"
    if stage == job.stages - 1:
        side = HIDDEN * max(job.stage_size // 64, 1)
        if job.adapter:
            yield "decoder.adapter.weight", (side, side), "both"
        yield "decoder.final_layernorm.weight", (HIDDEN,), "whole"
        yield "output_layer.weight", (3 * wide, HIDDEN), "rows"


def _layout(job: Job, stage: int, shape: tuple[int, ...], cut: str) -> SavedLayout:
    matrix = {"free": (job.stage_size,), "both": (job.model_parallel, job.data_parallel)}.get(
        cut, (job.data_parallel, job.model_parallel)
    )
    axes: list[tuple[int, ...]] = [()] * len(shape)
    if cut == "rows":
        axes[0] = (0,)
    elif cut == "columns":
        axes[1] = (0,)
    elif cut == "both":
        axes = [(1,), (0,)]
    shards = job.optimizer_shards if cut not in ("free", "both") and job.optimizer_shards > 1 else 0
    if shards and shape[0] % (shards * prod(job.model_parallel for _ in axes[0])):
        shards = 0
    layout = Layout(parameter="", device_matrix=matrix, tensor_map=tuple(axes), opt_shard_size=shards)
    found = saved_layout(layout, stage * job.stage_size)
    assert found
    return found


def _parameter(job: Job, stage: int, shape: tuple[int, ...], cut: str, dtype: str) -> ShardedParameter:
    layout = _layout(job, stage, shape, cut)
    seen: dict[int, int] = {}
    replicas = []
    for fragment in layout.fragments:
        replicas.append(seen.get(fragment, 0))
        seen[fragment] = replicas[-1] + 1
    return ShardedParameter(
        dtype=dtype,
        replica_id=tuple(replicas),
        global_shape=shape,
        axis_fragmentations=layout.counts,
        layout=layout,
        chunks=tuple(seen),
        allow_shape_mismatch=False,
        allow_to_save=True,
        type_name=DTYPES[dtype],
        item_size=ITEM_SIZES[DTYPES[dtype]],
    )


def _stored(
    job: Job, parameters: Mapping[str, ShardedParameter], kind: str
) -> dict[str, tuple[tuple[StoredShard, ...], ...]]:
    """Return the files of all shards where each holder wrote its own."""
    known: dict[int, tuple[tuple[StoredShard, ...], ...]] = {}
    found = {}
    for name, one in parameters.items():
        assert one.layout
        if id(one.layout) not in known:
            groups = one.layout.holders
            known[id(one.layout)] = tuple(
                tuple(_item(job, kind, rank, rank, job.world_size, groups[chunk]) for rank in groups[chunk])
                for chunk in one.chunks
            )
        found[name] = known[id(one.layout)]
    return found


def _dealt(
    job: Job, parameters: Mapping[str, ShardedParameter], kind: str
) -> tuple[dict[str, tuple[tuple[StoredShard, ...], ...]], tuple[tuple[str, int], ...]]:
    """Return the one file of each shard and the order in which they are listed, as MindFormers deals shards to ranks.

    Shards with few holders go first, of these the large ones; each goes to the holder with the least bytes so far.
    Source: ``distribute_shards`` in ``mindformers/checkpoint/fully_parallel.py``.
    """
    shards = []
    for name, fragment in shards_by_rank(parameters):
        one = parameters[name]
        assert one.layout
        shards.append((len(one.layout.holders[fragment]), -one.nbytes, repr((name, (fragment,))), name, fragment))
    loads = [0] * job.world_size
    given: dict[int, list[tuple[str, int]]] = {}
    for _, size, _, name, fragment in sorted(shards):
        layout = parameters[name].layout
        assert layout
        rank = min(layout.holders[fragment], key=loads.__getitem__)
        loads[rank] -= size
        given.setdefault(rank, []).append((name, fragment))
    assert len(given) == job.world_size, "MindFormers cannot save where a rank is given no shard"
    found: dict[tuple[str, int], tuple[StoredShard, ...]] = {}
    for rank in sorted(given):
        for name, fragment in given[rank]:
            layout = parameters[name].layout
            assert layout
            found[name, fragment] = (_item(job, kind, rank, rank, job.world_size, layout.holders[fragment]),)
    stored = {name: tuple(found[name, chunk] for chunk in one.chunks) for name, one in parameters.items()}
    return stored, tuple(found)


def _item(job: Job, kind: str, rank: int, index: int, count: int, group: tuple[int, ...]) -> StoredShard:
    name = WeightsName(job.prefix, "model" if kind == "model" else "opt", index, count)
    return StoredShard(name.name, rank, group)
