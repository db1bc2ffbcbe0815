package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the manual pages",
		Long: `Write a manual page for each command to FOLDER, which is created if needed.

Exit status: 0; 1 if they cannot be written.`,
		Example:               "  lgpu man /usr/local/share/man/man1",
		DisableFlagsInUseLine: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("lgpu man /usr/local/share/man/man1", "man: name one folder")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			err := os.MkdirAll(args[0], 0o755)
			if err == nil {
				err = writeManual(c.Root(), args[0])
			}
			if err != nil {
				return failed(fmt.Errorf("write the manual pages: %w", err))
			}
			return nil
		},
	}
}

// writeManual writes the pages of c and of the commands below it.
func writeManual(c *cobra.Command, folder string) error {
	if !c.IsAvailableCommand() && c.HasParent() {
		return nil
	}
	if err := os.WriteFile(filepath.Join(folder, pageName(c)+".1"), []byte(manual(c)), 0o644); err != nil {
		return err
	}
	for _, below := range c.Commands() {
		if err := writeManual(below, folder); err != nil {
			return err
		}
	}
	return nil
}

func pageName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// sections are the paragraphs of a help text that have a heading of their own in the manual, by how they begin.
var sections = []struct{ begins, heading string }{
	{"Exit status: ", "EXIT STATUS"}, {"Environment: ", "ENVIRONMENT"}, {"Files, ", "FILES"},
}

// manual is a page in roff, of the same words as the help text.
func manual(c *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"lgpu %s\" \"Logical GPUs\"\n.ad l\n", roff(strings.ToUpper(pageName(c))), roff(version()))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(pageName(c)), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.CommandPath()))
	if arguments := strings.TrimPrefix(c.UseLine(), c.CommandPath()); arguments != "" {
		fmt.Fprintf(&b, "%s\n", roff(strings.TrimSpace(arguments)))
	}

	text, rest := ".SH DESCRIPTION\n", ""
	to := &text
	for _, paragraph := range strings.Split(strings.TrimSpace(c.Long), "\n\n") {
		for _, s := range sections {
			if strings.HasPrefix(paragraph, s.begins) {
				rest += ".SH " + s.heading + "\n"
				to = &rest
				if s.heading != "FILES" {
					paragraph = strings.TrimPrefix(paragraph, s.begins)
				}
			}
		}
		if strings.HasPrefix(paragraph, "  ") {
			*to += verbatim(paragraph)
		} else {
			*to += ".PP\n" + roff(paragraph) + "\n"
		}
	}
	b.WriteString(text)
	if c.HasAvailableLocalFlags() {
		b.WriteString(".SH OPTIONS\n")
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { b.WriteString(option(f)) })
	}
	b.WriteString(rest)
	if c.HasExample() {
		b.WriteString(".SH EXAMPLES\n" + verbatim(c.Example))
	}

	var others []string
	if c.HasParent() {
		others = append(others, `\fB`+roff(pageName(c.Parent()))+`\fR(1)`)
	}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			others = append(others, `\fB`+roff(pageName(below))+`\fR(1)`)
		}
	}
	b.WriteString(".SH SEE ALSO\n" + strings.Join(others, ",\n") + "\n")
	return b.String()
}

// option is one entry of the list of options.
func option(f *pflag.Flag) string {
	if f.Hidden {
		return ""
	}
	name, text := pflag.UnquoteUsage(f)
	head := `\fB` + roff("--"+f.Name) + `\fR`
	if f.Shorthand != "" {
		head = `\fB` + roff("-"+f.Shorthand) + `\fR, ` + head
	}
	switch {
	case f.Value.Type() == "bool":
	case f.NoOptDefVal != "":
		head += `[=\fI` + roff(name) + `\fR]`
	default:
		head += ` \fI` + roff(name) + `\fR`
	}
	return ".TP\n" + head + "\n" + roff(text) + "\n"
}

// verbatim keeps lines as they are, behind a margin.
func verbatim(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, roff(strings.TrimPrefix(strings.TrimRight(line, "\n"), "  ")))
	}
	return ".PP\n.RS 4\n.nf\n" + strings.Join(lines, "\n") + "\n.fi\n.RE\n"
}

// roff is text that roff prints as it stands.
func roff(text string) string {
	lines := strings.Split(strings.NewReplacer(`\`, `\e`, `-`, `\-`).Replace(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
