#!/bin/sh
# Gate a new run against an old one, and write the comment for a pull request.
# OLD and NEW are run directories; without them the shipped small models are recorded first.
set -eu
OUT=${OUT:-pull-request-out}
mkdir -p "$OUT"

if [ -z "${OLD:-}" ] || [ -z "${NEW:-}" ]; then
  driftscope demo -o "$OUT/demo" --prompts "${LIMIT:-24}"
  OLD=$OUT/demo/runs/eagle3
  NEW=$OUT/demo/runs/eagle3.1
fi

driftscope analyze "$OLD" "$NEW" --label before --label after --format markdown \
  -o "$OUT/comment.md"

# Exit code 3 fails the job: a rule is broken. 4: the runs are too short to decide.
driftscope check "$NEW" --baseline "$OLD" --require "no_worse(acceptance.mean_length, 5%)"
