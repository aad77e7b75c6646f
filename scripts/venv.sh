#!/usr/bin/env bash
# Makes or refreshes a virtual environment for this checkout:  scripts/venv.sh VENV PYTHON demo|dev
# `demo` is what `make demo` needs; `dev` adds the tools of `make test` and `make check`.
#
# Where no CPU build of torch is on offer for this Python (plain PyPI on Linux: each one brings gigabytes of CUDA libraries), `dev` goes
# without torch, and the tests that need it are left out by name; AGL_TORCH=1 installs it all the same.
set -euo pipefail
venv=$1 python=$2 kind=$3
say() { echo "venv: $*" >&2; }

if ! "$python" -c '' 2>/dev/null && command -v pyenv >/dev/null; then
    # pyenv lists every installed python on PATH, but runs only the selected ones.
    version=$(pyenv whence "$python" 2>/dev/null | tail -n 1)
    [ -n "$version" ] && python=$(PYENV_VERSION=$version pyenv which "$python")
fi
"$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || {
    say "PYTHON=$python is not a Python 3.11, 3.12 or 3.13 (say which: make ... PYTHON=python3.12)"
    exit 1
}

pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
# pip warns of every package that a local index lacks; its errors are wanted, that is not.
install() { pip install --quiet --progress-bar off -c constraints.txt "$@" 2> >(grep -v "is ignored: it is neither a file nor a directory" >&2); }

torch_fits() {
    [ "${AGL_TORCH:-}" = 1 ] || [ "$(uname -sm)" != "Linux x86_64" ] || command -v nvidia-smi >/dev/null ||
        pip install --quiet --dry-run --no-deps "$(grep '^torch==' constraints.txt)+cpu" >/dev/null 2>&1
}

began=$SECONDS
[ -x "$venv/bin/python" ] || { say "making $venv with $("$python" -V)"; "$python" -m venv "$venv"; }
if [ "$kind" = demo ] || torch_fits; then
    torch_fits || say "no CPU build of torch is on offer here: the next step downloads CUDA libraries (gigabytes)"
    say "installing torch, transformers and the rest of agentlightning[demo] (a minute or two)"
    install -e ".[demo]"
else
    say "no CPU build of torch for $("$venv/bin/python" -V) is on offer here: going without it (AGL_TORCH=1 installs it)"
fi
if [ "$kind" = dev ]; then
    say "installing the developer's tools (under a minute)"
    install -e ".[dev]"
fi
say "ready after $((SECONDS - began)) s"
