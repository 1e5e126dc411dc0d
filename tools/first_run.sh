#!/bin/bash
# first_run.sh MODEL PROMPT: from a fresh clone to a streamed answer, saying how long each part took.
set -euo pipefail
cd "$(dirname "$0")/.."
model=$1
prompt=$2
began=$(date +%s.%N)
last=$began

lap() {
    local now
    now=$(date +%s.%N)
    awk -v name="$1" -v from="$last" -v to="$now" 'BEGIN { printf "%-44s %7.1f s\n", name, to - from }' >&2
    last=$now
}

tools/install.sh
lap "virtual environment and install"
.venv/bin/edgeinfer pull "$model"
lap "model $model"
echo "> $prompt" >&2
if .venv/bin/edgeinfer inspect "$model" --json | grep -q '"tokenizer.chat_template"'; then
    .venv/bin/edgeinfer chat "$model" --max-tokens 96 --temperature 0 --timings <<< "$prompt"
else # a base model continues text
    .venv/bin/edgeinfer run "$model" --prompt "$prompt" --max-tokens 48 --temperature 0
    echo
fi
lap "load, first compile and answer"
last=$began
lap "together"
