"""Hints for a plan in which a rank has no source: the evidence that a scan saw, and the options that take it."""

from __future__ import annotations

from ms_recover.planning.facts import Facts

_HOW = (
    "--strategy 'PATH/ckpt_strategy_rank_{rank}.ckpt' (MindFormers writes them to output/strategy), or "
    "--group-info 'PATH/group_info.pb'"
)


def hints_for(facts: Facts) -> tuple[str, ...]:
    """Return the hints, one for each option; where no evidence was used or seen, which options take some."""
    inventory = facts.inventory
    hints = []
    for seen in inventory.seen:
        files = f"{seen.count} files such as {seen.example}" if seen.count > 1 else seen.example
        hints.append(f"{files} may state which ranks hold the same: add {seen.option}")
    known = any(file.info is not None for file in inventory.group_files) or facts.stages.layouts
    if not hints and not known:
        hints.append(f"no usable rank list or strategy file was found: if there are any, name them with {_HOW}")
    return tuple(hints)
