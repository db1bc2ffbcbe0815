package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// docs/cli.md begins with the commands in the order of lgpu --help, and has each option.
func TestCommandsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, line := range regexp.MustCompile(`(?m)^    lgpu ([a-z]+)`).FindAllStringSubmatch(string(page)[:strings.Index(string(page), "\n## ")], -1) {
		if !slices.Contains(listed, line[1]) {
			listed = append(listed, line[1])
		}
	}
	c := root()
	var commands []string
	for _, below := range c.Commands() {
		commands = append(commands, below.Name())
	}
	if !slices.Equal(listed, commands) {
		t.Errorf("docs/cli.md lists %v, lgpu --help %v", listed, commands)
	}
	var look func(*cobra.Command)
	look = func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			name := "--" + f.Name
			if f.Shorthand != "" {
				name = "(-" + f.Shorthand + "|" + name + ")"
			}
			if !f.Hidden && !regexp.MustCompile(`[ \x60\[]`+name+`([^a-z-]|$)`).Match(page) {
				t.Errorf("docs/cli.md says nothing of %s --%s", c.CommandPath(), f.Name)
			}
		})
		for _, below := range c.Commands() {
			look(below)
		}
	}
	look(c)
}
