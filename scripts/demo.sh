#!/usr/bin/env bash
# From a lost rank to a resumed run: train on 4 ranks, kill one and delete what it saved, recover, train on, and compare
# every loss with those of a run that was never interrupted. Then the same on 3 ranks that all hold the same, where one
# of the two survivors is damaged on purpose and must be caught. Exit code 0 when all losses are equal to the last bit.
#
#   demo.sh [--keep]      --keep leaves the working directory (or set DEMO_DIR to choose one, which is kept too)
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sample=$repository/sample_code/distribute_training_transformer
victim=1 limit=300

keep=
case "${1:-}" in
"") ;;
--keep) keep=yes ;;
*)
    echo "usage: demo.sh [--keep]" >&2
    exit 2
    ;;
esac

# shellcheck source=scripts/venv.sh
source "$repository/scripts/venv.sh"
ensure_venv
export PYTHON="$VENV/bin/python" TRAIN_TIMEOUT=$limit

if [[ -n ${DEMO_DIR:-} ]]; then
    mkdir -p "$DEMO_DIR"
    work=$(cd "$DEMO_DIR" && pwd) keep=yes
else
    work=$(mktemp -d "${TMPDIR:-/tmp}/ms_recover_demo.XXXXXX")
fi
launcher=
finish() {
    local code=$?
    trap - EXIT
    if [[ -n $launcher ]]; then
        kill -TERM "$launcher" 2>/dev/null || true
        wait "$launcher" 2>/dev/null || true
    fi
    if [[ -n $keep ]]; then
        echo "kept: $work"
    else
        rm -rf "$work"
    fi
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say() { printf '\n[%3ds] %s\n' "$SECONDS" "$*"; }

# Run a command that can be interrupted: bash handles signals at once while it waits, not while a command runs.
run() {
    "$@" &
    launcher=$!
    local code=0
    wait "$launcher" || code=$?
    launcher=
    return "$code"
}

# These replace the subshell that `run` makes, so that its process is theirs.
save() { OUTPUT_DIR=$1 exec bash "$repository/scripts/run_parallel_save_ckpt.sh" "$pairs" "${options[@]}"; }
recover() { OUTPUT_DIR=$1 exec bash "$repository/scripts/run_parallel_recover_ckpt.sh" "$pairs" "${options[@]}"; }

# Train in the directory $1; kill the victim when it has done $2 steps, and remove what it saved.
train_and_lose() {
    local directory=$1 kill_after=$2 losses process deadline code=0
    save "$directory" &
    launcher=$!
    losses=$directory/ckpt_dir$victim/loss$victim.jsonl
    deadline=$((SECONDS + limit))
    until [[ -f $losses ]] && (($(wc -l <"$losses") >= kill_after)); do
        if ((SECONDS > deadline)) || ! kill -0 "$launcher" 2>/dev/null; then
            echo "rank $victim never got as far as step $kill_after" >&2
            exit 1
        fi
        sleep 0.02
    done
    process=$(awk -v rank="$victim" '$1 == rank { print $2 }' "$directory/workers.pid")
    kill -KILL "$process"
    echo "killed rank $victim, process $process, after $(wc -l <"$losses") steps"
    wait "$launcher" || code=$?
    launcher=
    echo "the training ended with exit code $code"
    if ((code != 137)); then
        echo "expected 137, the code of a process killed by SIGKILL" >&2
        exit 1
    fi
    echo "removing ckpt_dir$victim with everything that rank $victim had saved"
    rm -rf "$directory/ckpt_dir$victim"
}

planned_step() {
    recover-ckpt plan "$1" --json |
        "$PYTHON" -c 'import json, sys; print("{epoch}_{step}".format_map(json.load(sys.stdin)["step"]))'
}

# Compare the run in $2, resumed after step $3, with the uninterrupted one in $1: every loss, and the slices of step $4.
compare() {
    local rank
    run "$PYTHON" "$sample/compare_losses.py" "$1" "$2" --after "$3" --ranks "$RANK_SIZE"
    for ((rank = 0; rank < RANK_SIZE; rank++)); do
        cmp "$1/ckpt_dir$rank/test-$4.ckpt" "$2/ckpt_dir$rank"/test_*-"$4.ckpt"
    done
    echo "the last slices of all ranks are equal to the byte too"
}

say "A data set: 10 batches of 32 sentence pairs"
pairs=$work/pairs.txt
"$PYTHON" "$sample/make_dataset.py" "$pairs" --lines 320
export RANK_SIZE=4 MP=2
options=(--epochs 6 --hidden_size 64 --ffn_size 256 --vocab_size 512)

say "1. Train without interruption on 4 ranks: model parallel 2 x data parallel 2, a slice per rank and epoch"
run save "$work/whole"

say "2. Train again, and kill rank $victim with SIGKILL when it has done 35 of 60 steps"
train_and_lose "$work/lost" 35

say "3. recover-ckpt plan: the lost slices, and the ranks with the same bytes"
recover-ckpt plan "$work/lost"
step=$(planned_step "$work/lost")

say "4. recover-ckpt apply: copy, and read back"
recover-ckpt apply "$work/lost"

say "5. Resume on all 4 ranks after step $step"
run recover "$work/lost"

say "6. Compare with the run that was never interrupted"
compare "$work/whole" "$work/lost" "$step" 6_10

say "Part two. Three ranks that all hold the same slice: model parallel 1 x data parallel 3"
pairs=$work/pairs3.txt
"$PYTHON" "$sample/make_dataset.py" "$pairs" --lines 300
export RANK_SIZE=3 MP=1
options=(--epochs 4 --batch_size 30 --hidden_size 32 --ffn_size 64 --heads 4 --vocab_size 256)

say "7. Train without interruption on 3 ranks"
run save "$work/whole3"

say "8. Train again, and kill rank $victim with SIGKILL when it has done 25 of 40 steps"
train_and_lose "$work/lost3" 25

say "9. Damage one of the two survivors: flip one bit in the newest slice of rank 0, without a change of size or time"
step=$(planned_step "$work/lost3")
damaged=$work/lost3/ckpt_dir0/test-$step.ckpt
cp -p "$damaged" "$work/before.ckpt"
"$PYTHON" - "$damaged" <<'EOF'
import os, sys
from ms_recover.formats.header import read_header

path = sys.argv[1]
header, status = read_header(path), os.stat(path)
size, place = max((parameter.nbytes, place) for place, parameter in enumerate(header.parameters))
os.chmod(path, 0o600)
with open(path, "r+b") as file:
    file.seek(header.contents[place][0].start + size // 2)
    byte = file.read(1)[0]
    file.seek(-1, os.SEEK_CUR)
    file.write(bytes([byte ^ 1]))
os.chmod(path, 0o400)
os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
print(f"flipped a bit in the middle of {header.parameters[place].name} in {path}")
EOF

say "10. MindSpore loads it without a word"
GLOG_v=3 "$PYTHON" -c 'import sys, mindspore
print(f"mindspore.load_checkpoint: {len(mindspore.load_checkpoint(sys.argv[1]))} parameters, no complaint")' "$damaged"

say "11. recover-ckpt verify: compare every slice with its manifest"
code=0
recover-ckpt verify "$work/lost3" || code=$?
echo "exit code $code"
if ((code != 5)); then
    echo "expected 5: the damaged slice was not caught" >&2
    exit 1
fi

say "12. recover-ckpt plan: both rank 0 and rank $victim get the slice of rank 2"
recover-ckpt plan "$work/lost3"
if [[ $(planned_step "$work/lost3") != "$step" ]]; then
    echo "expected the same step as before, $step" >&2
    exit 1
fi

say "13. recover-ckpt apply, and verify again"
recover-ckpt apply "$work/lost3"
recover-ckpt verify "$work/lost3" --step "$step"
cmp "$work/before.ckpt" "$damaged"
echo "rank 0's slice is what it was before it was damaged"

say "14. Resume on all 3 ranks after step $step"
run recover "$work/lost3"

say "15. Compare with the run that was never interrupted"
compare "$work/whole3" "$work/lost3" "$step" 4_10
say "done"
