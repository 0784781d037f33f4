#!/bin/sh
# The same drafter with several K, and without speculation, at several loads.
set -eu
OUT=${OUT:-choose-k-out}
LIMIT=${LIMIT:-16}

driftscope pays trio --drafter EAGLE-3.1=eagle31 -k 2,4,8 \
  --suite concurrency --prompts trio --limit "$LIMIT" --concurrency 1,4 --rounds 1 \
  -o "$OUT/pays" || [ $? -ge 3 ]
