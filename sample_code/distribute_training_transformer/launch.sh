#!/usr/bin/env bash
# Start one process per rank of a training script, wait for all, and stop all when one fails.
#
#   launch.sh SCRIPT DATASET_PATH [arguments for the script]
#
# Environment:
#   RANK_SIZE        number of ranks (8)
#   MP               ranks over which each layer is split (4)
#   OUTPUT_DIR       where ckpt_dir{rank}/ are made (the current directory)
#   TRAIN_TIMEOUT    seconds until the run is given up (86400)
#   PYTHON           interpreter (the repository's .venv, else python on PATH)
#   RANK_TABLE_FILE  on Ascend: start by this rank table instead of MindSpore's own scheduler
#   MS_RECOVER_RUN_ID  names this launch in the manifests of its slices (time and a random number); when ranks are
#                    launched on several hosts, give all the same new one
#
# Each rank runs in OUTPUT_DIR/ckpt_dir{rank} and appends to train.log{rank} there. OUTPUT_DIR/workers.pid lists rank
# and process id while the run lasts. Exit code: 0, or that of the rank that failed first, 124 after the time limit.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(cd "$here/../.." && pwd)

if (($# < 2)); then
    echo "usage: launch.sh SCRIPT DATASET_PATH [arguments for the script]" >&2
    exit 2
fi
script=$here/$1 dataset=$2
shift 2
if [[ ! -f $dataset ]]; then
    echo "$dataset is not a file; make one: python $here/make_dataset.py $dataset" >&2
    exit 2
fi
dataset=$(realpath "$dataset")
ranks=${RANK_SIZE:-8} mp=${MP:-4} limit=${TRAIN_TIMEOUT:-86400}
if [[ ! $ranks =~ ^[1-9][0-9]*$ || ! $mp =~ ^[1-9][0-9]*$ || ! $limit =~ ^[1-9][0-9]*$ ]]; then
    echo "RANK_SIZE=$ranks, MP=$mp and TRAIN_TIMEOUT=$limit must be positive numbers" >&2
    exit 2
fi
mkdir -p "${OUTPUT_DIR:=.}" && output=$(cd "$OUTPUT_DIR" && pwd) || exit 1

python=${PYTHON:-}
if [[ -z $python && -x $repository/.venv/bin/python ]]; then
    python=$repository/.venv/bin/python
fi
if [[ -n $python ]]; then
    python=$(command -v "$python") || {
        echo "PYTHON=$PYTHON is no program; set it to an interpreter with mindspore, or leave it out" >&2
        exit 2
    }
else
    python=$(command -v python || command -v python3) || {
        echo "no python found; activate an environment with mindspore or set PYTHON" >&2
        exit 2
    }
fi
if [[ -n ${MS_RECOVER_RUN_ID:-} ]] &&
    ! "$python" -c 'import os; assert os.environb[b"MS_RECOVER_RUN_ID"].decode().isprintable()' 2>/dev/null; then
    echo "MS_RECOVER_RUN_ID is not text of one line in UTF-8; set it to a name for this launch, or leave it out" >&2
    exit 2
fi

export PYTHONPATH=$repository${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export MS_RECOVER_RUN_ID=${MS_RECOVER_RUN_ID:-$(date -u +%Y%m%dT%H%M%SZ)-$(od -An -N6 -tx1 /dev/urandom | tr -d ' \n')}
export LAUNCHED_FROM=$PWD # ranks run elsewhere; paths in their arguments may be relative to this
export RANK_SIZE=$ranks GLOG_v=${GLOG_v:-3} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
role=() scheduler=
declare -A running=()

stop_all() {
    local process=("${running[@]}" ${scheduler:+"$scheduler"})
    running=() scheduler=
    ((${#process[@]})) || return 0
    kill -TERM "${process[@]}" 2>/dev/null
    for ((i = 0; i < 50; i++)); do
        kill -0 "${process[@]}" 2>/dev/null || break
        sleep 0.2
    done
    kill -KILL "${process[@]}" 2>/dev/null
    wait "${process[@]}" 2>/dev/null
}
trap 'stop_all; rm -f "$output/workers.pid"' EXIT
exec 3>&2 # for messages; while waiting, the shell's own report of killed processes is thrown away
trap 'echo "interrupted: stopping all ranks" >&3; exit 130' INT
trap 'echo "terminated: stopping all ranks" >&3; exit 143' TERM HUP

if ((ranks > 1)) && [[ -z ${RANK_TABLE_FILE:-} ]]; then
    free_port='import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
    export MS_WORKER_NUM=$ranks MS_SCHED_HOST=${MS_SCHED_HOST:-127.0.0.1} MS_TOPO_TIMEOUT=${MS_TOPO_TIMEOUT:-600}
    export MS_SCHED_PORT=${MS_SCHED_PORT:-$("$python" -c "$free_port")}
    (cd "$output" && MS_ROLE=MS_SCHED exec "$python" "$script" --file_path "$dataset" --mp "$mp" "$@") \
        >"$output/scheduler.log" 2>&1 &
    scheduler=$!
    role=(MS_ROLE=MS_WORKER)
fi

: >"$output/workers.pid"
for ((rank = 0; rank < ranks; rank++)); do
    directory=$output/ckpt_dir$rank
    mkdir -p "$directory"
    (cd "$directory" && exec env "${role[@]}" MS_NODE_ID=$rank RANK_ID=$rank DEVICE_ID=$rank \
        "$python" "$script" --file_path "$dataset" --output_dir "$output" --mp "$mp" "$@") \
        >>"$directory/train.log$rank" 2>&1 &
    running[$rank]=$!
    echo "$rank $!" >>"$output/workers.pid"
done
echo "$(basename "$script"): $ranks ranks started, logs in $output/ckpt_dir{rank}/train.log{rank}"

deadline=$((SECONDS + limit))
exec 2>/dev/null
while ((${#running[@]})); do
    sleep 0.2
    for rank in "${!running[@]}"; do
        kill -0 "${running[$rank]}" 2>/dev/null && continue
        wait "${running[$rank]}"
        code=$?
        unset "running[$rank]"
        if ((code)); then
            echo "rank $rank failed with exit code $code; stopping the others. The end of its log:" >&3
            tail -n 20 "$output/ckpt_dir$rank/train.log$rank" >&3
            exit "$code"
        fi
    done
    if ((SECONDS >= deadline)); then
        echo "not done after $limit seconds (TRAIN_TIMEOUT); stopping all ranks" >&3
        exit 124
    fi
done
echo "$(basename "$script"): all $ranks ranks are done; rank 0 ended with: $(
    grep -v '^\[' "$output/ckpt_dir0/train.log0" | tail -n 1
)"
