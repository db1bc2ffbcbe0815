package conformance

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Write writes the report as a table for people.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "device %s, %d compute units; a promise is kept within %g points\n\n", r.Device, r.Units, r.Tolerance)
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MODE\tPROMISE\tASKED\tGOT\tERROR\tVERDICT")
	var notes []string
	for _, row := range r.Rows {
		e := "-"
		if row.Error != nil {
			e = fmt.Sprintf("%+.2f", *row.Error)
		}
		verdict := string(row.Verdict)
		if row.Note != "" {
			n := number(&notes, row.Note)
			verdict += fmt.Sprintf(" (%d)", n)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", row.Mode, row.Promise, row.Asked, row.Got, e, verdict)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("lay out the report: %w", err)
	}
	if len(notes) > 0 {
		b.WriteByte('\n')
	}
	for i, n := range notes {
		fmt.Fprintf(&b, "(%d) %s\n", i+1, n)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// number is the number of a note, from 1; equal notes have one.
func number(notes *[]string, note string) int {
	for i, n := range *notes {
		if n == note {
			return i + 1
		}
	}
	*notes = append(*notes, note)
	return len(*notes)
}
