package systemd

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func listen(t *testing.T, name string) *net.UnixConn {
	t.Helper()
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	return l
}

func read(t *testing.T, l *net.UnixConn) string {
	t.Helper()
	b := make([]byte, 100)
	if err := l.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := l.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify(Ready); err != nil {
		t.Errorf("without a manager: %v", err)
	}
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@lgpu-test-" + strconv.Itoa(os.Getpid())} {
		l := listen(t, name)
		if err := Notify(Ready); err != nil {
			t.Fatal(err)
		}
		if got := read(t, l); got != Ready {
			t.Errorf("%q", got)
		}
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "none"))
	if err := Notify(Ready); err == nil {
		t.Error("a manager that is not there was notified")
	}
}

func TestWatchdog(t *testing.T) {
	l := listen(t, filepath.Join(t.TempDir(), "notify"))
	t.Setenv("WATCHDOG_USEC", "2000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	asked := 0
	go func() { done <- Watchdog(ctx, func() { asked++ }) }()
	for range 3 {
		if got := read(t, l); got != watchdog {
			t.Errorf("%q", got)
		}
	}
	cancel()
	if err := <-done; err != nil || asked < 3 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	for usec, pid := range map[string]string{"": "", "2000": "1"} {
		if period, err := watchdogPeriod(usec, pid); period != 0 || err != nil {
			t.Errorf("%q, %q: %v, %v", usec, pid, period, err)
		}
	}
	for _, usec := range []string{"x", "0", "-1", "99999999999999"} {
		if _, err := watchdogPeriod(usec, ""); err == nil {
			t.Errorf("WATCHDOG_USEC=%s is accepted", usec)
		}
	}
}

func TestUnit(t *testing.T) {
	for _, line := range []string{"Type=notify", "KillMode=process",
		"RestartPreventExitStatus=" + strconv.Itoa(UnreadableState)} {
		if !strings.Contains(Unit("/usr/bin/lgpu"), line+"\n") {
			t.Errorf("the unit lacks %s", line)
		}
	}
	if !strings.Contains(Group, "g lgpu") {
		t.Error("no group is made")
	}
}

// The unit starts the program that printed it, wherever that is.
func TestUnitNamesTheProgram(t *testing.T) {
	for program, want := range map[string]string{
		"/opt/bin/lgpu": "ExecStart=/opt/bin/lgpu daemon ", "/a b/100%/lgpu": `ExecStart="/a b/100%%/lgpu" daemon `,
	} {
		if text := Unit(program); !strings.Contains(text, "\n"+want) || strings.Contains(text, "@lgpu@") {
			t.Errorf("for %s there is no %s in\n%s", program, want, text)
		}
	}
}
