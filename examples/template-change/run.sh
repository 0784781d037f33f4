#!/bin/sh
# What each way to get the chat template wrong costs this drafter.
set -eu
OUT=${OUT:-template-change-out}
LIMIT=${LIMIT:-24}

driftscope bench trio --drafter EAGLE-3=eagle3 -k 8 --every 1 \
  --suite template --prompts trio --limit "$LIMIT" -o "$OUT/bench"
