package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// kinds are how packages are installed, over an older or a newer one too, and removed.
var kinds = map[string]struct{ install, remove string }{
	"deb": {`dpkg --no-triggers -i "$1"/*.deb`, `dpkg --no-triggers --remove lgpu`},
	"rpm": {`rpm --dbpath /var/lib/rpm-test --nodeps -U --oldpackage "$1"/*.rpm`, `rpm --dbpath /var/lib/rpm-test -e lgpu`},
}

// is is what systemd says to is-active or is-enabled of the unit; that it is not is no failure.
func is(what string) string {
	out, _ := exec.Command("systemctl", "is-"+what, "lgpud").Output()
	return strings.TrimSpace(string(out))
}

// TestPackagesOnBooted has the packages' scripts run where systemd does: what is installed waits for the administrator, an
// upgrade restarts a daemon that runs and starts none, a removal stops and disables it, and what ran goes on. It is started
// by TestPackages.
func TestPackagesOnBooted(t *testing.T) {
	if os.Getenv(bootedVariable) != t.Name() {
		t.Skip("TestPackages starts it")
	}
	for kind, by := range kinds {
		t.Run(kind, func(t *testing.T) {
			install := func(which string) string {
				return run(t, "sh", "-c", by.install, "sh", filepath.Join(os.Getenv(packagesVariable), which))
			}
			state := func(when, active, enabled string) {
				t.Helper()
				if a, e := is("active"), is("enabled"); a != active || e != enabled {
					t.Errorf("%s the service is %s and %s, not %s and %s", when, a, e, active, enabled)
				}
			}
			version := func(when, want string) {
				t.Helper()
				if got := look(t).Daemon.Version; got != want {
					t.Errorf("%s the daemon is %s, not %s", when, got, want)
				}
			}
			install("old")
			state("after the install", "inactive", "disabled")
			run(t, "getent", "group", "lgpu")
			run(t, "systemctl", "enable", "--now", "lgpud")
			p := startProgram(t)
			version("after the install", "1.0.0")

			install("new")
			state("after the upgrade", "active", "enabled")
			version("after the upgrade", "2.0.0")
			p.works(t, "after the upgrade")

			run(t, "systemctl", "stop", "lgpud")
			install("old")
			state("installed while it was stopped,", "inactive", "enabled")
			run(t, "systemctl", "start", "lgpud")
			version("after the way back", "1.0.0")

			// A daemon that does not start keeps no package from being installed or removed.
			configure(t, "ExecStartPre=/bin/false")
			if said := install("new"); !strings.Contains(said, "systemctl status lgpud") {
				t.Errorf("of a daemon that does not start, the upgrade says %q", said)
			}
			configure(t, "")
			run(t, "systemctl", "reset-failed", "lgpud")
			run(t, "systemctl", "start", "lgpud")
			version("once it can", "2.0.0")

			run(t, "sh", "-c", by.remove)
			if a := is("active"); a == "active" {
				t.Error("after the removal the service is active")
			}
			wants, err := filepath.Glob("/etc/systemd/system/*.wants/lgpud.service")
			if err != nil || len(wants) > 0 {
				t.Errorf("after the removal there is %v, %v", wants, err)
			}
			if _, err := os.Stat("/run/lgpu/lgpud.system"); err == nil {
				t.Error("after the removal a daemon is waited for")
			}
			p.works(t, "after the removal")
			p.in.Close()
			if err := p.Wait(); err != nil {
				t.Errorf("the program ended with %v", err)
			}
			removed(t)
			if _, err := os.Stat("/var/lib/lgpu/state.db"); err != nil {
				t.Errorf("the state did not outlive the removal: %v", err)
			}
			if kind == "deb" {
				install("old")
				run(t, "systemctl", "start", "lgpud")
				run(t, "dpkg", "--purge", "lgpu")
				if _, err := os.Stat("/var/lib/lgpu"); err == nil {
					t.Error("the state outlived the purge")
				}
				if a := is("active"); a == "active" {
					t.Error("after the purge the service is active")
				}
			}
			if t.Failed() {
				t.Log(journal(t))
			}
		})
	}
}
