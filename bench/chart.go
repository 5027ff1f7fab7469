package main

import (
	"fmt"
	"html"
	"math"
	"os"
	"strings"
)

// chart is a picture of some rows: a group of bars for each row, a bar for each peer.
type chart struct {
	title  string
	rows   string // only rows whose name contains this text
	column int
	unit   string
	log    bool // logarithmic, because the bars of supervisord would make all others invisible
}

var (
	startChart   = chart{title: "Start: from exec until every program runs", rows: "boot of", unit: "ms, logarithmic", log: true}
	captureChart = chart{title: "Capture of output to rotated files", rows: "capture of", unit: "MB/s"}
)

const (
	barHeight  = 16
	groupGap   = 26
	labelWidth = 150
	plotWidth  = 460
)

func (r Report) writeSVG(file string, c chart) error {
	if file == "" {
		return nil
	}
	var rows []Row
	top := 0.0
	for _, row := range r.Rows {
		if !strings.Contains(row.Name, c.rows) {
			continue
		}
		rows = append(rows, row)
		for _, result := range row.Results {
			if len(result.Values) > c.column {
				top = max(top, result.Values[c.column].Median)
			}
		}
	}
	if len(rows) == 0 || top == 0 {
		return fmt.Errorf("%s: no row of this run is named %q", file, c.rows)
	}
	return os.WriteFile(file, []byte(c.draw(rows, top)), 0o644)
}

func (c chart) draw(rows []Row, top float64) string {
	var bars strings.Builder
	y := 40
	for _, row := range rows {
		fmt.Fprintf(&bars, `<text x="8" y="%d" class="group">%s</text>`+"\n", y+12, html.EscapeString(row.Name))
		y += 20
		for _, result := range row.Results {
			if len(result.Values) <= c.column {
				continue
			}
			v := result.Values[c.column].Median
			class := "peer"
			if result.Peer == ours {
				class = "ours"
			}
			width := max(1, int(c.share(v, top)*plotWidth))
			fmt.Fprintf(&bars, `<text x="%d" y="%d" class="name">%s</text><rect x="%d" y="%d" width="%d" height="%d" class="%s"/><text x="%d" y="%d">%s</text>`+"\n",
				labelWidth-6, y+12, html.EscapeString(result.Peer), labelWidth, y+1, width, barHeight-3, class, labelWidth+width+5, y+12, short(v))
			y += barHeight
		}
		y += groupGap - barHeight
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">
<style>.group{font-weight:bold}.name{text-anchor:end}.ours{fill:#1a7f5a}.peer{fill:#9aa5b1}</style>
<rect width="100%%" height="100%%" fill="white"/>
<text x="8" y="20" font-size="15">%s (%s)</text>
%s</svg>
`, labelWidth+plotWidth+70, y, html.EscapeString(c.title), c.unit, bars.String())
}

// share is the part of the plot's width for a value, from 0 to 1.
func (c chart) share(v, top float64) float64 {
	if !c.log {
		return v / top
	}
	const decades = 5 // a bar of 1/100000 or less of the longest gets length 0
	return max(0, 1+math.Log10(v/top)/decades)
}
