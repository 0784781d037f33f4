"""Bounds of what driftscope takes from files, servers and requests that it does not trust.

Each is far above what a real engine, run or server has, and low enough that a value at the bound
costs neither much memory nor much time.
"""

from __future__ import annotations

MAX_K = 1024
"""Draft tokens of one round. vLLM's own drafters stay below 32."""
MAX_LAYERS = 1024
"""Layers of a drafter."""
MAX_SINKS = 4096
"""Slots of a sink set."""
MAX_TEXT_CHARS = 65_536
"""Characters of one string."""
MAX_LABEL_CHARS = 256
"""Characters of a workload label, and of other names that are kept with every row."""
MAX_TOKENS = 1 << 24
"""Tokens of one prompt, one answer or one context."""
MAX_COUNT = 1 << 62
"""What one counter, sum or gauge comes to; it fits a signed 64-bit integer."""
MAX_UNIX_S = float(1 << 33)
"""Latest Unix time, in the year 2242: its nanoseconds fit a signed 64-bit integer."""
MAX_METRICS_BYTES = 32 << 20
"""A page of metrics, and any other answer about a server as a whole, after decompression."""
MAX_METRIC_SAMPLES = 32_768
"""Samples of driftscope's on a page of metrics: some 26 for each depth. An engine at K = 8 has
fewer than 500."""
MAX_METRIC_LINE_CHARS = 8192
"""One line of a page of metrics."""
MAX_ANSWER_BYTES = 64 << 20
"""One answer to a prompt, as it is streamed: some 250 bytes a token."""
MAX_ANSWER_CHARS = 4 << 20
"""The text of one answer, its tool calls included."""
MAX_ANSWER_EVENTS = 1 << 21
"""Events of one stream: at most one a token, and an answer of a million tokens is rare."""
MAX_ROUNDS = 1 << 20
"""Rounds of speculation of one request."""
