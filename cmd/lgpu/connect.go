package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/internal/rundir"
)

// socketFlag is the option --socket, which every command that talks to a daemon has.
func socketFlag(c *cobra.Command) {
	c.Flags().String("socket", "", "talk to the daemon at `PATH`, and to no other")
}

// namedSocket is the socket that the user names, empty for none.
func namedSocket(c *cobra.Command) string {
	if f := c.Flags().Lookup("socket"); f != nil && f.Value.String() != "" {
		return f.Value.String()
	}
	return os.Getenv(api.EnvSocket)
}

// need says what a command wants of a daemon.
type need int

const (
	toLook    need = iota // at what there is: where no daemon has ever kept anything, none is started
	toAsk                 // a daemon that answers, started if there is none
	toChange              // one that obeys this user, started if there is none
	toCommand             // one that obeys this user and runs already
	toFind                // one that runs already
)

// connect returns a connection to the daemon that a command is for. With toLook it may be nil: there is nothing to see.
func connect(c *cobra.Command, n need) (*api.Conn, error) { return connectFor(c, n, false) }

// connectFor is connect for a command that may be private: see api.Options.
func connectFor(c *cobra.Command, n need, private bool) (*api.Conn, error) {
	line := progress.Start(c.ErrOrStderr(), "waiting for a daemon")
	defer line.Done()
	o := api.Options{Socket: namedSocket(c), Private: private, Change: n == toChange || n == toCommand, Waiting: func(socket string) {
		line.Print(c.ErrOrStderr(), fmt.Sprintf("lgpu: the daemon at %s has not answered for a second; waiting", socket))
	}}
	start, err := onDemand()
	if err != nil {
		return nil, err
	}
	inside := os.Getenv(tenantEnvironment) != "" // a tenant's child is no daemon: it would be limited like a tenant
	if !inside && (n == toAsk || n == toChange || n == toLook && kept()) {
		o.Start = start
	}
	conn, err := api.Dial(c.Context(), o)
	if n == toLook && o.Socket == "" && errors.Is(err, api.ErrNoDaemon) {
		return nil, nil
	}
	if err != nil {
		return nil, explain(err)
	}
	return conn, nil
}

// talk calls f with a connection to the daemon that a command is for, which is closed then, and explains f's error.
func talk(c *cobra.Command, n need, f func(*api.Conn) error) error {
	conn, err := connect(c, n)
	if err != nil {
		return err
	}
	defer conn.Close()
	return explain(f(conn))
}

// onDemand is the command that becomes a daemon and leaves when it is not needed.
func onDemand() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, failed(fmt.Errorf("find this program: %w", err))
	}
	return []string{self, "daemon", "--on-demand"}, nil
}

// kept reports whether the runtime folder has groups or named lgpus that a daemon would show.
func kept() bool {
	dir, err := rundir.Dir()
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(dir, "state.db"))
	return !errors.Is(err, fs.ErrNotExist)
}

// wrong are the errnos of requests that cannot be granted as they are.
var wrong = map[syscall.Errno]bool{
	syscall.EINVAL: true, syscall.ERANGE: true, syscall.EOVERFLOW: true, syscall.ENODEV: true, syscall.ENOENT: true,
	syscall.EEXIST: true, syscall.EOPNOTSUPP: true, syscall.ENAMETOOLONG: true, syscall.EACCES: true, syscall.E2BIG: true,
}

// fieldOption is the option by which a command gives a field of its request. With named the error has its value too.
type fieldOption struct {
	name  string
	named bool
}

// fieldOptions are the options of lgpu run and lgpu create, by the field that the daemon names.
var fieldOptions = map[string]fieldOption{
	"memory.max": {"memory", true}, "compute.max": {"compute", true}, "compute.min": {"min", true},
	"lgpu": {"units", true}, "lgpu.weight": {"weight", true}, "lgpu.priority": {"priority", true},
	"host.max": {"host-memory", true}, "gang": {"gang", true}, "group": {"group", true},
	"devices": {"device", false}, "spatial": {"spatial", false}, "memory_overcommit": {"overcommit", false},
	"memory.overcommit": {"overcommit", false}, "sim": {"sim", false},
}

// explainOptions is explain for a command whose options are the fields of its request: an error about a field that was
// typed is one about the option.
func explainOptions(c *cobra.Command, err error) error {
	var call *api.Error
	if errors.As(err, &call) && call.Reason != "" {
		o, known := fieldOptions[call.Field]
		if f := c.Flags().Lookup(o.name); known && f != nil && (f.Changed || !o.named) {
			call.Text = "--" + o.name
			if o.named {
				call.Text += " " + f.Value.String()
			}
			call.Text += ": " + call.Reason
		}
	}
	return explain(err)
}

// noSuch ends the daemon's errors about a path that is none, and treeHint is what to do.
const (
	noSuch   = "there is no such group or lgpu"
	treeHint = "lgpu ps --tree shows what there is"
)

// explain gives an error of the API the status and the hint that it ends lgpu with.
func explain(err error) error {
	var own *exit
	if err == nil || errors.As(err, &own) {
		return err
	}
	e := &exit{status: statusFailed, err: err}
	var call *api.Error
	if errors.As(err, &call) {
		e.hint = call.Hint
		// The number is for who reads no text: a status of the shell, a write to a file.
		call.Text = strings.TrimSuffix(call.Text, " ("+call.Errno.Error()+")")
		// Without a device of any name it is the machine that lacks one.
		lacks := call.Errno == syscall.ENODEV && call.Field == ""
		if call.Errno == syscall.ENOENT && call.Field == "" && e.hint == "" && strings.HasSuffix(call.Text, noSuch) {
			e.hint = treeHint
		}
		if wrong[call.Errno] && !lacks && !errors.Is(err, api.ErrNoDaemon) {
			e.status = statusUsage
		}
		if errors.Is(err, context.Canceled) {
			e.status, e.err = 128+int(syscall.SIGINT), nil
		}
	}
	return e
}
