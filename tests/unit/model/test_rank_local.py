from ms_recover.model.rank_local import borrowed_text, own_values, share_nothing


def test_batch_statistics_are_no_own_values():
    assert own_values({"queue", "bn.moving_mean", "bn.moving_variance", "bank"}) == ("bank", "queue")
    assert own_values({"bn.running_mean", "bn.running_var"}) == ()


def test_a_running_mean_alone_is_an_own_value():
    assert own_values({"reward.running_mean", "bn.running_mean", "bn.running_var"}) == ("reward.running_mean",)


def test_lost_values_are_named_with_their_source():
    text = borrowed_text(["bank", "bn.moving_mean"], (0,))
    assert text == "rank-local, lost: bank; the values are those of rank 0; batch statistics of rank 0: bn.moving_mean"
    assert borrowed_text(["bn.moving_mean"], ()) == "batch statistics of another rank: bn.moving_mean"


def test_ranks_whose_tensors_all_differ_share_nothing():
    elements = {"w": 4, "b": 4, "step": 1}
    assert share_nothing(elements, {"w", "b"})
    assert not share_nothing(elements, {"w", "step"})
    assert not share_nothing({"step": 1}, {"step"})
