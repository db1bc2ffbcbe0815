package test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// PEs of a job on two devices hold memory. One is killed: the others end with an error that names it, well within any
// timeout, and what they held is free.
func TestKilledPE(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	job := p.start("lgpu", "run", "--sim=2x1GiB,sms=2", "--name", "job", "--memory", "512MiB", "--pes", "4", "--label", "--",
		"pe", "hold", "50000000", "meet", "say", "ready", "wait")
	pids := map[string]int{}
	for range 4 {
		job.untilAny("[0] ready", "[1] ready", "[2] ready", "[3] ready")
	}
	all := p.ps()
	if len(all) != 1 || all[0].Name != "job" || len(all[0].Processes) != 4 || len(all[0].Devices) != 2 {
		t.Fatalf("lgpu ps: %+v", all)
	}
	for i, d := range all[0].Devices {
		if d.Memory.Used < 100_000_000 || d.Memory.Limit == nil || *d.Memory.Limit != 512<<20 {
			t.Errorf("device %d: %+v; two PEs hold 50 MB each there", i, d.Memory)
		}
	}
	for _, process := range all[0].Processes {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", process.PID))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range strings.Split(string(env), "\x00") {
			if rank, ok := strings.CutPrefix(v, "LSHMEM_PE="); ok {
				pids[rank] = process.PID
			}
		}
	}
	if len(pids) != 4 {
		t.Fatalf("PEs: %v", pids)
	}
	began := time.Now()
	if err := unix.Kill(pids["2"], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		job.untilAny("[0] error PE 2 died: ", "[1] error PE 2 died: ", "[3] error PE 2 died: ")
	}
	if s := job.status(); s != 128+9 {
		t.Errorf("status %d", s)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	if want := fmt.Sprintf("lgpu: error: PE 2 (process %d) was killed by SIGKILL\n", pids["2"]); job.stderr.String() != want {
		t.Errorf("it says %q, want %q", job.stderr.String(), want)
	}
	if all := p.ps(); len(all) != 0 {
		t.Errorf("what is left: %+v", all)
	}
}

// PEs wait in kernels for one that is killed. The kernels end, the error names the PE, and all memory is given back.
func TestKilledPEThatKernelsWaitFor(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	job := p.start("lgpu", "run", "--sim=2x1GiB,sms=2", "--pes", "3", "--label", "--", "sh", "-c",
		`echo $$; if [ $LSHMEM_PE = 1 ]; then exec pe heap 4000000 meet wait; else exec pe heap 4000000 meet signal; fi`)
	var victim int
	if _, err := fmt.Sscanf(job.untilAny("[1] "), "[1] %d", &victim); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		job.untilAny("[0] in a kernel", "[2] in a kernel")
	}
	began := time.Now()
	if err := unix.Kill(victim, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if line := job.untilAny("[0] error ", "[2] error "); !strings.Contains(line, "PE 1 died: ") {
			t.Error(line)
		}
	}
	if s := job.status(); s != 128+9 {
		t.Errorf("status %d", s)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("it took %v", took)
	}
	if all := p.ps(); len(all) != 0 {
		t.Errorf("what is left: %+v", all)
	}
}

// untilAny reads lines up to one that begins with one of some texts.
func (t *tenant) untilAny(beginnings ...string) string {
	t.t.Helper()
	var before []string
	deadline := time.After(patience)
	for {
		select {
		case line, ok := <-t.lines:
			if !ok {
				t.t.Fatalf("%s ended before any of %q; it said %q and %s", t.Path, beginnings, before, t.stderr.String())
			}
			for _, b := range beginnings {
				if strings.HasPrefix(line, b) {
					return line
				}
			}
			before = append(before, line)
		case <-deadline:
			t.t.Fatalf("%s says none of %q; it said %q", t.Path, beginnings, before)
		}
	}
}

// When a PE fails, those that do not notice are asked to end, and then ended with all that they started.
func TestPEsAreEnded(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	job := p.start("lgpu", "run", "--sim=1x1GiB,sms=2", "--pes", "4", "--", "sh", "-c", `case $LSHMEM_PE in
		0) sleep 1; exit 3;;
		1) exit 0;;
		2) trap 'echo asked; exit 4' TERM; echo up; while :; do sleep 0.1; done;;
		3) trap 'echo refused' TERM; echo up; sh -c 'trap "" TERM; echo $$; sleep 1000; exit 0'; while :; do sleep 0.1; done;;
		esac`)
	began := time.Now()
	job.until("asked")
	asked := time.Since(began)
	if asked < 4*time.Second || asked > 30*time.Second {
		t.Errorf("asked after %v", asked)
	}
	if s := job.status(); s != 3 {
		t.Errorf("status %d", s)
	}
	if took := time.Since(began) - asked; took < 4*time.Second {
		t.Errorf("ended %v after they were asked", took)
	}
	if s := job.stderr.String(); !strings.Contains(s, "lgpu: error: PE 0 (process ") || !strings.Contains(s, ") ended with status 3\n") {
		t.Error(s)
	}
}

// Signals reach all PEs, and who sends one needs no explanation.
func TestSignalToPEs(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	job := p.start("lgpu", "run", "--sim=1x1GiB,sms=2", "--pes", "3", "--", "pe", "meet", "say", "ready", "wait")
	for range 3 {
		job.until("ready")
	}
	if err := job.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if s := job.status(); s != 128+15 && s != 9 { // one may hear of another's end before the signal
		t.Errorf("status %d", s)
	}
	if s := job.stderr.String(); s != "" {
		t.Errorf("it says %q", s)
	}
}

// A job of two launchers, as on two machines: they meet at the first's address. A PE's death reaches the other machine.
func TestSeveralLaunchers(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var jobs []*tenant
	for i := range 2 {
		p := newPlace(t)
		p.env = append(p.env, "LSHMEM_BOOTSTRAP_TOKEN=a secret of all machines")
		jobs = append(jobs, p.start("lgpu", "run", "--sim=1x1GiB,sms=2", "--pes", "2", "--pes-first", fmt.Sprint(2*i), "--pes-total", "4",
			"--bootstrap", at, "--label", "--", "sh", "-c", "if [ $LSHMEM_PE = 3 ]; then exec pe meet meet say ready; else exec pe meet meet wait; fi"))
	}
	jobs[1].untilAny("[2] error PE 3 died: its process ended without leaving the job")
	for range 2 {
		jobs[0].untilAny("[0] error PE 3 died: its process ended", "[1] error PE 3 died: its process ended")
	}
	for i, j := range jobs {
		if s := j.status(); s != 9 {
			t.Errorf("launcher %d: status %d: %s", i, s, j.stderr.String())
		}
	}
}
