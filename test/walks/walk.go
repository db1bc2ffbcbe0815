// Package walks runs the walks of docs/walks as their readers would: each command in the shell of the user who types it,
// on a machine of its own, and compares what it prints with what the document shows.
//
// A walk is Markdown. What is run are its blocks that are marked console:
//
//	```console
//	alice$ lgpu ps --wide \
//	    --json
//	what it prints
//	```
//
// A line USER$ COMMAND, or USER# COMMAND for root, begins a command. It goes on in the next line after a backslash, and in
// lines that begin with "> ". What follows, up to the next command, is what it prints. A line of three dots stands for any
// lines. Two comments are for the walk, not for the reader:
//
//	<!-- until alice$ lgpu ps | grep -q red -->   runs a command until it succeeds
//	<!-- alice$ ... -->                           runs a command that must succeed
package walks

import (
	"fmt"
	"regexp"
	"strings"
)

// Step is something to run.
type Step struct {
	Line    int    // in the document, from 1
	User    string // who types it
	Command string // with its continuation lines
	Output  []string
	Shown   bool // to the reader, who sees Output too
	Until   bool // it is to be run until it succeeds

	begin, end int // the lines of Output in the document, from 0, end excluded
}

var (
	prompt  = regexp.MustCompile(`^([a-z]+)([$#]) (.+)$`)
	comment = regexp.MustCompile(`^<!-- (until )?([a-z]+)[$#] (.+) -->$`)
)

// Parse returns the steps of a walk.
func Parse(text string) ([]Step, error) {
	var steps []Step
	inside := false
	lines := strings.Split(text, "\n")
	for n := 0; n < len(lines); n++ {
		line := lines[n]
		if !inside {
			if m := comment.FindStringSubmatch(line); m != nil {
				steps = append(steps, Step{Line: n + 1, User: m[2], Command: m[3], Until: m[1] != ""})
			} else if strings.HasPrefix(line, "<!-- until") {
				return nil, fmt.Errorf("line %d: it is <!-- until USER$ COMMAND -->", n+1)
			}
			inside = line == "```console"
			continue
		}
		if line == "```" {
			inside = false
			continue
		}
		if m := prompt.FindStringSubmatch(line); m != nil {
			s := Step{Line: n + 1, User: m[1], Command: m[3], Shown: true}
			if (m[2] == "#") != (m[1] == "root") {
				return nil, fmt.Errorf("line %d: root's prompt is #, that of others $", n+1)
			}
			for n+1 < len(lines) && (strings.HasSuffix(s.Command, "\\") || strings.HasPrefix(lines[n+1], "> ")) {
				n++
				s.Command += "\n" + strings.TrimPrefix(lines[n], "> ")
			}
			s.begin, s.end = n+1, n+1
			steps = append(steps, s)
			continue
		}
		if len(steps) == 0 || !steps[len(steps)-1].Shown {
			return nil, fmt.Errorf("line %d: it belongs to no command", n+1)
		}
		last := &steps[len(steps)-1]
		last.Output, last.end = append(last.Output, line), n+1
	}
	if inside {
		return nil, fmt.Errorf("a block is not closed")
	}
	return steps, nil
}

// Rewrite returns a walk in which every command shows what it printed. Commands whose output is cut by dots stay as they
// are.
func Rewrite(text string, steps []Step, printed map[int][]string) string {
	lines := strings.Split(text, "\n")
	for i := len(steps) - 1; i >= 0; i-- {
		s := steps[i]
		out, ran := printed[s.Line]
		if !ran || !s.Shown || Like(s.Output, out) {
			continue
		}
		lines = append(lines[:s.begin:s.begin], append(out, lines[s.end:]...)...)
	}
	return strings.Join(lines, "\n")
}

// varying is what differs from run to run, and what stands for it when outputs are compared: names of devices, commits and
// tokens; times; amounts with their units; bars; and what an lgpu does at the moment. Columns move with the width of numbers.
var varying = []struct {
	pattern *regexp.Regexp
	stands  string
}{
	{regexp.MustCompile(`GPU-[0-9a-f]+(-[0-9a-f]+)*`), "GPU"},
	{regexp.MustCompile(`\bg?[0-9a-f]{12,}(-dirty)?\b`), "HEX"},
	{regexp.MustCompile(`(?m)^ ?lgpu \S+ `), "lgpu VERSION "},
	{regexp.MustCompile(`[0-9]+([.:,T-][0-9]+)*Z?`), "N"},
	{regexp.MustCompile(`N ?(KiB|MiB|GiB|[KMG]|B|ns|µs|ms|s|mJ|kJ|J|Wh|kWh|mW|W|min|h)\b`), "AMOUNT"},
	{regexp.MustCompile(`[▀-▟·]+`), "BAR"},
	{regexp.MustCompile(`[─-]{2,}`), "RULE"},
	{regexp.MustCompile(`\b(idle|running|waiting|draining|guest)\b`), "STATE"},
	{regexp.MustCompile(`[ \t]+`), " "},
}

// settled are lines whose numbers are what somebody has set or typed, and so the same in each run, and what differs in them
// all the same.
var settled = []struct{ line, but *regexp.Regexp }{
	{regexp.MustCompile(`^lgpu: (error|hint): `), regexp.MustCompile(`GPU-[0-9a-f-]+`)},
	{regexp.MustCompile(`^([a-z.]+ +)?GPU-[0-9a-f-]{36} \S+$`), regexp.MustCompile(`GPU-[0-9a-f-]+`)}, // lgpu show
	{regexp.MustCompile(`^\S+ \S+ \S+  limit\.changed `), regexp.MustCompile(`^\S+ \S+ \S+|process [0-9]+`)},
}

// topLine has the memory of an lgpu in lgpu top, and its limit.
var topLine = regexp.MustCompile(` [0-9.]+[KMGT]?/(\S+) .*→`)

// limits are those in a line of lgpu ps or lgpu top, which are the same in each run.
func limits(line string) string {
	if m := psLine.FindStringSubmatch(line); m != nil {
		return " max " + m[4] + " max " + m[6]
	}
	if m := topLine.FindStringSubmatch(line); m != nil {
		return " max " + m[1]
	}
	return ""
}

// plain is a line without what differs from run to run.
func plain(line string) string {
	for _, s := range settled {
		if s.line.MatchString(line) {
			return strings.Join(strings.Fields(s.but.ReplaceAllString(line, "X")), " ")
		}
	}
	most := limits(line)
	for _, v := range varying {
		line = v.pattern.ReplaceAllString(line, v.stands)
	}
	return strings.TrimSpace(line) + most
}

// Like reports whether a command printed the lines that a document shows, up to what differs from run to run. A line of
// three dots stands for any lines.
func Like(shown, printed []string) bool {
	if len(shown) == 0 {
		return len(printed) == 0
	}
	if shown[0] == "..." {
		for skip := range len(printed) + 1 {
			if Like(shown[1:], printed[skip:]) {
				return true
			}
		}
		return false
	}
	return len(printed) > 0 && plain(shown[0]) == plain(printed[0]) && Like(shown[1:], printed[1:])
}

// Looks reports whether a command only looks: it may have looked too early, and can be repeated.
func Looks(command string) bool { return looks.MatchString(command) }

var looks = regexp.MustCompile(`^lgpu (ps|top|show|events|energy)\b`)
