"""Rules that give parameters other names."""

import pytest

from ms_recover.errors import UsageError
from ms_recover.planning.reshard.rename import parse_rules, rename_all


def test_whole_names_and_dotted_parts_are_renamed_wherever_they_stand():
    rules = parse_rules(["backbone=model", "head.weight=lm_head.weight"])
    names = ["backbone.layer.w", "moment1.backbone.layer.w", "backbones.w", "head.weight", "step"]
    assert rename_all(names, rules) == {
        "backbone.layer.w": "model.layer.w",
        "moment1.backbone.layer.w": "moment1.model.layer.w",
        "backbones.w": "backbones.w",
        "head.weight": "lm_head.weight",
        "step": "step",
    }


def test_the_first_rule_that_fits_applies_and_no_other():
    assert rename_all(["a.w", "b.w"], parse_rules(["a=b", "b=c"])) == {"a.w": "b.w", "b.w": "c.w"}


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (["a=b", "b=a"], "circle"),
        (["a=b", "b=c", "c=a"], "a -> b -> c -> a"),
        (["a=a"], "circle"),
        (["a"], "OLD=NEW"),
        (["=b"], "OLD=NEW"),
        (["a..b=c"], "OLD=NEW"),
        (["a=b", "a=c"], "renamed twice"),
    ],
)
def test_rules_that_cannot_be_meant(rules, words):
    with pytest.raises(ValueError, match=words):
        parse_rules(rules)


def test_two_parameters_never_get_one_name():
    with pytest.raises(UsageError, match="the same name"):
        rename_all(["a.w", "b.w"], parse_rules(["a=b"]))


def test_a_rule_that_fits_nothing_is_a_mistake():
    with pytest.raises(UsageError, match="zzz=y fits no parameter"):
        rename_all(["a.w"], parse_rules(["zzz=y"]))
