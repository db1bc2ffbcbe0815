package contain

import (
	"bufio"
	"io"
	"os"
	"testing"
)

// TestExchange: a process that runs cannot open what it could, and can what it could not, and the other way round again.
func TestExchange(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root enters namespaces of others")
	}
	p := fullPlan(t)
	permitted(t, p)
	itsIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, itsOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s, err := p.Start("/bin/sh", []string{"sh", "-c", `while read f; do (exec 3<"$f") 2>/dev/null; echo $?; done`}, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{itsIn, itsOut, os.Stderr},
	})
	if err == nil {
		err = s.Confirm()
	}
	if err != nil {
		t.Fatal(err)
	}
	itsIn.Close()
	itsOut.Close()
	answers := bufio.NewReader(out)
	expect := func(file, want string) {
		t.Helper()
		if _, err := io.WriteString(in, file+"\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := answers.ReadString('\n'); err != nil || got != want+"\n" {
			t.Errorf("%s: status %q, %v; want %s", file, got, err, want)
		}
	}
	const full, zero = "/dev/full", "/dev/zero"
	pid := s.Process.Pid
	if !Exchangeable(pid, full) || Exchangeable(pid, zero) || Exchangeable(os.Getpid(), full) {
		t.Error("of the two, only the hidden one can be opened to it")
	}
	expect(full, "2")
	expect(zero, "0")
	for range 2 {
		for range 2 { // when it is done, nothing more is done
			if err := Exchange(pid, []string{full}, []string{zero}); err != nil {
				t.Fatal(err)
			}
		}
		expect(full, "0")
		expect(zero, "2")
		if err := Exchange(pid, []string{zero}, []string{full}); err != nil {
			t.Fatal(err)
		}
		expect(full, "2")
		expect(zero, "0")
	}
	for _, file := range []string{full, zero} {
		if f, err := os.Open(file); err != nil {
			t.Errorf("outside: %v", err)
		} else {
			f.Close()
		}
	}
	in.Close()
	if _, err := s.Process.Wait(); err != nil {
		t.Error(err)
	}
	if err := Exchange(pid, nil, nil); err == nil {
		t.Error("a process that has ended has no namespace")
	}
}
