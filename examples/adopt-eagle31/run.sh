#!/bin/sh
# EAGLE-3 against EAGLE-3.1 and no speculation, on the same logged requests.
set -eu
OUT=${OUT:-adopt-eagle31-out}
LIMIT=${LIMIT:-32}
mkdir -p "$OUT"

# Here the log is made of the small models' held-out prompts; take your own.
python3 - "$OUT/traffic.jsonl" <<'PYTHON'
import json, sys
from driftscope.workloads.suites.prompts import prompts_of
with open(sys.argv[1], "w") as log:
    for prompt in prompts_of("trio"):
        body = {"model": "tiny", "messages": list(prompt.messages), "temperature": 0}
        log.write(json.dumps({"custom_id": prompt.key, "body": body}) + "\n")
PYTHON

driftscope pays trio \
  --drafter EAGLE-3=eagle3 --drafter EAGLE-3.1=eagle31 -k 4 --every 1 \
  --suite concurrency --prompts "$OUT/traffic.jsonl" --limit "$LIMIT" \
  --concurrency 1,4 --rounds 1 -o "$OUT/pays" || [ $? -ge 3 ]

# The gate: a round of the new drafter must not yield fewer tokens than one of the old. Exits 3 then.
driftscope check "$OUT/pays/EAGLE-3.1/server" --baseline "$OUT/pays/EAGLE-3/server" \
  --fail-on "acceptance.mean_length < baseline.acceptance.mean_length"
