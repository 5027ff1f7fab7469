package logs

import "testing"

// TestReadable: agentinit's own lines are readable text. No value is in Go syntax.
func TestReadable(t *testing.T) {
	for line, want := range map[string]string{
		`{"level":"info","time":"x","message":"applied","n":1234567,"ok":true,"who":"web 1"}`: "info  applied n=1234567 ok=true who=web 1",
		`{"level":"warn","message":"m","changes":{"add":1},"programs":["a","b"],"none":null}`: `warn  m changes={"add":1} none=null programs=["a","b"]`,
		`{"level":"info"}`: `{"level":"info"}`,
		`no JSON`:          `no JSON`,
	} {
		if got := string(readable([]byte(line))); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
