// Package systemd is what the daemon needs to be a service: the unit, and the protocol to say that it is ready and
// alive.
package systemd

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

//go:embed lgpud.service
var unit string

// Unit is the service that runs the program at a path, for /etc/systemd/system/lgpud.service.
func Unit(program string) string {
	// Specifiers and variables are for systemd to expand; what has blanks is quoted.
	program = strings.NewReplacer(`%`, `%%`, `$`, `$$`, `\`, `\\`, `"`, `\"`).Replace(program)
	if strings.ContainsAny(program, " \t'") {
		program = `"` + program + `"`
	}
	return strings.ReplaceAll(unit, "@lgpu@", program)
}

// Group makes the group whose members are administrators, for /usr/lib/sysusers.d/lgpu.conf.
//
//go:embed sysusers.conf
var Group string

// UnreadableState is the exit status of a daemon whose state file is damaged or of a later version, after which Unit does
// not start it again by itself (EX_CONFIG of sysexits).
const UnreadableState = 78

// Messages of the protocol.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	watchdog = "WATCHDOG=1"
)

// Notify tells the service manager something, such as Ready; without one it does nothing.
func Notify(message string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// Package net reads a leading @ as an abstract address, as systemd writes it.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(message)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// Watchdog tells the service manager that the daemon is alive as long as alive returns, twice in the time that it
// waits, until ctx ends. It returns at once where nobody waits.
func Watchdog(ctx context.Context, alive func()) error {
	period, err := watchdogPeriod(os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID"))
	if err != nil || period == 0 {
		return err
	}
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			alive()
			if err := Notify(watchdog); err != nil {
				return err
			}
		}
	}
}

// watchdogPeriod is half of what the manager waits, 0 if it does not wait for this process.
func watchdogPeriod(usec, pid string) (time.Duration, error) {
	if usec == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return 0, nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(usec), 10, 63)
	if err != nil || n == 0 || n > uint64(24*time.Hour/time.Microsecond) {
		return 0, errors.New("WATCHDOG_USEC is not a number of microseconds")
	}
	return time.Duration(n) * time.Microsecond / 2, nil
}
