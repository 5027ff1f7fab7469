package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// grpcPort is the port that OTLP over gRPC has by convention; every other one
// is taken for OTLP over HTTP (protobuf), as the SDK's environment variables do.
const grpcPort = "4317"

// exportTimeout bounds one export; spans queue meanwhile and are dropped when
// the queue is full, so that a collector that is away costs nothing but that.
const exportTimeout = 5 * time.Second

// newTracing makes the tracer provider of [observability].otlp_endpoint; nil
// without one: no exporter, no cost. Nothing is dialled here.
func newTracing(ctx context.Context, endpoint, bootID string) (*trace.TracerProvider, error) {
	if endpoint == "" {
		return nil, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return nil, fmt.Errorf("observability.otlp_endpoint %q is no address such as http://collector:4318", withoutCredentials(endpoint))
	}
	var exporter *otlptrace.Exporter
	if u.Port() == grpcPort {
		exporter, err = otlptracegrpc.New(ctx, otlptracegrpc.WithEndpointURL(endpoint), otlptracegrpc.WithTimeout(exportTimeout))
	} else {
		if u.Path == "" || u.Path == "/" {
			u.Path = "/v1/traces"
		}
		exporter, err = otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithTimeout(exportTimeout))
	}
	if err != nil {
		return nil, err
	}
	return trace.NewTracerProvider(
		trace.WithBatcher(exporter, trace.WithExportTimeout(exportTimeout)),
		trace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "agentinit"),
			attribute.String("service.version", version),
			attribute.String("service.instance.id", bootID),
		)),
	), nil
}
