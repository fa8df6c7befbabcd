#!/usr/bin/env bash
# From a lost rank to a resumed run: train on 4 ranks, kill one and delete what it saved, recover, train on, and compare
# every loss with those of a run that was never interrupted. Exit code 0 when all are equal to the last bit.
#
#   demo.sh [--keep]      --keep leaves the working directory (or set DEMO_DIR to choose one, which is kept too)
set -euo pipefail

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
sample=$repository/sample_code/distribute_training_transformer
victim=1 kill_after=35 limit=300
options=(--epochs 6 --hidden_size 64 --ffn_size 256 --vocab_size 512)

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
export PYTHON="$VENV/bin/python" RANK_SIZE=4 MP=2 TRAIN_TIMEOUT=$limit

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
save() { OUTPUT_DIR=$1 exec bash "$repository/scripts/run_parallel_save_ckpt.sh" "$work/pairs.txt" "${options[@]}"; }
recover() { OUTPUT_DIR=$1 exec bash "$repository/scripts/run_parallel_recover_ckpt.sh" "$work/pairs.txt" "${options[@]}"; }

say "A data set: 10 batches of 32 sentence pairs"
"$PYTHON" "$sample/make_dataset.py" "$work/pairs.txt" --lines 320

say "1. Train without interruption on 4 ranks: model parallel 2 x data parallel 2, a slice per rank and epoch"
run save "$work/whole"

say "2. Train again, and kill rank $victim with SIGKILL when it has done $kill_after of 60 steps"
save "$work/lost" &
launcher=$!
losses=$work/lost/ckpt_dir$victim/loss$victim.jsonl
deadline=$((SECONDS + limit))
until [[ -f $losses ]] && (($(wc -l <"$losses") >= kill_after)); do
    if ((SECONDS > deadline)) || ! kill -0 "$launcher" 2>/dev/null; then
        echo "rank $victim never got as far as step $kill_after" >&2
        exit 1
    fi
    sleep 0.02
done
process=$(awk -v rank="$victim" '$1 == rank { print $2 }' "$work/lost/workers.pid")
kill -KILL "$process"
echo "killed rank $victim, process $process, after $(wc -l <"$losses") steps"
code=0
wait "$launcher" || code=$?
launcher=
echo "the training ended with exit code $code"
if ((code != 137)); then
    echo "expected 137, the code of a process killed by SIGKILL" >&2
    exit 1
fi
echo "removing ckpt_dir$victim with everything that rank $victim had saved"
rm -rf "$work/lost/ckpt_dir$victim"

say "3. recover-ckpt plan: what is lost, and who holds the same bytes?"
recover-ckpt plan "$work/lost"
step=$(recover-ckpt plan "$work/lost" --json |
    "$PYTHON" -c 'import json, sys; print("{epoch}_{step}".format_map(json.load(sys.stdin)["step"]))')

say "4. recover-ckpt apply: copy, and read back"
recover-ckpt apply "$work/lost"

say "5. Resume on all 4 ranks behind step $step"
run recover "$work/lost"

say "6. Compare with the run that was never interrupted"
run "$PYTHON" "$sample/compare_losses.py" "$work/whole" "$work/lost" --after "$step" --ranks 4
for ((rank = 0; rank < 4; rank++)); do
    cmp "$work/whole/ckpt_dir$rank"/test-6_10.ckpt "$work/lost/ckpt_dir$rank"/test_*-6_10.ckpt
done
echo "the last slices of all ranks are equal to the byte too"
say "done"
