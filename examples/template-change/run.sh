#!/bin/sh
# What each way to get the chat template wrong costs this drafter.
set -eu
OUT=${OUT:-template-change-out}
LIMIT=${LIMIT:-24}

driftscope pays trio --drafter EAGLE-3=eagle3 -k 8 --every 1 \
  --suite template --prompts trio --limit "$LIMIT" --rounds 1 -o "$OUT/pays" ||
  [ $? -ge 3 ] # its answer about speed, which is not the question here
