"""An audit as text for an operator: the answer first, then what would mend it, then what each loss costs."""

from __future__ import annotations

from ms_recover.model.audit import Audit, BlockClass, LevelAudit, Loss, Losses
from ms_recover.model.texts import many, plural, ranks_text
from ms_recover.reporting.figures import seconds_text
from ms_recover.reporting.rank_map import rank_map, states_of_audit
from ms_recover.reporting.tables import first_rows, page, section, size_text

_MOST_ROWS = 24
_MOST_NAMED = 3
_LOSS_COLUMNS = ("lost", "ranks", "recoverable", "bytes", "takes", "from or why")


def audit_text(audit: Audit, width: int | None, *, gate: str = "", ascii_only: bool = False) -> str:
    """Return an audit as text; `gate` is a line that says whether what must be survived is.

    `ascii_only` is as for `ms_recover.reporting.rank_map.rank_map`.
    """
    where = audit.root or "before the first checkpoint"
    step = "" if audit.step is None or audit.before else f", step {audit.step}"
    lines = [f"{where}: {many(audit.world_size, 'rank')}{step}", audit.headline]
    lines += [gate] if gate else []
    if audit.step is None:
        return page(lines)
    places = [f"{many(len(level.domains), level.name)} by {audit.topology.source}" for level in audit.levels[:1]]
    places += [many(len(level.domains), level.name) for level in audit.levels[1:]]
    if audit.hosts_known:
        lines += [f"Where ranks live: {', '.join(places)}"]
    lines += [f"Who holds the same: by {audit.evidence}"]
    if audit.levels:
        title = f"What losing each {audit.levels[0].name} would cost"
        topology = audit.topology if audit.hosts_known else None
        picture = rank_map(states_of_audit(audit), topology, width, title=title, ascii_only=ascii_only)
        lines += ["", *picture.split("\n")]
    for finding in audit.findings:
        lines += ["", f"{finding.kind.upper()}: {finding.text}", f"  Mend it: {finding.mend}"]
    lines += _levels(audit, width)
    lines += _blocks(audit, width)
    for level in audit.levels:
        lines += _singles(audit, level, width)
    lines += _pairs(audit, width)
    return page(lines)


def _levels(audit: Audit, width: int | None) -> list[str]:
    rows = [_losses(level, one) for level in audit.levels for one in level.losses]
    columns = ("lost at once", "fatal", "of", "probability", "to an older step")
    lines = section("Losses", columns, rows, width, right=columns[1:])
    for level in audit.levels:
        if level.minimal_count:
            sets = [" + ".join(one) for one in level.minimal if len(one) == level.smallest][:_MOST_NAMED]
            more = f", such as {', '.join(sets)}" if sets else ""
            noun = "set" if level.minimal_count == 1 else "sets"
            text = f"{level.minimal_count:,} {noun} of {plural(level.name)}{more}"
            lines.append(f"Fatal though no part of them is: {text}")
        elif level.minimal_count is None:
            lines.append(f"The fatal sets of {plural(level.name)} overlap in too many ways to be listed")
    return lines


def _losses(level: LevelAudit, one: Losses) -> tuple[str, ...]:
    unknown = "not counted: too many overlaps"
    fatal = f"{one.fatal:,}" if one.fatal is not None else unknown
    chance = "" if one.probability is None else _chance(one)
    older = ""
    if one.newest is not None and one.fatal is not None:
        older = f"{one.possible - one.newest - one.fatal:,}"
    return many(one.count, level.name), fatal, f"{one.possible:,}", chance, older


def _chance(one: Losses) -> str:
    assert one.probability is not None
    if one.fatal in (0, one.possible):
        return "0" if one.fatal == 0 else "1"
    return f"{float(one.probability):.4g}"


def _blocks(audit: Audit, width: int | None) -> list[str]:
    rows = [_block(one) for one in audit.blocks]
    where = f"on {audit.levels[0].name}s" if audit.levels else "on ranks"
    columns = ("parameters", "stage", "blocks", "bytes", "copies", where)
    lines = section("Copies", columns, first_rows(rows, _MOST_ROWS, 0), width, right=columns[1:])
    if audit.single_copy_bytes:
        lines.append(f"Of {size_text(audit.single_copy_bytes)} there is a single copy")
    return lines


def _block(one: BlockClass) -> tuple[str, ...]:
    more = f" and {one.parameters - 1:,} more" if one.parameters > 1 else ""
    what = f"{one.names[0]}{more}" if one.names else "whole slices"
    stage = "all" if one.stage is None else str(one.stage)
    size = size_text(one.bytes) if one.bytes is not None else ""
    return what, stage, f"{one.blocks:,}", size, _span(one.copies), _span(one.hosts)


def _span(counts: tuple[int, int]) -> str:
    fewest, most = counts
    return f"{fewest:,}" if fewest == most else f"{fewest:,}-{most:,}"


def _singles(audit: Audit, level: LevelAudit, width: int | None) -> list[str]:
    singles = sorted(
        (loss for loss in level.singles if loss.fatal or not audit.before),
        key=lambda loss: (not loss.fatal, loss.step == audit.step),
    )
    rows = [_loss(audit, loss) for loss in singles]
    return section(
        f"Each {level.name} alone", _LOSS_COLUMNS, first_rows(rows, _MOST_ROWS, 0), width, right=("bytes", "takes")
    )


def _pairs(audit: Audit, width: int | None) -> list[str]:
    lines = []
    for losses in (audit.pairs, audit.chosen):
        bad = [loss for loss in losses if loss.fatal or loss.step != audit.step]
        if bad:
            title = (
                f"{many(len(bad[0].domains), audit.levels[0].name)} at once, those that cost data or the newest step"
            )
            rows = [_loss(audit, loss) for loss in bad]
            lines += section(title, _LOSS_COLUMNS, first_rows(rows, _MOST_ROWS, 0), width, right=("bytes", "takes"))
    return lines


def _loss(audit: Audit, loss: Loss) -> tuple[str, ...]:
    if loss.fatal:
        return " + ".join(loss.domains), ranks_text(loss.ranks), "NO", "", "", f"lost: {loss.reason}"
    verdict = "yes" if audit.before else ("yes" if loss.step == audit.step else f"step {loss.step} only")
    givers = [f"{one.host} {size_text(one.bytes)}" for one in loss.sources[:_MOST_NAMED]]
    more = [f"{len(loss.sources) - _MOST_NAMED} more"] if len(loss.sources) > _MOST_NAMED else []
    why = [f"lost: {loss.reason}"] if loss.reason else []
    takes = seconds_text(loss.seconds) if loss.seconds is not None else ""
    size = "" if audit.before else size_text(loss.bytes)
    return " + ".join(loss.domains), ranks_text(loss.ranks), verdict, size, takes, ", ".join([*why, *givers, *more])
