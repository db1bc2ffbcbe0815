package main

import (
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// What "make build" says of the build, by the linker's -X. A build by go alone has what Go notes of the repository.
var (
	buildVersion string // of a release, or what sorts before the next one
	buildCommit  string // full hash; ends with "-dirty" if files were changed
	buildDate    string // of the commit, RFC 3339
)

// build is what this program was made of. docs/cli.md promises the names in the JSON.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // "" where it is not known, as Date
	Date    string `json:"date"`
	Go      string `json:"go"`
	System  string `json:"system"` // such as linux/amd64
}

// thisBuild is what this program was made of, as far as it knows.
func thisBuild() build {
	b := build{Version: buildVersion, Commit: buildCommit, Date: buildDate, Go: runtime.Version(),
		System: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if v := info.Main.Version; b.Version == "" && v != "(devel)" {
		b.Version = v
	}
	if b.Commit == "" {
		for _, s := range info.Settings {
			switch {
			case s.Key == "vcs.revision":
				b.Commit = s.Value + b.Commit
			case s.Key == "vcs.time":
				b.Date = s.Value
			case s.Key == "vcs.modified" && s.Value == "true":
				b.Commit += "-dirty"
			}
		}
	}
	if b.Version == "" {
		b.Version = "devel"
		if b.Commit != "" {
			b.Version += "-" + b.short()
		}
	}
	return b
}

// short is the beginning of the commit, and whether files were changed.
func (b build) short() string {
	hash, dirty, _ := strings.Cut(b.Commit, "-")
	hash = hash[:min(12, len(hash))]
	if dirty != "" {
		hash += "-" + dirty
	}
	return hash
}

// String is one line for people.
func (b build) String() string {
	text := b.Version + " ("
	if b.Commit != "" {
		text += "commit " + b.short() + ", "
	}
	if b.Date != "" {
		text += b.Date + ", "
	}
	return text + b.Go + " " + b.System + ")"
}

// version is what this build calls itself.
func version() string { return thisBuild().Version }

func versionCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version [--json]",
		Short: "Show the version of this program and what it was built from",
		Long: `Show the version of this program, the commit that it was built from and the
commit's date, and the version of Go. The daemon may be of another version,
until it is restarted: lgpu ps --json has it.

Exit status: 0.`,
		Example:               "  lgpu version\n  lgpu version --json | jq -r .commit",
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON {
				return sayJSON(c.OutOrStdout(), thisBuild())
			}
			return say(c.OutOrStdout(), "lgpu version "+thisBuild().String()+"\n")
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
