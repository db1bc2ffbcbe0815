package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/daemon/cdi"
	"github.com/lgpu/lgpu/daemon/conf"
	"github.com/lgpu/lgpu/daemon/metrics"
	"github.com/lgpu/lgpu/daemon/server"
	"github.com/lgpu/lgpu/daemon/store"
	"github.com/lgpu/lgpu/daemon/systemd"
	"github.com/lgpu/lgpu/daemon/watch"
	"github.com/lgpu/lgpu/daemon/web"
	"github.com/lgpu/lgpu/internal/assets"
	"github.com/lgpu/lgpu/internal/logs"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/internal/rundir"
	"github.com/lgpu/lgpu/policy/limits"
)

// How long a daemon that is started by need stays without work, and how long it waits for one that is just leaving.
const (
	defaultIdle = time.Minute
	succession  = 10 * time.Second
)

func daemonCommand() *cobra.Command {
	var d daemonOptions
	c := &cobra.Command{
		Use:   "daemon [options]",
		Short: "Run the daemon that manages logical GPUs",
		Long: `Run the daemon of this user's runtime folder in the foreground, until INT or
TERM. It keeps the tree of limits, decides which program uses a device next, and
answers the other commands. You need not start it: lgpu run starts one, which
ends after a minute without work (--on-demand). Start it yourself for lgpus of
all users (as root; lgpu daemon unit prints a unit for systemd), for metrics and
for the page.

Programs outlive the daemon: they keep their limits and connect to the next one.

Root, the daemon's user, and members of the group lgpu may change everything.
Every other user has a directory of her own in the tree, in which she may do
everything. --config FILE says otherwise: keys and defaults are printed by
lgpu daemon config. Metrics and page are served to this machine only, unless
--page-remote is given. lgpu page prints the page's address. Both addresses also
answer /healthz (200 if the daemon runs) and /readyz (503, with the reasons, if
it cannot serve programs).

Exit status: 0 if it was told to end or was idle; 2 if an option is wrong; 1 if
it cannot serve, for example because another daemon uses the runtime folder.
Under systemd 78 if state.db is damaged: systemd then does not start it again
before somebody has looked.

Files, in /run/lgpu (root), else $XDG_RUNTIME_DIR/lgpu, else /tmp/lgpu-UID:

  lgpud.sock    what the other commands talk to
  lgpud.system  reserves the machine's devices for its system daemon
  tenant.sock   what programs in lgpus talk to
  state.db      groups, limits and named lgpus
  state.events  what happened: see lgpu events
  web.key       the key of the page's tokens
  tree          the tree of limits, as files
  lgpud.log     the log of a daemon that a command has started

Environment: LGPU_RUNTIME_DIR names another folder. Through NOTIFY_SOCKET the
daemon tells systemd when it is ready and when it ends.`,
		Example: `  lgpu daemon --metrics 127.0.0.1:9464 --page 127.0.0.1:9465
  lgpu daemon --dir /run/lgpu --store /var/lib/lgpu/state.db --police stop
  lgpu daemon stop`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE:                  func(c *cobra.Command, _ []string) error { return d.run(c) },
	}
	d.register(c.Flags())
	c.AddCommand(daemonStatusCommand(), daemonStopCommand(), unitCommand(), configCommand(), helperCommand())
	return c
}

// register adds the options.
func (d *daemonOptions) register(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&d.dir, "dir", "", "runtime `FOLDER`")
	f.StringVar(&d.store, "store", "", "`FILE` for state that survives the daemon (default: state.db in the runtime folder)")
	f.StringVar(&d.file, "config", "", "`FILE` that says who may do what (default: "+conf.Path+" for the system's daemon)")
	f.StringVar(&d.group, "group", "", "`GROUP` whose members are administrators (default: that of --config, or lgpu if it exists)")
	f.DurationVar(&d.slice, "slice", 0, "`LENGTH` of a slice where programs share a device, 2ms to 50ms")
	f.StringVar(&d.guests, "guests", guestsAuto,
		"let programs that pause in beside the one that has the device: `WHEN` is auto (where the hardware can) or off")
	f.StringVar(&d.police, "police", string(daemon.PoliceReport),
		"what to do about use beyond what is allowed: `HOW` is report, stop or stop-strangers")
	f.StringVar(&d.mount, "mount", string(daemon.MountAuto), "show the tree as files: `WHEN` is auto, on or off")
	f.StringVar(&d.cdi, "cdi-dir", "",
		"offer lgpus to containers by specifications in `FOLDER`, or off (default: "+cdi.DynamicDir+" for the system's daemon)")
	f.StringVar(&d.metrics, "metrics", "", "serve Prometheus metrics at `ADDRESS`")
	f.BoolVar(&d.hami, "metrics-hami", false, "with --metrics or --page: also under HAMi's names")
	f.StringVar(&d.page, "page", "", "serve the page at `ADDRESS`")
	f.BoolVar(&d.remote, "page-remote", false, "allow addresses that other machines can reach")
	f.StringArrayVar(&d.hosts, "page-host", nil, "`NAME` by which page and metrics may be requested beside localhost; repeat")
	f.StringVar(&d.log, "log", "info", "what to log: `LEVEL` is debug, info, warn or error")
	f.DurationVar(&d.idle, "idle", 0, "end after `TIME` without use; 0 means never (with --on-demand: 1m)")
	f.BoolVar(&d.onDemand, "on-demand", false, "run in the background and end when idle; do nothing if another daemon runs")
	d.inner(f)
}

// inner adds the options of the second and third process that --on-demand takes, which nobody types.
func (d *daemonOptions) inner(f *pflag.FlagSet) {
	f.BoolVar(&d.detached, "detached", false, "detach from the parent process, and watch the daemon")
	f.BoolVar(&d.watched, "watched", false, "run as the watched daemon")
	for _, name := range []string{"detached", "watched"} {
		f.Lookup(name).Hidden = true
	}
}

func unitCommand() *cobra.Command {
	var group bool
	c := &cobra.Command{
		Use:   "unit [--group]",
		Short: "Print a unit that makes the daemon a service of systemd",
		Long: `Print a unit that makes the daemon a service of systemd for all users of the
machine. The unit starts this program at its present path. With --group, print
the file that creates the group lgpu, whose members are administrators.`,
		Example: `  lgpu daemon unit > /etc/systemd/system/lgpud.service
  lgpu daemon unit --group > /usr/lib/sysusers.d/lgpu.conf`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return failed(fmt.Errorf("find this program: %w", err))
			}
			text := systemd.Unit(self)
			if group {
				text = systemd.Group
			}
			return say(c.OutOrStdout(), text)
		},
	}
	c.Flags().BoolVar(&group, "group", false, "print the file that creates the group")
	return c
}

func configCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "config",
		Short: "Print an example of the configuration, with every key",
		Long: `Print an example of the configuration, which says who may do and see what. It
has every key with its default and what it means. The system's daemon reads it
from ` + conf.Path + `, others only where --config names it.`,
		Example:               "  lgpu daemon config > " + conf.Path,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			return say(c.OutOrStdout(), conf.Example)
		},
	}
}

func daemonStopCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "stop",
		Short: "End the daemon; programs go on within their limits",
		Long: `End the daemon of this user, or the system's, and wait until it has ended.
Programs in lgpus go on within their limits and connect to the next daemon,
which the next lgpu run starts.

A machine's devices stay reserved for its system daemon when that is killed,
restarted or stopped by systemd: lgpu run waits 5 seconds for it, and is then
refused. This command ends that, also where no daemon runs any more, and users
have daemons of their own again.

Exit status: 0, also if none runs; 1 if it refuses this user.`,
		DisableFlagsInUseLine: true,
		Args:                  noArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			conn, err := connect(c, toCommand)
			var e *exit
			if errors.As(err, &e) && errors.Is(e.err, api.ErrNoDaemon) {
				return unreserve(namedSocket(c))
			}
			if err != nil {
				return err
			}
			defer conn.Close()
			line := progress.Start(c.ErrOrStderr(), "waiting for the daemon's end")
			defer line.Done()
			return explain(stopDaemon(c.Context(), conn, &api.StopRequest{}))
		},
	}
	socketFlag(c)
	return c
}

// unreserve lets users have daemons of their own where the one that a command is for does not run: the one at socket, or
// if that is empty this user's or the system's.
func unreserve(socket string) error {
	dir := filepath.Dir(socket)
	if socket == "" && os.Getenv(api.EnvDir) == "" {
		dir = filepath.Dir(api.System)
	}
	if !systemFolder(dir) || !rundir.Reserved(dir) {
		return nil
	}
	err := rundir.Unreserve(dir)
	if errors.Is(err, fs.ErrPermission) {
		return &exit{status: statusFailed, err: errors.New("the system's daemon does not run, and only root lets users have daemons " +
			"of their own")}
	}
	if err != nil {
		return failed(err)
	}
	return nil
}

// stopDaemon ends a daemon and waits for its end.
func stopDaemon(ctx context.Context, conn *api.Conn, how *api.StopRequest) error {
	pid := int(conn.Daemon.GetPid())
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil && err != unix.ESRCH {
		return fmt.Errorf("watch daemon %d: %w", pid, err)
	}
	if _, err := conn.Stop(ctx, how); err != nil && !errors.Is(err, api.ErrGone) {
		return err
	}
	if process < 0 {
		return nil
	}
	defer unix.Close(process)
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, -1); err != unix.EINTR {
			return err
		}
	}
}

// Choices of --guests.
const (
	guestsAuto = "auto"
	guestsOff  = "off"
)

// daemonOptions are what the command line says about a daemon, and what it serves with.
type daemonOptions struct {
	dir, store         string
	file, group        string
	police, mount, log string
	guests, cdi        string
	metrics, page      string
	hosts              []string
	slice, idle        time.Duration
	hami, remote       bool
	onDemand           bool
	detached, watched  bool
}

func (d *daemonOptions) run(c *cobra.Command) error {
	config, err := d.config(c)
	if err != nil {
		return err
	}
	switch {
	case d.watched:
	case d.detached:
		return watchDaemon(config.Log)
	case d.onDemand:
		return detach()
	}
	answer := api.Readiness()
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	err = d.serve(ctx, stop, config, answer)
	if err != nil {
		answer(err)
		if (errors.Is(err, store.ErrDamaged) || errors.Is(err, store.ErrNewer)) && os.Getenv("NOTIFY_SOCKET") != "" {
			return &exit{status: systemd.UnreadableState, err: err}
		}
		if own := (*exit)(nil); errors.As(err, &own) {
			return own
		}
		return failed(err)
	}
	return nil
}

// detach starts this program anew in a session of its own. The program that needed it may end, and signals to that
// program's group do not reach it.
func detach() error {
	self, err := os.Executable()
	if err != nil {
		return failed(fmt.Errorf("find this program: %w", err))
	}
	again := exec.Command(self, append(slices.Clone(os.Args[1:]), "--detached")...)
	again.Stdout, again.Stderr = os.Stdout, os.Stderr
	again.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if ready := os.Getenv(api.EnvReady); ready == "3" {
		again.ExtraFiles = []*os.File{os.NewFile(3, "ready")}
	}
	if err := again.Start(); err != nil {
		return failed(fmt.Errorf("start the daemon: %w", err))
	}
	return nil
}

// watchDaemon runs the daemon proper and starts it anew when it hangs, until it ends by itself.
func watchDaemon(log *slog.Logger) error {
	self, err := os.Executable()
	if err != nil {
		return failed(fmt.Errorf("find this program: %w", err))
	}
	var ready *os.File // for the first daemon: somebody waits for it
	if os.Getenv(api.EnvReady) == "3" {
		ready = os.NewFile(3, "ready")
		syscall.CloseOnExec(3)
	}
	err = watch.Keep(func(pulse *os.File) (*exec.Cmd, error) {
		c := exec.Command(self, append(slices.Clone(os.Args[1:]), "--watched")...)
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		c.Env = append(os.Environ(), watch.Env+"=3", api.EnvReady+"=")
		c.ExtraFiles = []*os.File{pulse}
		if ready != nil {
			c.Env = append(c.Env, api.EnvReady+"=4")
			c.ExtraFiles = append(c.ExtraFiles, ready)
			defer func() { ready.Close(); ready = nil }()
		}
		if err := c.Start(); err != nil {
			return nil, fmt.Errorf("start the daemon: %w", err)
		}
		return c, nil
	}, watch.Patience, log)
	var ended *exec.ExitError
	if errors.As(err, &ended) { // it has said why
		return &exit{status: max(ended.ExitCode(), 1)}
	}
	if err != nil {
		return failed(err)
	}
	return nil
}

// config reads the options.
func (d *daemonOptions) config(c *cobra.Command) (daemon.Config, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(d.log)); err != nil {
		return daemon.Config{}, usage("levels are debug, info, warn and error", "--log %q: there is no such level", d.log)
	}
	if d.slice != 0 && (d.slice < 2*time.Millisecond || d.slice > 50*time.Millisecond) {
		return daemon.Config{}, usage("", "--slice %v: it must be 2ms to 50ms", d.slice)
	}
	if d.idle < 0 {
		return daemon.Config{}, usage("0 means never", "--idle %v: it must be 0 or more", d.idle)
	}
	police, mount := daemon.Policy(d.police), daemon.Mount(d.mount)
	if !slices.Contains([]daemon.Policy{daemon.PoliceReport, daemon.PoliceStop, daemon.PoliceStopStrangers}, police) {
		return daemon.Config{}, usage("policies are report, stop and stop-strangers", "--police %q: there is no such policy", d.police)
	}
	if !slices.Contains([]daemon.Mount{daemon.MountAuto, daemon.MountOn, daemon.MountOff}, mount) {
		return daemon.Config{}, usage("it is auto, on or off", "--mount %q: there is no such choice", d.mount)
	}
	if !slices.Contains([]string{guestsAuto, guestsOff}, d.guests) {
		return daemon.Config{}, usage("it is auto or off", "--guests %q: there is no such choice", d.guests)
	}
	if d.hami && d.metrics == "" && d.page == "" {
		return daemon.Config{}, usage("such as: lgpu daemon --metrics 127.0.0.1:9464 --metrics-hami",
			"--metrics-hami: it needs --metrics or --page")
	}
	if d.onDemand && !c.Flags().Changed("idle") {
		d.idle = defaultIdle
	}
	self, err := os.Executable()
	if err != nil {
		return daemon.Config{}, failed(fmt.Errorf("find this program: %w", err))
	}
	if d.dir != "" {
		if err := os.Setenv(api.EnvDir, d.dir); err != nil { // what the daemon starts is to look there too
			return daemon.Config{}, failed(err)
		}
	}
	dir, err := rundir.Dir()
	if err != nil {
		return daemon.Config{}, failed(err)
	}
	rights, said, err := d.rights(dir)
	if err != nil {
		return daemon.Config{}, err
	}
	containers, err := d.containers(dir, self)
	if err != nil {
		return daemon.Config{}, err
	}
	lines := slog.NewTextHandler(output(filepath.Join(dir, api.Log)), &slog.HandlerOptions{Level: level})
	return daemon.Config{
		Dir: dir, State: d.store, Version: version(),
		Log:        slog.New(logs.Limit(lines)),
		SimCommand: []string{self, "sim"}, Mount: mount, Police: police, Idle: d.idle, Slice: d.slice,
		NoGuests: d.guests == guestsOff, Rights: rights, Places: said.Places, Claim: !systemFolder(dir),
		System: api.System, Patience: said.Patience, Copies: said.Copies, Dmem: said.Dmem,
		Containers: containers, CheckpointHelper: checkpointHelper,
	}, nil
}

// cdiOff is the value of --cdi-dir with which containers are offered nothing.
const cdiOff = "off"

// containers says how lgpus are offered to containers by the daemon of a runtime folder.
func (d *daemonOptions) containers(dir, self string) (daemon.Containers, error) {
	specs := d.cdi
	if specs == "" && systemFolder(dir) {
		specs = cdi.DynamicDir
	}
	if specs == "" || specs == cdiOff {
		return daemon.Containers{}, nil
	}
	specs, err := filepath.Abs(specs)
	if err != nil {
		return daemon.Containers{}, failed(err)
	}
	libs, err := assets.Install()
	if err != nil {
		if d.cdi == "" { // nobody has asked for it
			warn(fmt.Errorf("containers are offered no lgpus: %w", err))
			return daemon.Containers{}, nil
		}
		return daemon.Containers{}, failed(err)
	}
	tag := sha256.Sum256([]byte(dir))
	return daemon.Containers{
		Specs: cdi.Folder{Dir: specs, Tag: hex.EncodeToString(tag[:4])}, Hook: append([]string{self}, hookArguments...),
		Interposer: libs.Interposer, Sim: libs.SimDir, Libraries: filepath.Join(libs.Dir, "containers"),
	}, nil
}

// systemFolder reports whether a runtime folder is the system daemon's.
func systemFolder(dir string) bool { return dir == filepath.Dir(api.System) }

// rights are what the configuration says about who may do what; the rest of what it says comes along. Only
// the system's daemon reads one without being told.
func (d *daemonOptions) rights(dir string) (limits.Rights, conf.Config, error) {
	file := d.file
	if file == "" && systemFolder(dir) {
		file = conf.Path
	}
	said, err := conf.Read(file)
	if err == nil && d.file != "" {
		if _, err = os.Stat(file); err != nil { // what was named is to be there
			err = fmt.Errorf("--config: %w", err)
		}
	}
	if err != nil {
		e := &exit{status: statusUsage, err: err}
		var line *conf.Error
		if errors.As(err, &line) {
			e.hint = line.Hint()
		}
		return limits.Rights{}, conf.Config{}, e
	}
	if d.group != "" {
		said.Admins = d.group
	}
	admins, err := conf.Group(said.Admins)
	if err != nil {
		return limits.Rights{}, conf.Config{}, failed(err)
	}
	return limits.Rights{Admins: admins, Quota: said.Quota, Others: said.Others}, said, nil
}

// output is where the log goes: standard error, which for a daemon that was started by need is the file at path, and
// changed when that is large.
func output(path string) io.Writer {
	file, err := os.Stat(path)
	if err == nil {
		if standard, err := os.Stderr.Stat(); err == nil && os.SameFile(file, standard) {
			return logs.NewStandard(path)
		}
	}
	return os.Stderr
}

// serve is the daemon from its start to its end.
func (d *daemonOptions) serve(ctx context.Context, stop func(), config daemon.Config, answer func(error)) (err error) {
	socket := filepath.Join(config.Dir, api.Socket)
	n, err := d.open(ctx, config, socket)
	if err != nil {
		return err
	}
	if n == nil { // somebody else serves
		answer(nil)
		return nil
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	more, page, err := d.faces(n, config)
	if err != nil {
		return err
	}
	if systemFolder(config.Dir) && d.idle == 0 { // one that leaves when it is idle is no loss to anybody
		if err := rundir.Reserve(config.Dir); err != nil {
			return err
		}
	}
	told := func() { // by an administrator, unlike by a signal
		warn(rundir.Unreserve(config.Dir))
		stop()
	}
	s, err := server.New(n, server.Options{Stop: told, Log: config.Log, Page: page})
	if err != nil {
		return err
	}
	listener, err := server.Listen(socket)
	if err != nil {
		return err
	}
	// What serves ends before the daemon does, and the daemon when what serves fails.
	serving, end := context.WithCancelCause(context.Background())
	faces := []func(context.Context) error{
		func(ctx context.Context) error { return s.Serve(ctx, listener) },
		func(ctx context.Context) error { return systemd.Watchdog(ctx, func() { n.Snapshot() }) },
		func(ctx context.Context) error { return watch.Pulse(ctx, func() { n.Snapshot() }) },
	}
	faces = append(faces, more...)
	ended := make(chan error, len(faces))
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	for _, serve := range faces {
		go func() {
			err := serve(serving)
			if err != nil {
				cancel()
			}
			ended <- err
		}()
	}
	answer(nil)
	warn(systemd.Notify(systemd.Ready))
	err = n.Run(running)
	warn(systemd.Notify(systemd.Stopping))
	end(nil)
	for range faces {
		err = errors.Join(err, <-ended)
	}
	return err
}

// open opens the daemon. A daemon that was started by need waits for one that is leaving; it returns nil if another
// serves. Any other one takes the place of one that was started by need, if that is in nobody's use.
func (d *daemonOptions) open(ctx context.Context, config daemon.Config, socket string) (*daemon.Daemon, error) {
	n, err := daemon.Open(config)
	if !errors.Is(err, daemon.ErrRunning) {
		return n, err
	}
	if !d.onDemand {
		if err := relieve(ctx, socket, err); err != nil {
			return nil, err
		}
	}
	deadline := time.Now().Add(succession)
	for {
		n, err := daemon.Open(config)
		if err == nil || !errors.Is(err, daemon.ErrRunning) || time.Now().After(deadline) {
			return n, err
		}
		if d.onDemand {
			if conn, err := api.Dial(ctx, api.Options{Socket: socket}); err == nil {
				return nil, conn.Close()
			}
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// relieve ends the daemon at socket if it was started by need and nobody uses its lgpus. Else it returns the error running
// with which that daemon was found, or says what is to be done.
func relieve(ctx context.Context, socket string, running error) error {
	conn, err := api.Dial(ctx, api.Options{Socket: socket})
	if errors.Is(err, api.ErrNoDaemon) { // it is about to begin, or to end
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: %w", running, err)
	}
	defer conn.Close()
	if conn.Daemon.GetIdleNs() == 0 {
		return running
	}
	err = stopDaemon(ctx, conn, &api.StopRequest{Unused: true})
	if errors.Is(err, syscall.EBUSY) {
		return &exit{status: statusFailed, err: fmt.Errorf("%w, which a command has started; programs use its lgpus", running),
			hint: "when they have ended, or to leave them to their limits: lgpu daemon stop"}
	}
	return err
}

// faces are what else the daemon shows itself by, and the addresses of the page for a user, nil where there is no page.
func (d *daemonOptions) faces(n *daemon.Daemon, config daemon.Config,
) (faces []func(context.Context) error, urls func(limits.Author) []string, err error) {
	if d.metrics == "" && d.page == "" {
		return nil, nil, nil
	}
	keys := filepath.Join(config.Dir, daemon.StateFile)
	if config.State != "" {
		keys = config.State
	}
	keys = filepath.Dir(keys)
	collector := metrics.New(n, metrics.Options{HAMi: d.hami})
	faces = append(faces, func(ctx context.Context) error {
		if err := collector.Run(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, daemon.ErrClosed) {
			return fmt.Errorf("metrics: %w", err)
		}
		return nil
	})
	if d.metrics != "" {
		serve, err := d.serveMetrics(n, collector.Handler(), keys, config.Log)
		if err != nil {
			return nil, nil, fmt.Errorf("--metrics %s: %w", d.metrics, err)
		}
		faces = append(faces, serve)
	}
	if d.page != "" {
		l, err := web.Listen(d.page, d.remote)
		if err != nil {
			return nil, nil, fmt.Errorf("--page %s: %w", d.page, err)
		}
		page, err := web.New(n, web.Options{
			Keys: keys, Tree: n.Tree(), Metrics: collector.Handler(), Hosts: d.hosts, Log: config.Log,
			Write: func(_ context.Context, by limits.Author, path string, files map[string]string) error {
				return write(n, by, path, files)
			},
		})
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("--page %s: %w", d.page, err), l.Close())
		}
		if isTerminal(os.Stderr) {
			fmt.Fprintln(os.Stderr, "page at", page.URL(l.Addr(), uint32(os.Geteuid()))) // with the token, which must not be in a log
		} else {
			config.Log.Info("page", "url", fmt.Sprintf("http://%s/", l.Addr()), "token", "lgpu page")
		}
		urls = func(by limits.Author) []string { return []string{page.URL(l.Addr(), by.UID)} }
		faces = append(faces, func(ctx context.Context) error { return page.Serve(ctx, l) })
	}
	return faces, urls, nil
}

// serveMetrics listens for who collects metrics.
func (d *daemonOptions) serveMetrics(n *daemon.Daemon, h http.Handler, keys string, log *slog.Logger,
) (func(context.Context) error, error) {
	h, err := web.Metrics(h, n.Tree(), keys)
	if err != nil {
		return nil, err
	}
	l, err := web.Listen(d.metrics, d.remote)
	if err != nil {
		return nil, err
	}
	log.Info("metrics", "url", fmt.Sprintf("http://%s/metrics", l.Addr()))
	guarded := web.Guard(h, d.hosts)
	return func(ctx context.Context) error { return web.ServeHTTP(ctx, l, guarded, log) }, nil
}

// write writes files of a directory in somebody's name, all of them or none.
func write(n *daemon.Daemon, by limits.Author, path string, files map[string]string) error {
	var writes []limits.Assignment
	for name, text := range files {
		writes = append(writes, limits.Assignment{File: name, Text: text})
	}
	slices.SortFunc(writes, func(a, b limits.Assignment) int { return strings.Compare(a.File, b.File) })
	return n.Tree().By(by).Update(path, writes)
}

// warn says that something went wrong which does not stop the daemon.
func warn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "lgpu: warning:", err)
	}
}
