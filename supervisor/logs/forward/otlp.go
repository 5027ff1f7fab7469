package forward

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dreamlab-ai/agentinit/internal/otlp"
	"github.com/dreamlab-ai/agentinit/supervisor/logs"
)

// otlpSeverity is the severity number of a level in the log data model of OpenTelemetry.
func otlpSeverity(level string) uint64 {
	switch level {
	case "error":
		return 17
	case "warn":
		return 13
	case "debug":
		return 5
	}
	return 9 // info
}

// message is a protobuf message that is being written. The methods append one field each and take
// its number, as opentelemetry/proto/logs/v1/logs.proto declares it.
type message []byte

func (m message) bytes(n protowire.Number, v []byte) message {
	return protowire.AppendBytes(protowire.AppendTag(m, n, protowire.BytesType), v)
}

func (m message) text(n protowire.Number, v string) message {
	return protowire.AppendString(protowire.AppendTag(m, n, protowire.BytesType), v)
}

func (m message) number(n protowire.Number, v uint64) message {
	return protowire.AppendVarint(protowire.AppendTag(m, n, protowire.VarintType), v)
}

func (m message) nanoseconds(n protowire.Number, v int64) message {
	return protowire.AppendFixed64(protowire.AppendTag(m, n, protowire.Fixed64Type), uint64(v))
}

// attribute appends a KeyValue{key = 1, value = 2}. The value is an AnyValue.
func (m message) attribute(n protowire.Number, key string, value message) message {
	return m.bytes(n, message{}.text(1, key).bytes(2, value))
}

// The kinds of AnyValue.
func anyText(v string) message { return message{}.text(1, v) }
func anyNumber(v int) message  { return message{}.number(3, uint64(v)) }

// otlpLogs is an ExportLogsServiceRequest of OTLP 1.0 in binary protobuf: one ResourceLogs for each
// program.
func otlpLogs(host string, batch []logs.Line) ([]byte, error) {
	type program struct {
		name    string
		records message // the log_records of its only ScopeLogs
	}
	var order []*program
	byName := map[string]*program{}
	for _, l := range batch {
		p := byName[l.Program]
		if p == nil {
			p = &program{name: l.Program, records: message{}.bytes(1, message{}.text(1, "agentinit"))} // scope.name
			byName[l.Program] = p
			order = append(order, p)
		}
		at := l.Time.UnixNano()
		p.records = p.records.bytes(2, message{}.
			nanoseconds(1, at).                  // time_unix_nano
			number(2, otlpSeverity(levelOf(l))). // severity_number
			bytes(5, anyText(valid(l.Text))).    // body
			attribute(6, "log.iostream", anyText(l.Stream.String())).
			attribute(6, "process.pid", anyNumber(l.PID)).
			nanoseconds(11, at)) // observed_time_unix_nano
	}
	var request message
	for _, p := range order {
		resource := message{}.attribute(1, "service.name", anyText(valid(p.name))).attribute(1, "host.name", anyText(valid(host)))
		request = request.bytes(1, message{}.bytes(1, resource).bytes(2, p.records)) // resource_logs{resource, scope_logs}
	}
	return request, nil
}

// otlpAccepted reads how many records a collector has rejected. A collector may answer 200 and
// reject all records.
func otlpAccepted(body []byte) error {
	rejected, why := otlp.Rejected(body)
	if rejected == 0 {
		return nil
	}
	return &partError{fmt.Errorf("rejected records: %d: %s", rejected, strconv.QuoteToASCII(fmt.Sprintf("%.512s", why))), int(rejected)}
}
