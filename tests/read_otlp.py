"""Reads requests that a collector got with the types that OpenTelemetry publishes, and prints what is in them as JSON.

    python3 read_otlp.py FOLDER BEGIN

FOLDER has the bodies, as N.traces and N.metrics. All of it was within an hour from BEGIN on, in ns since 1970. What the protocol demands of each is asserted. The answer is an object:
"spans", "points" and "requests", the number of spans in each.
"""

import json
import pathlib
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from opentelemetry.proto.trace.v1.trace_pb2 import Span

BEGIN = int(sys.argv[2])
HOUR = 3_600_000_000_000


def known(message):
    """Nothing in it is unknown to the protocol's own types."""
    assert len(UnknownFieldSet(message)) == 0, message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for each in value if hasattr(value, "__len__") else [value]:
                known(each)


def read(path, of):
    message = of()
    message.ParseFromString(path.read_bytes())
    known(message)
    return message


def attributes(all):
    found = {}
    for pair in all:
        which = pair.value.WhichOneof("value")
        assert pair.key and pair.key not in found and which, pair
        found[pair.key] = getattr(pair.value, which)
    return found


def resource(holder):
    assert holder.schema_url.startswith("https://opentelemetry.io/schemas/"), holder.schema_url
    found = attributes(holder.resource.attributes)
    for name, of in {"service.name": str, "service.instance.id": str, "host.name": str, "process.pid": int}.items():
        assert isinstance(found[name], of) and found[name], found
    return found


def spans(path):
    for holder in read(path, ExportTraceServiceRequest).resource_spans:
        of = resource(holder)
        for scope in holder.scope_spans:
            assert scope.scope.name == "ncclscope" and scope.scope.version
            for span in scope.spans:
                assert len(span.trace_id) == 16 and any(span.trace_id), span
                assert len(span.span_id) == 8 and any(span.span_id), span
                assert span.name and span.kind == Span.SPAN_KIND_INTERNAL and not span.parent_span_id, span
                assert BEGIN <= span.start_time_unix_nano <= span.end_time_unix_nano < BEGIN + HOUR, span
                yield {
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "name": span.name,
                    "start": span.start_time_unix_nano,
                    "end": span.end_time_unix_nano,
                    "resource": of,
                    "attributes": attributes(span.attributes),
                }


def points(path):
    for holder in read(path, ExportMetricsServiceRequest).resource_metrics:
        of = resource(holder)
        for scope in holder.scope_metrics:
            names = [metric.name for metric in scope.metrics]
            assert scope.scope.name == "ncclscope" and len(names) == len(set(names)), names
            for metric in scope.metrics:
                assert metric.name and metric.unit and metric.description, metric
                kind = metric.WhichOneof("data")
                data = getattr(metric, kind)
                assert data.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE, metric
                assert kind == "histogram" or data.is_monotonic, metric
                series = [json.dumps(attributes(point.attributes), sort_keys=True) for point in data.data_points]
                assert series and len(series) == len(set(series)), series
                for point in data.data_points:
                    assert BEGIN <= point.start_time_unix_nano < point.time_unix_nano < BEGIN + HOUR, point
                    if kind == "histogram":
                        bounds = list(point.explicit_bounds)
                        assert bounds == sorted(set(bounds)) and len(point.bucket_counts) == len(bounds) + 1, point
                        assert sum(point.bucket_counts) == point.count, point
                        assert 0 < point.min <= point.sum / point.count <= point.max, point
                        value = {"count": point.count, "sum": point.sum}
                    else:
                        value = getattr(point, point.WhichOneof("value"))
                    yield {"name": metric.name, "unit": metric.unit, "value": value, "resource": of, "attributes": attributes(point.attributes)}


def main(folder):
    traces = sorted(pathlib.Path(folder).glob("*.traces"))
    by_request = [list(spans(path)) for path in traces]
    answer = {
        "spans": [span for request in by_request for span in request],
        "requests": [len(request) for request in by_request],
        "points": [point for path in sorted(pathlib.Path(folder).glob("*.metrics")) for point in points(path)],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
