#!/bin/sh
# Serve with the probe on, replay an agent's workload, and join both sides.
set -eu
OUT=${OUT:-agent-out}
LIMIT=${LIMIT:-8}
PORT=${PORT:-8127}
TRIO=$(python3 -c 'from driftscope_lab.trio import trio_path; print(trio_path())')
mkdir -p "$OUT"

VLLM_CPU_KVCACHE_SPACE=1 HF_HUB_OFFLINE=1 driftscope serve "$TRIO/target" \
  --trace "$OUT/server" --every 1 --port "$PORT" --host 127.0.0.1 --served-model-name tiny \
  --dtype float32 --max-model-len 1024 --enforce-eager --per-request-spec-decode-metrics detailed \
  --speculative-config "{\"method\": \"eagle3\", \"model\": \"$TRIO/eagle31\", \"num_speculative_tokens\": 4}" \
  > "$OUT/server.log" 2>&1 &
SERVER=$!
trap 'kill -INT $SERVER 2>/dev/null || true' EXIT
for _ in $(seq 300); do
  if python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$PORT/health')" 2>/dev/null
  then break; fi
  kill -0 $SERVER
  sleep 1
done

# 1: a request was refused, as the README says; the run holds all of them.
driftscope replay "http://127.0.0.1:$PORT" --suite agent --limit "$LIMIT" -o "$OUT/client" ||
  [ $? -eq 1 ]
# Without --once it stays on the screen and follows the run.
driftscope watch "$OUT/server" --once
driftscope probe status "$OUT/server"
kill -INT $SERVER
wait $SERVER || true
driftscope analyze "$OUT/server" "$OUT/client" --label probe --label sender -o "$OUT/report.html"
