package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// helpCommand describes a command as its --help does.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:                   "help [COMMAND]",
		Short:                 "Describe a command",
		DisableFlagsInUseLine: true,
		ValidArgsFunction: func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			at, left := follow(c.Root(), args)
			if len(left) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return commandNames(at), cobra.ShellCompDirectiveNoFileComp
		},
		Args: func(c *cobra.Command, args []string) error {
			at, left := follow(c.Root(), args)
			if len(left) == 0 {
				return nil
			}
			known := args[:len(args)-len(left)+1]
			return usage(commandHint(at, left[0], at.CommandPath()+" --help"), "help: there is no command %q", strings.Join(known, " "))
		},
		RunE: func(c *cobra.Command, args []string) error {
			at, _ := follow(c.Root(), args)
			at.InitDefaultHelpFlag() // so that it is among the options
			return at.Help()
		},
	}
}

// follow goes down from c by names of commands, and returns those that are none.
func follow(c *cobra.Command, names []string) (*cobra.Command, []string) {
	for i, name := range names {
		at := slices.IndexFunc(c.Commands(), func(below *cobra.Command) bool { return below.Name() == name })
		if at < 0 {
			return c, names[i:]
		}
		c = c.Commands()[at]
	}
	return c, nil
}

// commandNames are those of the commands below c that a person types.
func commandNames(c *cobra.Command) (names []string) {
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() || below.Name() == "help" || below.Name() == "completion" {
			names = append(names, below.Name())
		}
	}
	return names
}

// strictCompletion has c's command for completions refuse what is no shell.
func strictCompletion(c *cobra.Command) {
	c.InitDefaultCompletionCmd()
	completion, _ := follow(c, []string{"completion"})
	shells := strings.Join(commandNames(completion), ", ")
	completion.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage("lgpu completion --help", "completion: name a shell: %s", shells)
		}
		return usage("those are known: "+shells, "completion: there is none for %q", args[0])
	}
	completion.RunE = func(*cobra.Command, []string) error { return nil } // else its arguments are not looked at
	for _, shell := range completion.Commands() {
		shell.Args = noArguments
	}
}
