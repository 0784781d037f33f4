"""An OpenTelemetry collector, built from its protobuf service definitions, over HTTP and gRPC.

It decodes every batch, and can be told to hang, to answer 500, to stop and to restart.
"""

from __future__ import annotations

import contextlib
import gzip
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc

Labels = tuple[tuple[str, str], ...]
OK, HANG, ERROR = "ok", "hang", "error"


class Collector:
    """Everything that arrived, by either protocol."""

    def __init__(self) -> None:
        self.metrics: list[Any] = []
        self.spans: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.behaviour = OK
        self.asked = 0
        self.released = threading.Event()
        self.url = ""

    def take_metrics(self, request: Any, _: Any = None) -> Any:
        self.metrics.append(request)
        return metrics_pb.ExportMetricsServiceResponse()

    def take_spans(self, request: Any, _: Any = None) -> Any:
        self.spans.append(request)
        return trace_pb.ExportTraceServiceResponse()

    def points(self, batch: int = -1) -> dict[tuple[str, Labels], Any]:
        """Return the data points of one batch by metric and attributes."""
        out = {}
        for metric in self.scoped(batch):
            for point in getattr(metric, metric.WhichOneof("data")).data_points:
                labels = tuple(sorted((a.key, _value(a.value)) for a in point.attributes))
                key = metric.name, labels
                assert key not in out, f"twice in one batch: {key}"
                out[key] = point
        return out

    def scoped(self, batch: int = -1) -> list[Any]:
        """Return the metrics of one batch."""
        (resource,) = self.metrics[batch].resource_metrics
        (scope,) = resource.scope_metrics
        return list(scope.metrics)

    def resource(self, batch: int = -1) -> dict[str, str]:
        (found,) = self.metrics[batch].resource_metrics
        return {a.key: _value(a.value) for a in found.resource.attributes}

    def value(self, name: str, *, batch: int = -1, **having: object) -> float:
        """Return a counter or gauge of one batch, or the count of a histogram, summed over series
        whose attributes' last parts are `having`."""
        total = 0.0
        for (found, labels), point in self.points(batch).items():
            short = {key.rpartition(".")[2]: value for key, value in labels}
            if found == name and all(short.get(k) == str(v) for k, v in having.items()):
                total += _number(point)
        return total

    def all_spans(self) -> list[Any]:
        return [
            span
            for request in self.spans
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def _value(value: Any) -> str:
    return str(getattr(value, value.WhichOneof("value")))


def _number(point: Any) -> float:
    if hasattr(point, "bucket_counts"):
        assert sum(point.bucket_counts) == point.count
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        return float(point.count)
    return float(getattr(point, point.WhichOneof("value")))


class _Handler(BaseHTTPRequestHandler):
    collector: Collector

    def do_POST(self) -> None:
        collector = self.collector
        collector.asked += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if collector.behaviour == HANG:
            collector.released.wait(60)
            return None
        if collector.behaviour == ERROR:
            return self._answer(500, b"")
        collector.headers.append({k.lower(): v for k, v in self.headers.items()})
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.headers["Content-Type"] == "application/x-protobuf"
        if self.path == "/v1/metrics":
            answer = collector.take_metrics(metrics_pb.ExportMetricsServiceRequest.FromString(body))
        else:
            assert self.path == "/v1/traces", self.path
            answer = collector.take_spans(trace_pb.ExportTraceServiceRequest.FromString(body))
        return self._answer(200, answer.SerializeToString())

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Do nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that gave up."""


@contextlib.contextmanager
def http(collector: Collector | None = None, port: int = 0) -> Iterator[Collector]:
    """Yield `collector`, or a new one, listening on loopback."""
    collector = collector or Collector()
    handler = type("Handler", (_Handler,), {"collector": collector})
    server = _Server(("127.0.0.1", port), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        collector.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def over_grpc() -> Iterator[Collector]:
    """Yield a new collector listening for gRPC."""
    collector = Collector()

    server = grpc.server(ThreadPoolExecutor(2))
    metrics, traces = (
        SimpleNamespace(Export=take) for take in (collector.take_metrics, collector.take_spans)
    )
    metrics_grpc.add_MetricsServiceServicer_to_server(metrics, server)
    trace_grpc.add_TraceServiceServicer_to_server(traces, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    collector.url = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        server.stop(None).wait()
