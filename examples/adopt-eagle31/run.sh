#!/bin/sh
# EAGLE-3 against EAGLE-3.1 and no speculation, on the same logged requests.
set -eu
OUT=${OUT:-adopt-eagle31-out}
LIMIT=${LIMIT:-32}
mkdir -p "$OUT"

# Here the log is made of the small models' held-out prompts; take your own.
python3 - "$OUT/traffic.jsonl" <<'PYTHON'
import json, sys
from driftscope.workloads.sources import prompts_of
with open(sys.argv[1], "w") as log:
    for prompt in prompts_of("trio"):
        body = {"model": "tiny", "messages": list(prompt.messages), "temperature": 0}
        log.write(json.dumps({"custom_id": prompt.key, "body": body}) + "\n")
PYTHON

driftscope bench trio \
  --drafter EAGLE-3=eagle3 --drafter EAGLE-3.1=eagle31 --no-spec -k 4 --every 1 \
  --suite concurrency --prompts "$OUT/traffic.jsonl" --limit "$LIMIT" \
  --concurrency 1,4 --repeat 1 -o "$OUT/bench"

# The gate: a round of the new drafter must not yield fewer tokens than one of the old.
python3 - "$OUT/bench/report.json" <<'PYTHON'
import json, sys
runs = {run["label"]: run for run in json.load(open(sys.argv[1]))["runs"]}
old, new = (runs[name]["acceptance"]["mean_length"] for name in ("EAGLE-3", "EAGLE-3.1"))
print(f"tokens per round: EAGLE-3 {old:.2f}, EAGLE-3.1 {new:.2f}")
sys.exit(0 if new >= old else 3)
PYTHON
