"""Inventories of many steps, from the value of each parameter on each rank."""

from dataclasses import replace

from ms_recover.model.inventory import OrphanManifest, StrategyFile
from ms_recover.model.manifest import Digests, Manifest, TrainingRecord
from ms_recover.model.options import DEFAULT_PLAN
from ms_recover.model.provenance import SAVED
from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.history.make_history import make_tree_history
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import slice_file, tree

RANKS = 8
NAMES = ("column", "norm", "moments.norm", "rate")
MATRIX = (2, 4)
"""dp 2, tp 4: ranks r and r + 4 hold the same."""
PAIRS = {rank: [rank % 4, rank % 4 + 4] for rank in range(RANKS)}
STRATEGY = Strategy(
    stages=(0,),
    save_count=1,
    layouts=(
        Layout("column", MATRIX, ((0,),)),
        Layout("moments.norm", MATRIX, ((),), opt_shard_size=2),
        Layout("norm", MATRIX, ((),)),
    ),
)
"""A column cut over tp, a norm that is whole everywhere, and its moment, in two shards."""


def value(rank, step, name):
    """Return the value of an intact training: it changes with the step, and with the part of the rank."""
    part = {"column": rank % 4, "moments.norm": rank % 2}.get(name, 0)
    return f"{name}.{step.step}.{part}"


def flip(rank, since, name="column", *, until=10**9):
    """Return the values of a training in which one rank has another value from a step on."""

    def flipped(one, step, parameter):
        text = value(one, step, parameter)
        return f"{text}!" if (one, parameter) == (rank, name) and since <= step.step < until else text

    return flipped


def saved(rank, step, values, *, names=NAMES, run="run", training=None, groups=PAIRS, provenance=SAVED, elements=4):
    """Return a rank's slice with a manifest of these values."""
    listed = ParameterList(Parameter(name, "Float32", (elements,), 4 * elements) for name in names)
    file = replace(slice_file(rank, step), parameters=listed)
    digests = tuple(values(rank, step, name) for name in names)
    manifest = Manifest(
        run_id=run,
        rank=rank,
        world_size=len(groups),
        step=step,
        cumulative_step=step.step,
        file=file.path.rpartition("/")[2],
        size=file.size,
        digests=Digests("|".join(digests), digests),
        parameters=listed,
        group=tuple(groups[rank]),
        provenance=provenance,
        training=training,
        strategy_digest=None,
    )
    return replace(file, manifest=manifest)


def course(values=value, steps=range(1, 21), *, ranks=RANKS, recorded=None, **changes):
    """Return the slices of each step; `recorded` returns the rank-local parameters of a rank and step."""
    found = []
    for number in steps:
        for rank in range(ranks):
            step = Step(1, number)
            names = tuple(recorded(rank, step)) if recorded is not None else ()
            training = TrainingRecord(1000, None, 100, rank_local=names)
            found.append(saved(rank, step, values, **{"training": training, **changes}))
    return found


def orphan(file):
    """Return the manifest of a slice that is gone."""
    return OrphanManifest(rank=file.rank, step=file.step, place=file.place, prefix=file.prefix, manifest=file.manifest)


def inventory(slices, *, groups=PAIRS, strategy=STRATEGY, orphans=()):
    """Return the inventory of a tree, with the strategy file of its one stage unless that is None."""
    files = (StrategyFile(0, "strategy/0.ckpt", strategy, ""),) if strategy is not None else ()
    return replace(tree(slices, groups), strategy_files=files, orphans=tuple(orphans))


def history(slices, options=DEFAULT_PLAN, **changes):
    """Return the history of some slices."""
    return make_tree_history(TreeFacts(inventory(slices, **changes), options))
