package main

import (
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/plural"
	"github.com/dreamlab-ai/agentinit/schema"
	"github.com/dreamlab-ai/agentinit/schema/rules"
)

// report prints the outcome of a validation in one format.
type report func(c *cli, name string, checked rules.Result, failed bool) error

// reports are the formats of `config validate`.
var reports = map[string]report{"text": reportText, "json": reportJSON, "sarif": reportSARIF, "github": reportGitHub}

// printFindings writes one finding on each line: the code, one blank, the message.
func printFindings(w io.Writer, findings []schema.Finding) {
	var out strings.Builder
	for _, f := range findings {
		out.WriteString(f.Error() + "\n")
	}
	// If standard error is closed, only the exit status reports the error.
	_, _ = io.WriteString(w, out.String())
}

func reportText(c *cli, name string, checked rules.Result, failed bool) error {
	printFindings(c.stderr, checked.Findings)
	if failed {
		return nil
	}
	path := strings.Trim(fmt.Sprintf("%+q", name), `"`)
	line := path + ": the manifest is valid"
	if n := len(checked.Findings); n > 0 {
		line += ", " + plural.Of(n, "warning")
	}
	if p := checked.Plan; p != nil && len(p.Programs) == 0 && p.Profile == "none" {
		line += ", but it starts no program" // such as the empty file that a failed import leaves
	}
	_, err := fmt.Fprintln(c.stdout, line)
	return err
}

func reportJSON(c *cli, name string, checked rules.Result, failed bool) error {
	findings := checked.Findings
	if findings == nil {
		findings = []schema.Finding{}
	}
	return c.printJSON(struct {
		File     string           `json:"file"`
		Valid    bool             `json:"valid"`
		Findings []schema.Finding `json:"findings"`
	}{name, !failed, findings})
}

// reportGitHub writes GitHub's workflow commands, which GitHub shows at the changed lines.
func reportGitHub(c *cli, _ string, checked rules.Result, _ bool) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, f := range checked.Findings {
		place := ""
		if f.Line > 0 {
			place = fmt.Sprintf(",line=%d,col=%d", f.Line, f.Column)
		}
		if _, err := fmt.Fprintf(c.stdout, "::%s file=%s%s,title=%s::%s\n", f.Severity, property.Replace(f.File), place, f.Code, data.Replace(f.Error())); err != nil {
			return err
		}
	}
	return nil
}

// The parts of SARIF 2.1.0 that findings need.
type (
	sarifText struct {
		Text string `json:"text"`
	}
	sarifRule struct {
		ID               string    `json:"id"`
		ShortDescription sarifText `json:"shortDescription"`
		Help             sarifText `json:"help"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn,omitempty"`
	}
	sarifPhysical struct {
		ArtifactLocation struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region *sarifRegion `json:"region,omitempty"`
	}
	sarifLocation struct {
		PhysicalLocation sarifPhysical `json:"physicalLocation"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
)

func reportSARIF(c *cli, _ string, checked rules.Result, _ bool) error {
	findings := checked.Findings
	results := make([]sarifResult, len(findings))
	used := map[string]bool{}
	for i, f := range findings {
		used[f.Code] = true
		message := f.Message
		if f.Hint != "" {
			message += " (" + f.Hint + ")"
		}
		results[i] = sarifResult{RuleID: f.Code, Level: string(f.Severity), Message: sarifText{message}, Locations: []sarifLocation{location(f)}}
	}
	rows := []sarifRule{}
	for _, r := range rules.All() {
		if used[r.Code] {
			rows = append(rows, sarifRule{r.Code, sarifText{r.Doc}, sarifText{r.Doc + " " + r.Remedy}})
		}
	}
	driver := map[string]any{"name": "agentctl", "informationUri": "https://github.com/dreamlab-ai/agentinit", "rules": rows}
	return c.printJSON(map[string]any{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json",
		"version": "2.1.0",
		"runs":    []any{map[string]any{"tool": map[string]any{"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}},
	})
}

func location(f schema.Finding) sarifLocation {
	var l sarifLocation
	l.PhysicalLocation.ArtifactLocation.URI = (&url.URL{Path: f.File}).String()
	if f.Line > 0 {
		l.PhysicalLocation.Region = &sarifRegion{StartLine: f.Line, StartColumn: f.Column}
	}
	return l
}
