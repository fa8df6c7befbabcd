#!/usr/bin/env bash
# Train the sample transformer from the start, 4 epochs unless --epochs says otherwise; each rank saves only its own
# slice.
#
#   [RANK_SIZE=8] [MP=4] [OUTPUT_DIR=.] run_parallel_save_ckpt.sh DATASET_PATH [arguments, such as --epochs 2]
#
# Makes OUTPUT_DIR/ckpt_dir{rank}/ with group_info.pb, strategy.ckpt, slices test-{epoch}_{step}.ckpt and their
# manifests, loss{rank}.jsonl and train.log{rank}.
# Other settings: sample_code/distribute_training_transformer/launch.sh.
sample=$(cd "$(dirname "${BASH_SOURCE[0]}")/../sample_code/distribute_training_transformer" && pwd)
if (($# < 1)); then
    echo "usage: run_parallel_save_ckpt.sh DATASET_PATH [arguments for parallel_save_ckpt_train.py]" >&2
    exit 2
fi
exec bash "$sample/launch.sh" parallel_save_ckpt_train.py "$@"
