// Package doctor says what of lgpu works on a machine, what does not, and what to do about it. Finding out (Look) is
// apart from judging (Examine), so that every judgement is tested on machines that nobody has to own.
//
//	m := doctor.Look(ctx, doctor.Options{Version: version, Self: self, Daemon: ask})
//	report := doctor.Examine(m)
//	report.Print(os.Stdout, doctor.Style{Width: 80})
//	if !report.OK() {
//		os.Exit(1)
//	}
package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"charm.land/lipgloss/v2"
)

// Status is the outcome of one check.
type Status int

// Outcomes, from good to bad.
const (
	OK   Status = iota // works
	Warn               // something is missing that only a part of lgpu needs; the result says which
	Fail               // lgpu run does not work, or not as promised, until this is mended
)

// String returns "ok", "warn" or "fail", as table and JSON have it.
func (s Status) String() string {
	return [...]string{"ok", "warn", "fail"}[s]
}

// MarshalText writes what String returns.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Result is the outcome of one check.
type Result struct {
	// Check names what was looked at, such as "device.mode". Names stay the same from version to version.
	Check  string `json:"check"`
	Status Status `json:"status"`
	// Detail is what was found, in one sentence.
	Detail string `json:"detail"`
	// Remedy is what to do, empty for OK: commands or a setting, most likely first.
	Remedy string `json:"remedy,omitempty"`
}

// Report is what Examine found, in the order of the checks.
type Report struct {
	Results []Result
}

// OK reports whether no check failed; warnings do not count.
func (r Report) OK() bool { return r.count(Fail) == 0 }

func (r Report) count(s Status) int {
	n := 0
	for _, result := range r.Results {
		if result.Status == s {
			n++
		}
	}
	return n
}

// JSON writes the report as one object: {"ok": …, "checks": [{"check", "status", "detail", "remedy"}]}.
func (r Report) JSON(w io.Writer) error {
	results := r.Results
	if results == nil {
		results = []Result{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(struct {
		OK     bool     `json:"ok"`
		Checks []Result `json:"checks"`
	}{r.OK(), results}); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// Style is how Print writes.
type Style struct {
	Width int  // columns; 80 if it is less than 40
	Color bool // for a terminal that wants it
}

// Print writes the report as a table for people, with each remedy below its check and a summary below all.
func (r Report) Print(w io.Writer, s Style) error {
	width := s.Width
	if width < 40 {
		width = 80
	}
	name := 0
	for _, result := range r.Results {
		name = max(name, len(result.Check))
	}
	indent := len("fail  ") + name + 2
	var b strings.Builder
	for _, result := range r.Results {
		status := fmt.Sprintf("%-6s", result.Status)
		if s.Color {
			status = colors[result.Status].Render(status)
		}
		fmt.Fprintf(&b, "%s%-*s", status, name+2, result.Check)
		hang(&b, result.Detail, indent, width)
		if result.Remedy != "" {
			b.WriteString(strings.Repeat(" ", indent-2) + "→ ")
			hang(&b, result.Remedy, indent, width)
		}
	}
	fmt.Fprintf(&b, "\n%d ok, %d to know, %d to mend\n", r.count(OK), r.count(Warn), r.count(Fail))
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

var colors = map[Status]lipgloss.Style{
	OK:   lipgloss.NewStyle().Foreground(lipgloss.Green),
	Warn: lipgloss.NewStyle().Foreground(lipgloss.Yellow),
	Fail: lipgloss.NewStyle().Foreground(lipgloss.Red).Bold(true),
}

// hang writes text in lines that fit, later ones indented. Words are not parted, so that commands can be copied.
func hang(b *strings.Builder, text string, indent, width int) {
	column := indent
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	b.WriteByte('\n')
}
