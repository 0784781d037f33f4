#!/bin/sh
# Inspects a healthy drafter, and a copy with one wrong flag. OUT: folder for the copy.
set -eu
out="${OUT:-inspect-example}"
trio=$(python3 -c 'from driftscope_lab.trio import trio_path; print(trio_path())')

driftscope inspect "$trio/eagle31" --target "$trio/target" --files-only --strict

mkdir -p "$out"
cp -r "$trio/eagle31" "$out/broken"
sed -i 's/"norm_output": true/"norm_output": false/' "$out/broken/config.json"
driftscope inspect "$out/broken" --target "$trio/target" --prompts trio \
  --write-config "$out/repaired-config.json" || test $? -eq 3
echo "written: $out/repaired-config.json"
