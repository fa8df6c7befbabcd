"""Names of slices, generated: the name of rank a gives that of rank b, wherever the rank stands in it."""

from hypothesis import given
from hypothesis import strategies as st

from ms_recover.formats.plan_paths import name_problem
from ms_recover.model.inventory import RankPath
from ms_recover.model.steps import Step
from ms_recover.planning.tree.prefixes import base_of
from ms_recover.scanning.naming import SliceName, read_slice_name
from ms_recover.scanning.rank_places import settle_rank_places

WORDS = st.from_regex(r"[a-zA-Z][a-zA-Z_.-]{0,8}[a-zA-Z]|[a-zA-Z]", fullmatch=True).filter(
    lambda word: not word.endswith("rank") and "rank_" not in word
)
RANKS = st.lists(st.integers(0, 20_000), min_size=2, max_size=6, unique=True)
RERUNS = st.one_of(st.just(""), st.integers(1, 99).map("_{}".format))
MARKS = st.sampled_from(["", "-network", "-trainable_params"])
FORMATS = st.sampled_from(["ckpt", "safetensors"])
MINDFORMERS = st.builds(
    "{}{}_rank_{{rank}}{}{}-{{step}}.{}".format,
    WORDS,
    st.one_of(st.just(""), st.integers(0, 99).map("_rank_{}".format), st.integers(0, 99).map(str)),
    RERUNS,
    MARKS,
    FORMATS,
)
ANYWHERE = st.one_of(
    MINDFORMERS,
    st.builds("{}{{rank}}-{{step}}.{}".format, st.one_of(st.just(""), WORDS), FORMATS),
    st.builds("{{rank}}{}-{{step}}.{}".format, WORDS, FORMATS),
    st.builds("{}_rank_{{rank}}_rank_{{rank}}-{{step}}.{}".format, WORDS, FORMATS),
    st.builds("{}-{{rank}}.{}-{{step}}.{}".format, WORDS, WORDS, FORMATS),
)
STEPS = st.builds(Step, st.integers(0, 999), st.integers(0, 10**6))


@given(form=ANYWHERE, ranks=RANKS, step=STEPS, other=st.integers(0, 30_000))
def test_the_name_of_one_rank_gives_that_of_another(form, ranks, step, other):
    names = [read_slice_name(RankPath(("rank_", "")), rank, form.format(rank=rank, step=step)) for rank in ranks]
    assert all(isinstance(name, SliceName) for name in names)
    settled, wrong = settle_rank_places(names)
    assert not wrong
    assert len({base_of(name.prefix) for name in settled}) == 1
    for name in settled:
        assert name.path == f"rank_{name.rank}/{form.format(rank=name.rank, step=step)}"
        assert name.place.of(other) == f"rank_{other}/{form.format(rank=other, step=step)}"
        assert name_problem(name.place.of(other), other, step) is None


@given(form=MINDFORMERS, rank=st.integers(0, 20_000), step=STEPS, other=st.integers(0, 30_000))
def test_one_name_of_mindformers_is_enough(form, rank, step, other):
    name = read_slice_name(RankPath(("rank_", "")), rank, form.format(rank=rank, step=step))
    (settled,), _ = settle_rank_places([name])
    assert settled.place.of(other) == f"rank_{other}/{form.format(rank=other, step=step)}"


@given(form=MINDFORMERS, rank=st.integers(0, 20_000), step=STEPS, other=st.integers(0, 30_000))
def test_the_name_of_another_rank_is_never_a_slice(form, rank, step, other):
    found = read_slice_name(RankPath(("rank_", "")), rank, form.format(rank=other, step=step))
    assert isinstance(found, SliceName) == (rank == other)
