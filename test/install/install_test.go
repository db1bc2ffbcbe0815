// Package install tests an install as an administrator has it: what make install writes and make uninstall removes, the
// packages, the unit, completion in real shells, and an upgrade under a running program, in a root of its own.
package install

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// strictVariable is the variable with which a test fails rather than is skipped where a tool or a right is missing.
const strictVariable = "LGPU_TEST_INSTALL"

func lacks(t *testing.T, what string) {
	t.Helper()
	if os.Getenv(strictVariable) != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// need skips the test where a tool is missing.
func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			lacks(t, tool+" is not installed")
		}
	}
}

// run runs a command in the root of the source and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir = "../.."
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// files are the plain files below a folder.
func files(t *testing.T, folder string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			found = append(found, strings.TrimPrefix(path, folder))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// installed are some of the files of an install, one of each kind, below its prefix.
var installed = []string{"/bin/lgpu", "/share/man/man1/lgpu.1", "/share/man/man1/lgpu-run.1", "/lib/systemd/system/lgpud.service",
	"/lib/sysusers.d/lgpu.conf", "/share/bash-completion/completions/lgpu", "/share/doc/lgpu/LICENSE", "/share/lgpu/alerts.yaml",
	"/share/lgpu/grafana.json",
	"/share/zsh/site-functions/_lgpu", "/share/fish/vendor_completions.d/lgpu.fish"}

func TestMakeInstall(t *testing.T) {
	root := t.TempDir()
	for range 2 { // over an older one, too
		run(t, "make", "install", "DESTDIR="+root, "PREFIX=/usr")
	}
	got := files(t, root)
	for _, want := range installed {
		if !slices.Contains(got, "/usr"+want) {
			t.Errorf("%s was not installed", want)
		}
	}
	unit, err := os.ReadFile(root + "/usr/lib/systemd/system/lgpud.service")
	if err != nil || !strings.Contains(string(unit), "\nExecStart=/usr/bin/lgpu daemon ") || strings.Contains(string(unit), "@lgpu@") {
		t.Errorf("the unit does not start what was installed: %v\n%s", err, unit)
	}
	mine := root + "/usr/share/man/man1/mine.1"
	if err := os.WriteFile(mine, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "make", "uninstall", "DESTDIR="+root, "PREFIX=/usr")
	if left := files(t, root); len(left) != 1 || root+left[0] != mine {
		t.Errorf("left: %v", left)
	}
}

// exposure is the figure of systemd-analyze security for a unit.
var exposure = regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)

// The unit is one that systemd understands, and docs/install.md says of it what is so.
func TestUnit(t *testing.T) {
	need(t, "systemd-analyze")
	root := t.TempDir()
	run(t, "make", "install", "PREFIX="+root+"/usr")
	path := root + "/usr/lib/systemd/system/lgpud.service"
	// What ExecStartPre may lack, verify takes for wrong.
	if out := run(t, "systemd-analyze", "verify", "--man=no", path); strings.TrimSpace(out) != "" &&
		!strings.Contains(out, "nvidia-modprobe") {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	page, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	figure := exposure.FindStringSubmatch(run(t, "systemd-analyze", "security", "--offline=true", "--no-pager", path))
	version, _, _ := strings.Cut(run(t, "systemd-analyze", "--version"), "\n")
	if figure == nil {
		t.Fatal("systemd-analyze security gives no figure")
	}
	// Other versions of systemd look at other settings.
	if strings.HasPrefix(version, "systemd 252 ") && !strings.Contains(string(page), "**"+figure[1]+"**") {
		t.Errorf("docs/install.md does not say that the exposure is %s", figure[1])
	}
	unit, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, sandbox, found := strings.Cut(string(unit), "# The sandbox.")
	if !found {
		t.Fatal("the unit has no sandbox")
	}
	for line := range strings.Lines(sandbox) {
		if name, _, is := strings.Cut(line, "="); is && !strings.HasPrefix(line, "#") && name != "WantedBy" &&
			!strings.Contains(string(page), "`"+name) {
			t.Errorf("docs/install.md says nothing of %s", name)
		}
	}
}

// Tab in a shell with the completion that was installed finds commands and options.
func TestCompletion(t *testing.T) {
	root := t.TempDir()
	run(t, "make", "install", "DESTDIR="+root, "PREFIX=/usr")
	for shell, script := range map[string]string{
		"bash": `
			[ ! -f /usr/share/bash-completion/bash_completion ] || . /usr/share/bash-completion/bash_completion
			. "$1/share/bash-completion/completions/lgpu"
			compopt() { :; } # it works in a real completion alone
			COMP_WORDS=(lgpu run --priority "") COMP_CWORD=3 COMP_LINE="lgpu run --priority " COMP_POINT=20 COMP_TYPE=9
			__start_lgpu
			echo "${COMPREPLY[@]}"`,
		"zsh": `fpath=("$1/share/zsh/site-functions" $fpath)
			autoload -Uz compinit && compinit -u -d "$1/dump"
			[[ $_comps[lgpu] == _lgpu ]] && autoload +X -Uz _lgpu || exit 1
			lgpu __complete run --priority "" 2>/dev/null`,
		"fish": `source $argv[1]/share/fish/vendor_completions.d/lgpu.fish
			complete --do-complete 'lgpu run --priority '`,
	} {
		t.Run(shell, func(t *testing.T) {
			need(t, shell)
			args := []string{"-c", script, shell, root + "/usr"}
			if shell == "fish" {
				args = []string{"--no-config", "-c", script, root + "/usr"}
			}
			c := exec.Command(shell, args...)
			c.Env = append(os.Environ(), "PATH="+root+"/usr/bin:"+os.Getenv("PATH"), "LGPU_RUNTIME_DIR="+root, "HOME="+root, "TERM=dumb")
			out, err := c.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "normal") || !strings.Contains(string(out), "latency") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}
