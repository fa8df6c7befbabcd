"""What must hold for any damage that a slice alone, or its peers, can show."""


def is_refused_and_repaired(tree, path, damaged, recover_ckpt, *, sound_alone):
    """Damage rank 0's slice of step 2_77, whose peer is rank 4, and recover it."""
    data = path.read_bytes()
    assert damaged != data
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(damaged)
    path.chmod(mode)
    inspected = recover_ckpt("inspect", path, "--json")
    if not sound_alone:
        assert inspected.code == 3
        assert inspected.json["problems"]
    planned = recover_ckpt("plan", tree, "--json")
    assert planned.code == 0, planned.err
    assert planned.json["ranks"][0]["state"] == "damaged"
    assert planned.json["step"] == {"epoch": 2, "step": 77}
    assert [(action["rank"], action["source_rank"]) for action in planned.json["actions"]] == [(0, 4)]
    assert recover_ckpt("apply", tree).code == 0
    return path.read_bytes() == data
