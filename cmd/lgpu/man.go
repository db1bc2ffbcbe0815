package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the manual pages",
		Long: `Write a manual page for each command to FOLDER, which must exist.

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
			c.Root().DisableAutoGenTag = true
			header := &doc.GenManHeader{Title: "LGPU", Section: "1", Source: "lgpu", Manual: "lgpu"}
			if err := doc.GenManTree(c.Root(), header, args[0]); err != nil {
				return failed(fmt.Errorf("write the manual pages: %w", err))
			}
			return nil
		},
	}
}
