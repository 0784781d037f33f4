#!/bin/sh
# Five questions about a recorded run, in DuckDB and in pandas.
set -eu
HERE=$(cd "$(dirname "$0")" && pwd)
python3 "$HERE/queries.py" "${1:-$HERE/run}"
