#!/usr/bin/env bash
# Installs what tests use beside Python packages, where this user may: `make test` calls it. Never fails: tests skip what is missing.
set -uo pipefail

install() { # install PACKAGE PROGRAM...: unless one of the programs is there
    local package=$1
    shift
    for program in "$@"; do
        if command -v "$program" >/dev/null || [ -x "/usr/sbin/$program" ]; then return; fi
    done
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "no $package here: the tests that need it are skipped"
        return
    fi
    echo "installing $package for the tests"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
        { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$package" >/dev/null; } ||
        echo "$package could not be installed: the tests that need it are skipped"
}

install chromium chromium chromium-browser google-chrome
install openssh-server sshd
