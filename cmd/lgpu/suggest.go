package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lgpu/lgpu/policy/limits"
)

// slips is how many letters a word may differ by and still be taken for a slip of another.
const slips = 2

// nearest returns the candidate that word was most likely meant to be: the only one that begins with it, or else the one
// with the fewest slips; "" for none.
func nearest(word string, candidates []string) string {
	var begun []string
	best, least := "", min(slips, (len(word)+1)/2)+1
	for _, c := range candidates {
		if strings.HasPrefix(c, word) {
			begun = append(begun, c)
		}
		if d := distance(word, c); d < least {
			best, least = c, d
		}
	}
	if len(begun) == 1 {
		return begun[0]
	}
	return best
}

// distance is the number of letters to add, drop, change, or swap with the next one, to make b of a (optimal string
// alignment). Words longer than any of this program's differ by all their letters.
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return max(len(a), len(b))
	}
	var rows [3][longest + 1]int // before the last, last, this
	for j := range len(b) + 1 {
		rows[1][j] = j
	}
	for i := 1; i <= len(a); i++ {
		rows[2][0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[1][j]+1, rows[2][j-1]+1, rows[1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[0][j-2]+1)
			}
			rows[2][j] = d
		}
		rows[0], rows[1] = rows[1], rows[2]
	}
	return rows[1][len(b)]
}

// didYouMean is a hint that names the candidate nearest to word, or otherwise where to look.
func didYouMean(before, word string, candidates []string, otherwise string) string {
	if near := nearest(word, candidates); near != "" {
		return "did you mean " + before + near + "?"
	}
	return otherwise
}

// commandHint is the hint for a word that is none of the commands below c.
func commandHint(c *cobra.Command, word, otherwise string) string {
	var names []string
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() {
			names = append(names, below.Name())
		}
	}
	return didYouMean(c.CommandPath()+" ", word, names, otherwise)
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
