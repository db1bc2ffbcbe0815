package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestManual(t *testing.T) {
	c := &cobra.Command{
		Use:                   "lgpu PATH",
		Short:                 "Try",
		Long:                  "One.\n.two a\\b\n\n  file   text\n\nExit status: 0.",
		Example:               "  lgpu --it\n  'quoted'",
		DisableFlagsInUseLine: true,
		Run:                   func(*cobra.Command, []string) {},
	}
	c.Flags().String("sim", "", "a `SHAPE`")
	c.Flags().Lookup("sim").NoOptDefVal = "1"
	c.Flags().BoolP("follow", "f", false, "go on")
	c.Flags().String("size", "", "a `SIZE`")
	page := manual(c)
	at := 0
	for _, want := range []string{
		".SH NAME\nlgpu \\- Try\n", ".SH SYNOPSIS\n.B lgpu\nPATH\n",
		".SH DESCRIPTION\n.PP\nOne.\n\\&.two a\\eb\n.PP\n.RS 4\n.nf\nfile   text\n.fi\n.RE\n",
		".SH OPTIONS\n.TP\n\\fB\\-f\\fR, \\fB\\-\\-follow\\fR\ngo on\n",
		"\\fB\\-\\-sim\\fR[=\\fISHAPE\\fR]\n", "\\fB\\-\\-size\\fR \\fISIZE\\fR\n",
		".SH EXIT STATUS\n.PP\n0.\n", ".SH EXAMPLES\n.PP\n.RS 4\n.nf\nlgpu \\-\\-it\n\\&'quoted'\n",
	} {
		i := strings.Index(page[at:], want)
		if i < 0 {
			t.Fatalf("%q is not where it should be in:\n%s", want, page)
		}
		at += i + len(want)
	}
}

// Help texts are for terminals of 80 columns.
func TestHelpFits(t *testing.T) {
	var check func(*cobra.Command)
	check = func(c *cobra.Command) {
		for line := range strings.Lines(c.Long + "\n\n" + c.UsageString()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > width {
				t.Errorf("%s: %d columns: %s", c.CommandPath(), n, line)
			}
		}
		for _, below := range c.Commands() {
			if below.Name() != "completion" && below.Name() != "help" {
				check(below)
			}
		}
	}
	check(root())
}
