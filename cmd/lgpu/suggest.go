package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lgpu/lgpu/internal/slip"
	"github.com/lgpu/lgpu/policy/limits"
)

// didYouMean is a hint that names the candidate nearest to word, or otherwise where to look.
func didYouMean(before, word string, candidates []string, otherwise string) string {
	if near := slip.Nearest(word, candidates); near != "" {
		return "did you mean " + before + near + "?"
	}
	return otherwise
}

// commandHint is the hint for a word that is none of the commands below c.
func commandHint(c *cobra.Command, word, otherwise string) string {
	return didYouMean(c.CommandPath()+" ", word, commandNames(c), otherwise)
}

// optionError is what a user reads of options that c does not understand.
func optionError(c *cobra.Command, err error) error {
	hint := c.CommandPath() + " --help lists the options"
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		hint = didYouMean("--", unknown.GetSpecifiedName(), names, hint)
	}
	var value *pflag.InvalidValueError
	if errors.As(err, &value) { // a number or a time: those of ours say what is right themselves
		cause := errors.Unwrap(err)
		of := value.GetFlag()
		switch kind := of.Value.Type(); {
		case kind == "duration":
			return usage("times are such as 10s, 5m or 1h30m", "--%s %q: this is no time", of.Name, value.GetValue())
		case errors.Is(cause, strconv.ErrRange):
			err = fmt.Errorf("--%s %q: this number is not possible", of.Name, value.GetValue())
		case errors.Is(cause, strconv.ErrSyntax) && kind == "bool":
			err = fmt.Errorf("--%s %q: it is true or false", of.Name, value.GetValue())
		case errors.Is(cause, strconv.ErrSyntax):
			err = fmt.Errorf("--%s %q: this is no number", of.Name, value.GetValue())
		case cause != nil:
			err = fmt.Errorf("--%s %q: %w", of.Name, value.GetValue(), cause)
		}
	}
	return usage(hint, "%w", err)
}

// explainFiles is explain for a command about files of the tree: where one of those typed is no file's name, it says
// which was meant.
func explainFiles(c *cobra.Command, err error, typed ...string) error {
	err = explainOptions(c, err)
	var e *exit
	if !errors.As(err, &e) || e.hint != "" || e.status != statusUsage {
		return err
	}
	all := map[string]bool{}
	var names []string
	for _, f := range limits.Files() {
		all[f.Name] = true
		names = append(names, f.Name)
	}
	for _, word := range typed {
		if name, _, _ := strings.Cut(word, "="); !all[name] {
			e.hint = didYouMean("", name, names, "")
			break
		}
	}
	return err
}
