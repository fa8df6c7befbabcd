#!/usr/bin/env bash
# Resume the training of run_parallel_save_ckpt.sh from the newest step that every rank has, or can get from a rank
# that holds the same slice. Trains 2 epochs more unless --epochs says how many there are in total. Give it the same
# arguments; --ckpt_file names a slice to resume from.
#
#   [RANK_SIZE=8] [MP=4] [OUTPUT_DIR=.] run_parallel_recover_ckpt.sh DATASET_PATH [arguments, such as --epochs 2]
#
# Other settings: sample_code/distribute_training_transformer/launch.sh.
sample=$(cd "$(dirname "${BASH_SOURCE[0]}")/../sample_code/distribute_training_transformer" && pwd)
if (($# < 1)); then
    echo "usage: run_parallel_recover_ckpt.sh DATASET_PATH [arguments for parallel_recover_train.py]" >&2
    exit 2
fi
exec bash "$sample/launch.sh" parallel_recover_train.py "$@"
