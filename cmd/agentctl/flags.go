package main

import (
	"cmp"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/dreamlab-ai/agentinit/schema"
)

// seconds is a duration flag in the manifest's form: 10s, 1m30s, or a number of seconds.
type seconds time.Duration

// Set reads a flag.
func (s *seconds) Set(text string) error {
	if n, err := strconv.ParseFloat(text, 64); err == nil && n >= 0 && n <= schema.MaxDuration.Seconds() {
		*s = seconds(n * float64(time.Second))
		return nil
	}
	d, err := schema.ParseDuration(text)
	if err != nil {
		return errors.New(`write a duration such as 10s, 1m30s, or a number of seconds`)
	}
	*s = seconds(d)
	return nil
}

// String writes it so that Set can read it; 0 is empty, and help then shows no default.
func (s *seconds) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

// Type is the name of the value in help.
func (*seconds) Type() string { return "duration" }

// wholeSeconds is a duration flag whose value goes to agentinit as a number of whole seconds.
type wholeSeconds int

// Set reads a flag.
func (s *wholeSeconds) Set(text string) error {
	var d seconds
	if err := d.Set(text); err != nil || time.Duration(d)%time.Second != 0 {
		return errors.New("write whole seconds, as in 10s, 1m30s, or a number")
	}
	*s = wholeSeconds(time.Duration(d) / time.Second)
	return nil
}

// String writes it so that Set can read it; 0 is empty, and help then shows no default.
func (s *wholeSeconds) String() string {
	d := seconds(time.Duration(*s) * time.Second)
	return d.String()
}

// Type is the name of the value in help.
func (*wholeSeconds) Type() string { return "duration" }

// lineCount is a number of lines in the meaning of the control socket.
type lineCount struct {
	wanted int  // 0 means all that agentinit keeps, -1 none
	all    bool // including lines that only log files have
}

// Set reads a number of lines from 0, or "all".
func (n *lineCount) Set(text string) error {
	if text == "all" {
		*n = lineCount{all: true}
		return nil
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < 0 {
		return errors.New("write a number from 0, or all")
	}
	*n = lineCount{wanted: cmp.Or(v, -1)}
	return nil
}

// String writes it so that Set can read it. Without a number it is empty, and help then shows no
// default.
func (n *lineCount) String() string {
	switch {
	case n.all:
		return "all"
	case n.wanted == 0:
		return ""
	case n.wanted < 0:
		return "0"
	}
	return strconv.Itoa(n.wanted)
}

// Type is the name of the value in help.
func (*lineCount) Type() string { return "int" }

// pairs is a flag NAME=VALUE that may be repeated. The value is all that follows the first =: pflag's
// own type splits it at commas and removes quotes.
type pairs map[string]string

func (p *pairs) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return errors.New("write NAME=VALUE")
	}
	if *p == nil {
		*p = pairs{}
	}
	(*p)[name] = value
	return nil
}

func (*pairs) Type() string   { return "NAME=VALUE" }
func (*pairs) String() string { return "" }
