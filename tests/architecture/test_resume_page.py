"""What docs/resume.md says, and the tests that show it."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "resume.md").read_text()
SECTIONS = ["## What is proven, compared and named", "## What is refused, or chosen"]
"""Each row of the tables in them is shown by a test."""

SHOWN_BY = {
    "weights, optimizer, learning rate, counters, loss scale: every parameter": (
        "test_goes_on_to_the_last_bit",
        "test_the_loop_goes_on_to_the_last_bit",
    ),
    "persistent buffers, by their digests": ("test_buffers_go_on_to_the_last_bit",),
    "the samples and the position, by the last trained batch": (
        "test_a_reader_that_shuffles_with_a_seed_goes_on_with_its_samples",
        "test_what_code_keeps_between_samples_is_proven_or_refused",
    ),
    "generators of Python, numpy and MindSpore; callbacks with": (
        "test_generators_of_the_process_go_on",
        "test_goes_on_with_the_callbacks_as_they_were",
        "test_a_loop_gets_back_what_it_gave",
        "test_what_cells_count_goes_on_in_pynative_mode",
    ),
    "the dataset: epoch, batch, shuffle, seed": (
        "test_a_changed_dataset_is_refused_with_both_numbers_and_nothing_is_changed",
    ),
    "what a retry begins with, in the process": (
        "test_steps_that_were_trained_and_not_saved_are_named_at_the_retry",
        "test_each_further_retry_is_compared_with_the_first_begin",
    ),
    "each difference is a warning with both values": (
        "test_each_setting_that_differs_is_one_warning_with_both_values_and_who_wins",
        "test_settings_as_before_are_not_named_and_a_value_that_was_overruled_stays_so",
    ),
    "numbers that cells were given": ("test_a_network_with_another_number_or_another_class_of_cell_is_named",),
    "which callbacks are given, and the numbers": ("test_other_callbacks_than_before_are_named_in_the_line",),
    "random operators in the network": ("test_what_is_not_restored_is_named",),
    "other values of a loop that gives no `extra`": (
        "test_a_loop_that_saves_no_extra_says_so_and_an_empty_one_states_that_there_is_nothing",
    ),
    "other callbacks, which start anew": (
        "test_what_a_callback_remembers_anywhere_is_named_at_the_first_save_and_in_the_line",
    ),
    "changes of numbers and of `requires_grad` have no effect there": (
        "test_in_graph_mode_tensors_go_on_and_numbers_are_named_at_the_first_save",
    ),
    "weights that a callback gives other memory": ("test_weights_that_a_callback_takes_from_the_optimizer_are_named",),
    "`nn.RMSProp` on CPU": (
        "test_an_optimizer_that_rounds_otherwise_is_named",
        "test_it_is_named_in_a_loop",
    ),
    "whose slice is lost; where its slice lives they are exact": (
        "test_where_the_own_slices_live_training_is_the_same_to_the_last_bit",
        "test_lost_values_are_refused_with_the_choice",
        "test_the_choice_is_carried_out_and_named",
    ),
    "another optimizer, other shapes": ("test_refuses_a_slice_of_another_optimizer_and_trains_nothing",),
    "a parameter of the slice is not in the network": ("test_what_the_network_lacks_is_named",),
    "two trainings of a script under one prefix": (
        "test_two_trainings_of_one_script_under_one_prefix_are_refused_with_the_way_out",
    ),
    "ranks killed at any moment": ("test_what_was_killed_goes_on_as_the_same_run",),
    "the newest slice is damaged |": ("test_newer_damaged_slices_are_passed_over_and_set_aside",),
    'no slices, and `fresh="start"`': (
        "test_a_fresh_start_where_nothing_lies",
        "test_a_fresh_start_does_not_train_over_slices",
    ),
    "slices of an older version, without a state": ("test_slices_without_a_state_resume_with_a_warning",),
    "**Settings**: what optimizers were given": (
        "test_each_setting_that_differs_is_one_warning_with_both_values_and_who_wins",
    ),
    '- **`keep=["learning_rate"]`**': (
        "test_a_learning_rate_list_made_for_more_epochs_resumes_with_the_programs_value",
    ),
    "- **A read-only tree**": (
        "test_a_tree_that_may_only_be_read_with_its_newest_slice_damaged_resumes_one_step_back",
    ),
    "nothing is left to train": (
        "test_a_training_that_a_callback_has_ended_is_not_trained_on",
        "test_when_all_epochs_are_done_the_weights_are_loaded",
        "test_a_training_that_is_done_as_asked_is_no_warning_and_one_printed_line",
    ),
    "A warning names an abandoned run": (
        "test_the_run_that_was_started_last_is_resumed_and_the_abandoned_one_can_be_chosen",
        "test_an_abandoned_run_is_not_resumed",
    ),
    "| its experiment, and others |": ("test_five_experiments_in_one_folder_crash_and_resume_in_random_order",),
    "| other experiments alone |": (
        "test_a_new_member_of_a_sweep_begins_anew_or_is_refused",
        "test_several_experiments_and_none_given_is_refused_with_what_to_pass",
    ),
    "- **A chosen step**": (
        "test_training_goes_on_from_the_chosen_step_to_the_last_bit_and_sets_newer_slices_aside",
        "test_a_chosen_step_that_cannot_be_had_is_an_error_and_no_other_is_taken",
    ),
    "- **Another dataset or batch size**": (
        "test_a_changed_dataset_is_refused_with_both_numbers_and_nothing_is_changed",
        "test_a_change_that_is_allowed_goes_on_from_the_position_it_states",
    ),
    "- **A second job in the same directory**": (
        "test_a_second_job_is_refused_at_its_start_and_harms_nobody",
        "test_a_second_job_in_the_folder_ends_with_the_reason_and_harms_nobody",
    ),
    "Step numbers, callback calls": (
        "test_a_resumed_training_prints_the_steps_of_an_uninterrupted_one",
        "test_fit_goes_on_with_its_validation",
    ),
    "- **Accumulated gradients, loss scales that overflow**": ("test_slices_are_saved_where_the_weights_are_updated",),
    "**A retry in the same process.** The same model": (
        "test_a_retry_with_the_model_that_has_run",
        "test_a_retry_in_the_process_goes_on_with_the_same_saver",
        "test_a_retry_behind_an_error_out_of_the_network_goes_on_to_the_last_bit",
        "test_a_loop_is_resumed_in_the_process_of_an_error_out_of_its_network",
        "test_a_training_that_begins_anew_behind_an_error_out_of_the_network_runs_it_once_a_step",
        "test_weights_that_a_callback_wrote_before_the_dataset_failed_are_named_at_the_retry",
        "test_steps_that_were_trained_and_not_saved_are_named_at_the_retry",
        "test_what_a_forward_moved_beside_the_weights_is_named_at_the_retry",
        "test_generators_that_the_attempt_drew_from_are_named_at_the_retry",
        "test_samples_that_the_attempt_drew_are_named_at_the_retry",
        "test_a_retry_that_begins_as_the_attempt_did_goes_on_to_the_last_bit_without_a_word",
        "test_a_loop_that_begins_anew_with_trained_weights_is_named",
    ),
    "## The samples": (
        "test_behind_an_epoch_its_last_batch_is_drawn_and_compared",
        "test_other_contents_of_the_same_size_are_refused_or_trained_on_with_a_warning",
        "test_nothing_is_renamed_or_brought_back_where_the_samples_are_others",
        "test_the_position_counts_what_was_drawn_not_what_names_say",
        "test_samples_that_nothing_can_compare_are_named",
        "test_one_rank_with_other_samples_ends_both_with_the_reason_and_in_time",
        "test_samples_that_draw_from_numpy_are_replayed",
        "test_an_order_that_cannot_be_repeated_is_refused_or_named",
        "test_what_the_code_of_a_dataset_remembers_is_replayed_or_refused",
    ),
    "## The weights, and what a network keeps beside them": (
        "test_pretrained_weights_that_a_callback_loads_as_training_begins_are_refused_or_allowed",
        "test_backup_and_restore_of_mindspore_is_refused",
        "test_what_callbacks_write_as_an_epoch_or_a_step_begins_belongs_to_the_training",
        "test_buffers_go_on_to_the_last_bit",
        "test_a_rank_whose_state_is_lost_takes_equal_buffers_from_another_and_names_its_own",
        "test_an_evaluation_gets_the_buffers_of_a_slice",
        "test_a_loss_scaler_goes_on",
        "test_what_cells_count_goes_on_in_pynative_mode",
        "test_in_graph_mode_tensors_go_on_and_numbers_are_named_at_the_first_save",
        "test_a_frozen_layer_stays_frozen_in_pynative_mode",
        "test_in_graph_mode_a_layer_that_is_frozen_on_the_way_is_named_and_goes_on_training",
        "test_random_operators_under_jit_are_named_in_pynative_mode",
        "test_buffers_that_a_loop_compiles_are_named",
        "test_a_glance_misses_nothing_that_a_whole_walk_finds",
        "test_a_strike_between_the_renames_never_leaves_a_slice_without_its_state",
        "test_another_training_that_is_resumed_meanwhile_settles_nothing_of_the_first",
        "test_an_uncommitted_slice_is_never_resumed_without_its_state",
    ),
    "## Arguments, and the number of ranks": (
        "test_a_different_argument_is_named_with_its_values_and_ranks_at_once_on_all",
        "test_what_one_rank_refuses_by_itself_ends_all_at_once_with_the_reason",
        "test_ranks_that_do_different_things_are_named_with_them_at_once_on_all",
        "test_a_saver_on_one_rank_alone_says_that_the_other_does_not_call_it",
        "test_a_start_with_one_rank_in_the_folder_of_two_is_refused_before_anything_is_written",
        "test_a_training_does_not_begin_over_slices_of_another_number_of_ranks",
        "test_a_folder_of_another_training_is_refused_with_both_runs_on_all_ranks",
        "test_the_folder_of_another_training_is_refused_or_named",
    ),
    "seed of the dataset, shard, position, digest": (
        "test_a_lost_rank_with_a_seed_of_its_own_goes_on_in_its_own_order",
        "test_a_lost_rank_whose_samples_are_drawn_from_its_own_generator_goes_on_and_says_so",
    ),
    "generators that the training has drawn from, callbacks": ("test_the_ranks_own_state_is_used_where_it_lies_there",),
    "the same, where the ranks' states differ": (
        "test_states_that_differ_send_all_ranks_back_to_a_step_with_each_ranks_own",
        "test_states_alone_never_refuse_a_recovery",
    ),
    "the shard that it reads": ("test_a_rank_that_reads_another_shard_is_refused_on_both_with_both_numbers",),
    "Clocks do not matter": ("test_a_run_starts_behind_those_that_any_rank_knows_whatever_the_clock_says",),
    "A save has two exchanges of 52 bytes": ("test_each_exchange_of_a_save_is_one_of_52_bytes",),
}
"""A text that stands once in the page, and its tests."""


def rows(section):
    """Return the rows of the tables in a section, without their heads."""
    text = PAGE.split(f"{section}\n")[1].split("\n## ")[0]
    return [line for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE) for line in table.splitlines()[2:]]


def test_every_text_that_tests_show_stands_in_the_page_once():
    assert {text: PAGE.count(text) for text in SHOWN_BY if PAGE.count(text) != 1} == {}


def test_every_row_is_shown_by_a_test():
    listed = [row for section in SECTIONS for row in rows(section)]
    assert len(listed) > 20
    assert [row for row in listed if sum(text in row for text in SHOWN_BY) != 1] == []


def test_the_tests_exist():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    names = {name for shown in SHOWN_BY.values() for name in shown}
    assert sorted(name for name in names if f"def {name}(" not in tests) == []
