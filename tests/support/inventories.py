"""Inventories made by hand."""

from ms_recover.model.groups import GroupInfo
from ms_recover.model.inventory import GroupFile, Inventory, RankPath, SliceFile
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step

STEP = Step(2, 8)
OLDER = Step(1, 8)
NAMES = ("a", "b", "moment1.a", "global_step")


def parameters(names=NAMES, shape=(4,)):
    return tuple(Parameter(name, "Float32", shape, 16) for name in names)


def slice_file(rank, step=STEP, *, problem=None, names=NAMES, shape=(4,), prefix="test", mtime=1, size=100):
    place = RankPath(("ckpt_dir", f"/{prefix}-{step}.ckpt"))
    return SliceFile(rank, step, place, prefix, size, mtime, parameters(names, shape), problem)


def group_file(rank, ranks, *, outside=False):
    place = None if outside else RankPath(("ckpt_dir", "/group_info.pb"))
    path = f"ckpt_dir{rank}/group_info.pb"
    return GroupFile(rank, path, place, GroupInfo(tuple(ranks)))


def tree(slices, groups, ranks=None):
    """Groups: rank -> list, for the lists that survive."""
    files = tuple(group_file(rank, members) for rank, members in sorted(groups.items()))
    present = set(ranks if ranks is not None else [file.rank for file in slices]) | set(groups)
    return Inventory("/tree", tuple(sorted(present)), tuple(slices), files)


def pairs(count):
    """Return lists as in dp2: rank r and r + count/2 hold the same."""
    half = count // 2
    return {rank: [rank % half, rank % half + half] for rank in range(count)}
