package contain

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// asBefore are scripts in which $run stands for lgpu run with its options. Each must do the same whether its programs are
// contained or not.
var asBefore = []struct{ name, script string }{
	{"status", `$run sh -c 'exit 7'; echo $?; $run sh -c 'kill -9 $$'; echo $?; $run absent; echo $?; $run ./text; echo $?`},
	{"arguments that are no UTF-8", `$run printf '%s|' "$(printf 'a\377b')" '' ' ' 'ä' | od -c`},
	{"environment that is no UTF-8", `X="$(printf 'a\377b')" Y= $run env | grep -a '^[XY]=' | od -c`},
	{"environment", `FOO=bar GODEBUG=x=1 $run env | grep -v '^LD_PRELOAD=\|^LGPU_\|^_=' | sort`},
	{"large environment", `export X="$(head -c 100000 /dev/zero | tr '\0' x)" Y="$(head -c 100000 /dev/zero | tr '\0' y)"; $run sh -c 'echo ${#X} ${#Y}'`},
	{"too large environment", `x="$(head -c 120000 /dev/zero | tr '\0' x)"; $run env "A=$x$x" true 2>&1; echo $?`},
	{"standard input", `echo text | $run cat; $run cat </dev/null; $run sh -c 'read x; echo "read $x"' <here`},
	{"closed standard files", `$run sh -c 'test -e /proc/self/fd/0 && echo open' <&-; $run sh -c 'echo x' >&-; echo $?`},
	{"inherited files", `$run cat /dev/fd/3 3<here; $run sh -c 'cat <&4; echo x >&7' 4<here 7>&1; $run ls /proc/self/fd 9<here`},
	{"file of the standard error", `$run sh -c 'echo error >&2' 2>&1`},
	{"signals", `trap '' HUP; $run grep '^Sig\(Ign\|Blk\|Cgt\)' /proc/self/status`},
	{"nohup", `trap '' HUP; $run sh -c 'kill -HUP $$; echo alive'`},
	{"limits", `ulimit -S -n 77; ulimit -c 0; ulimit -S -s 4096; $run sh -c 'ulimit -a'`},
	{"small files", `ulimit -f 1; $run sh -c 'echo small >small; cat small; ulimit -f'`},
	{"umask and folder", `umask 077; mkdir -p d; cd d; $run sh -c 'umask; pwd; >made; ls -l made' | cut -c1-10; cd ..; rm -r d`},
	{"folder that is gone", `mkdir gone; cd gone; rmdir ../gone; $run sh -c 'ls | wc -l; echo $?'`},
	{"folder of the libraries", `cd "$LGPU_LIBDIR"; $run pwd; mkdir -p contained; cd contained; $run pwd; $run sh -c 'echo ok'`},
	{"relative program", `$run ./script a b; cd sub; $run ../script c; PATH=..:$PATH $run script d`},
	{"script without an interpreter", `$run ./plain; echo $?`},
	{"script with an absent interpreter", `$run ./broken; echo $?`},
	{"background", `$run sh -c '(sleep 0.1; echo later) & echo now'; sleep 0; $run sh -c 'sleep 0.1 & wait; echo waited'`},
	{"signal to the launcher", `$run sh -c 'trap "echo got; exit 3" TERM; echo $PPID >pid; echo up; while :; do sleep 0.05; done' >out & until test -s out; do :; done; kill -TERM $(cat pid); wait $!; echo $?; cat out; rm out pid`},
	{"process group", `$run sh -c 'test "$(ps -o pgid= -p $$)" -eq "$(ps -o pgid= -p $PPID)" && echo same'`},
	{"names of the process", `$run sh -c 'cat /proc/$$/comm; tr "\0" " " </proc/$$/cmdline; readlink /proc/$$/exe'`},
	{"user", `$run id -u; $run id -g; $run sh -c 'grep "^\(Uid\|Gid\|Groups\|CapEff\|CapPrm\|CapInh\|CapAmb\|NoNewPrivs\)" /proc/self/status'`},
	{"niceness and cores", `nice -n 5 $run sh -c 'nice; grep Cpus_allowed_list /proc/self/status; cat /proc/self/oom_score_adj'`},
	{"several", `LD_PRELOAD= $run --pes 3 -- sh -c 'test -n "$LSHMEM_PE" && echo pe' | sort; $run --pes 2 --label -- sh -c 'exit 4' 2>/dev/null; echo $?`},
	{"shared memory", `$run sh -c 'echo x >/dev/shm/lgpu-same-'$$' && cat /dev/shm/lgpu-same-'$$; cat /dev/shm/lgpu-same-$$; rm -f /dev/shm/lgpu-same-$$`},
	{"debugger", `$run sh -c 'test "$(grep TracerPid /proc/self/status | cut -f2)" = 0 && grep Dumpable /proc/self/status; cat /proc/$PPID/comm'`},
}

// TestSame runs each script with and without containment.
func TestSame(t *testing.T) {
	users(t, func(t *testing.T, p *place) {
		p.permitted(t)
		work := p.work(t)
		for _, test := range asBefore {
			t.Run(test.name, func(t *testing.T) {
				var results [2]string
				for i, contain := range []string{"off", "auto"} {
					results[i] = p.script(t, work, contain, test.script)
				}
				if results[0] != results[1] {
					t.Errorf("%s\nwithout containment:\n%s\ncontained:\n%s", test.script, results[0], results[1])
				}
			})
		}
	})
}

// work makes a folder with files for scripts.
func (p *place) work(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(p.dir, "work")
	make := func(name, text string, mode os.FileMode) error {
		path := filepath.Join(dir, name)
		return errors.Join(os.WriteFile(path, []byte(text), mode), os.Chown(path, p.uid, p.uid))
	}
	err := errors.Join(os.MkdirAll(filepath.Join(dir, "sub"), 0o755), make("here", "from here\n", 0o644), make("text", "text\n", 0o644),
		make("script", "#!/bin/sh\necho \"$0 $*\"\n", 0o755), make("plain", "echo plain\n", 0o755), make("broken", "#!/absent\n", 0o755),
		os.Chown(dir, p.uid, p.uid), os.Chown(filepath.Join(dir, "sub"), p.uid, p.uid))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// script runs a shell script in a folder, with $run, and returns what it prints and its status.
func (p *place) script(t *testing.T, dir, contain, script string) string {
	t.Helper()
	c := p.command()
	run := filepath.Join(bin, "lgpu") + " run --sim=1x4GiB,sms=4 --memory 1GiB"
	c.Path, c.Args, c.Dir = "/bin/sh", []string{"sh", "-c", script}, dir
	c.Env = append(c.Env, "run="+run, "LGPU_CONTAIN="+contain)
	out, err := c.CombinedOutput()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return fmt.Sprintf("%sstatus %d", out, c.ProcessState.ExitCode())
}

// within says whether the program of a script is contained: prints "in" or "out".
const within = `sh -c 'test -e "$LGPU_LIBDIR/contained/liblgpu.so" && echo in || echo out'`

// TestDefault: programs are contained unless something says otherwise, and where they cannot be, nobody is bothered.
func TestDefault(t *testing.T) {
	users(t, func(t *testing.T, p *place) {
		p.permitted(t)
		work := p.work(t)
		for _, test := range []struct{ name, contain, script, want string }{
			{"nothing said", "", `$run ` + within, "in\nstatus 0"},
			{"environment", "off", `$run ` + within, "out\nstatus 0"},
			{"option before the environment", "off", `$run --contain=auto ` + within, "in\nstatus 0"},
			{"option", "", `$run --contain=off ` + within, "out\nstatus 0"},
			{"option without a value", "off", `$run --contain ` + within, "in\nstatus 0"},
			{"wrong environment", "maybe", `$run true`, "lgpu: error: LGPU_CONTAIN \"maybe\": it is on, off or auto\n" +
				"lgpu: hint: lgpu run --contain=on -- ./program\nstatus 2"},
			{"no room for the library", "", `ulimit -f 100; $run ` + within, "out\nstatus 0"},
			{"no room for the library, asked for", "", `ulimit -f 100; $run --contain=auto ` + within + ` 2>&1 | sed 's/: files.*//'`,
				"lgpu: warning: the program is not contained\nout\nstatus 0"},
			{"several", "", `$run --pes 2 -- ` + within + `; ulimit -f 100; $run --pes 2 -- ` + within, "in\nin\nout\nout\nstatus 0"},
			{"outer mount namespace", "", outer(p, "-m") + within, "in\nstatus 0"},
			{"outer user namespace", "", outer(p, "-Urm") + within, "in\nstatus 0"},
		} {
			t.Run(test.name, func(t *testing.T) {
				if got := p.script(t, work, test.contain, test.script); got != test.want {
					t.Errorf("%s\n%q, not %q", test.script, got, test.want)
				}
			})
		}
	})
}

// outer is a launcher in a namespace of its own; a user makes it with a user namespace.
func outer(p *place, kind string) string {
	if p.uid != 0 {
		kind = "-Urm"
	}
	return "unshare " + kind + " $run "
}

// TestWithoutRights: root without the right to mount starts its programs as before, and says nothing.
func TestWithoutRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root has rights to lose")
	}
	p := enter(t, 0)
	work := p.work(t)
	const weak = `setpriv --bounding-set -sys_admin --inh-caps -sys_admin `
	if got := p.script(t, work, "", weak+"$run "+within); got != "out\nstatus 0" {
		t.Errorf("%q", got)
	}
	got := p.script(t, work, "on", weak+"$run "+within)
	if !strings.HasPrefix(got, "lgpu: error: --contain: make a namespace: ") || !strings.HasSuffix(got, "status 1") {
		t.Errorf("%q", got)
	}
}

// TestSetUID: what a user's set-uid program does needs its rights, so it is started without a user namespace; and a user's
// own capabilities are not taken away.
func TestSetUID(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes set-uid programs of others")
	}
	const user = nobody - 1
	p := enter(t, user)
	p.permitted(t)
	work := p.work(t)
	data, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Skip(err)
	}
	own := filepath.Join(work, "own-id")
	if err := errors.Join(os.WriteFile(own, data, 0o755), os.Chown(own, nobody, nobody), os.Chmod(own, 0o755|os.ModeSetuid)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ script, want string }{
		{`$run ./own-id -u`, strconv.Itoa(nobody) + "\nstatus 0"},
		{`$run --contain=on ./own-id -u`, strconv.Itoa(user) + "\nstatus 0"},
		{`$run --contain=auto ./own-id -u 2>&1 | cut -c1-44`, "lgpu: warning: the program is not contained:\n" + strconv.Itoa(nobody) + "\nstatus 0"},
	} {
		if got := p.script(t, work, "", test.script); got != test.want {
			t.Errorf("%s: %q, not %q", test.script, got, test.want)
		}
	}
	c := p.command("run", "--sim=1x4GiB,sms=4", "--", "grep", "CapEff", "/proc/self/status")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: c.SysProcAttr.Credential, AmbientCaps: []uintptr{unix.CAP_NET_BIND_SERVICE}}
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "0000000000000400") {
		t.Errorf("ambient capabilities: %v, %s", err, out)
	}
}
