#!/bin/sh
# Gate a new run against an old one, and write the comment for a pull request.
# OLD and NEW are run directories; without them the shipped small models are recorded first.
set -eu
OUT=${OUT:-pull-request-out}
mkdir -p "$OUT"

if [ -z "${OLD:-}" ] || [ -z "${NEW:-}" ]; then
  driftscope pays trio --drafter old=eagle3 --drafter new=eagle31 -k 8 --limit "${LIMIT:-24}" \
    --concurrency 1 --rounds 1 -o "$OUT/pays" || test $? -ge 3
  OLD=$OUT/pays/old/server
  NEW=$OUT/pays/new/server
fi

driftscope analyze "$OLD" "$NEW" --label before --label after --format markdown \
  -o "$OUT/comment.md"

# Exit code 3 fails the job: a rule is broken. 4: the runs are too short to decide.
driftscope check "$NEW" --baseline "$OLD" --require "no_worse(acceptance.mean_length, 5%)"
