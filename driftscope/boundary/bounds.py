"""Bounds of what driftscope takes from files, servers and requests that it does not trust.

Each is far above what a real engine, run or server has, and low enough that a value at the bound
costs neither much memory nor much time.
"""

from __future__ import annotations

MAX_K = 1024
"""Draft tokens of one round. vLLM's own drafters stay below 32."""
MAX_LAYERS = 1024
"""Layers of a drafter, and captured layers of a target."""
MAX_HEADS = 65_536
"""Attention heads of all layers of a drafter."""
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
MAX_RANKS = 65_536
"""Processes of each kind of parallelism."""
MAX_ROWS_COUNTED = 1 << 53
"""A count that a status file holds: beyond it JSON readers lose the last digit."""
MAX_SECONDS = 1e9
"""A duration, about 30 years."""
MAX_ITEMS = 65_536
"""Elements of a list or an object in a JSON file."""
MAX_LIST = 1 << 22
"""Numbers of one list of a row: depths, layers and heads of a chain together."""
MAX_JSON_DEPTH = 64
"""Nesting of a JSON file."""
MAX_JSON_BYTES = 16 << 20
"""A manifest, a status file, a file of rules or settings."""
MAX_REPORT_BYTES = 256 << 20
"""A report that is read back."""
MAX_INPUT_BYTES = 1 << 30
"""A file of prompts, a suite, another tool's results."""
MAX_STREAM_BYTES = 8 << 30
"""An Arrow stream. The writer seals one when it has grown to 64 MiB."""
MAX_ROWS_PER_BYTE = 8
"""Rows of a sealed file for each of its bytes, above SMALL_FILE_ROWS: a request id or a time that
follows no line takes more than a bit."""
SMALL_FILE_ROWS = 1 << 20
MAX_EXPANSION = 2048
"""Bytes of a row group for each byte of its file, above SMALL_FILE_BYTES."""
SMALL_FILE_BYTES = 64 << 20
MAX_ROW_GROUP_BYTES = 16 << 30
"""Bytes of one row group of a sealed file, before compression."""
MAX_STATUSES = 4096
"""Status files of one run: a process of it has one."""
