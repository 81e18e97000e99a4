#!/usr/bin/env bash
# Makes .venv from a lock file. `make` calls it and decides whether it is needed; see `make help`.
#   PYTHON       the interpreter to build on (explicit_python: set when the user named it)
#   ACCEL        cpu or cuda: which lock file
#   TORCH_INDEX  cpu only: a package index with torch's CPU build (docs/dependencies.md)
#   STAMP        file inside .venv that says the set-up is complete
set -euo pipefail
cd "$(dirname "$0")/.."

PYTORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu # as pytorch.org documents it
lock=requirements/$ACCEL.lock
incomplete=.venv/.incomplete
log=.venv/setup.log
started=$SECONDS

fail() {
    printf '\nset-up failed: %s\n' "$1" >&2
    exit 1
}

pip() {
    .venv/bin/python -m pip --disable-pip-version-check --no-input "$@"
}

minor_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true
}

# Runs pip with its output in the log and one counter on the screen; shows the end of the log when it fails.
pip_counting() {
    local total=$1
    shift
    pip "$@" 2>&1 | tee -a "$log" | show_counter "$total" || {
        tail -n 15 "$log" >&2
        return 1
    }
}

show_counter() {
    local total=$1 seen=0 line every=40 start='  ' end='\n'
    [ -t 1 ] && every=1 start='\r\033[2K  ' end=''
    while IFS= read -r line; do
        case $line in
        Collecting* | Processing* | 'Requirement already satisfied:'*)
            seen=$((seen + 1))
            if ((seen % every == 0 || seen == total)); then printf "$start%d/%d packages fetched$end" "$seen" "$total"; fi
            ;;
        'Installing collected packages'*) printf "${start}unpacking them (about a minute)$end" ;;
        esac
    done
    if [ -t 1 ]; then echo; fi
}

[ -f "$lock" ] || fail "ACCEL=$ACCEL: must be cpu or cuda"
command -v "$PYTHON" >/dev/null || fail "PYTHON=$PYTHON: no such program; install Python 3.11 or later, or name one: make setup PYTHON=/path/to/python3.11"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "PYTHON=$PYTHON is $("$PYTHON" --version 2>&1): needs Python 3.11 or later; name one: make setup PYTHON=python3.11"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "PYTHON=$PYTHON cannot make virtual environments; on Debian and Ubuntu: apt install python$(minor_version "$PYTHON")-venv"
base=$("$PYTHON" -c 'import sys; print(getattr(sys, "_base_executable", None) or sys.executable)') # not .venv itself, when that is active

# One set-up at a time: a second make waits, and finds it done.
exec 9<requirements
if ! flock -n 9; then
    echo "waiting for another set-up of this .venv"
    flock 9
    if [ -e "$STAMP" ]; then exit 0; fi
fi

if [ -d .venv ]; then
    reason=
    if [ -e "$incomplete" ]; then
        reason="the last set-up did not finish"
    elif [ -z "$(minor_version .venv/bin/python)" ]; then
        reason="its Python does not run"
    elif [ "$(cat .venv/.accel 2>/dev/null || echo cpu)" != "$ACCEL" ]; then
        reason="it was made for another ACCEL"
    elif [ -n "${explicit_python:-}" ] && [ "$(minor_version .venv/bin/python)" != "$(minor_version "$base")" ]; then
        reason="it was made with Python $(minor_version .venv/bin/python)"
    fi
    if [ -n "$reason" ]; then
        echo "making .venv again: $reason"
        rm -rf .venv
    fi
fi

if [ ! -d .venv ]; then
    echo "1/5 .venv on Python $(minor_version "$base")"
    mkdir .venv
    touch "$incomplete"
    "$base" -m venv .venv
fi
touch "$incomplete"
rm -f .venv/.setup-*
: >"$log"

torch=$(sed -n 's/^torch==//p' "$lock")
echo "2/5 torch $torch ($ACCEL)"
if [ "$ACCEL" = cpu ] && [ "$(uname -s)" = Linux ]; then
    # On Linux PyPI's torch is a CUDA build of several GB. Only the CPU build calls itself +cpu, so the other is never fetched by mistake.
    get_torch=(install --no-deps --no-compile --progress-bar off "torch==$torch+cpu")
    if [ -n "${TORCH_INDEX:-}" ]; then
        pip "${get_torch[@]}" --index-url "$TORCH_INDEX" >>"$log" 2>&1 || { tail -n 5 "$log" >&2; fail "TORCH_INDEX=$TORCH_INDEX gives no torch $torch+cpu"; }
    elif ! pip "${get_torch[@]}" >>"$log" 2>&1; then
        echo "  not among the packages pip is configured for; from $PYTORCH_CPU_INDEX"
        pip "${get_torch[@]}" --index-url "$PYTORCH_CPU_INDEX" >>"$log" 2>&1 ||
            { tail -n 5 "$log" >&2; fail "no CPU build of torch $torch; name an index that has it: make setup TORCH_INDEX=URL (docs/dependencies.md)"; }
    fi
fi

count=$(grep -c '==' "$lock")
echo "3/5 $count packages of $lock"
# --no-deps: the lock is complete, and a resolver would add torchvision and its like (requirements/excludes.txt).
# --no-compile: a fraction of the 25,000 modules is ever imported, and that is compiled below; compiling all costs over a minute.
pip_counting "$count" install --no-deps --no-compile --progress-bar off -r "$lock" || fail "pip could not install $lock (whole output: $log)"

echo "4/5 draftyard itself"
pip install --quiet --no-deps --no-build-isolation --editable . >>"$log" 2>&1 || { tail -n 15 "$log" >&2; fail "pip could not install draftyard"; }

echo "5/5 compiling what a build imports"
compile() {
    env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c "$1" >>"$log" 2>&1 || true # what fails to import here says so where it is needed
}
compile 'from vllm import LLM; import vllm.v1.worker.cpu_worker, vllm.model_executor.models.llama_eagle3' &
compile 'import dvc.cli, dvc.repo, dvc.api, accelerate, speculators.models.eagle3; from transformers import AutoTokenizer, LlamaForCausalLM' &
wait

echo "$ACCEL" >.venv/.accel
rm "$incomplete"
touch "$STAMP"
echo "set-up complete in $((SECONDS - started)) s"
