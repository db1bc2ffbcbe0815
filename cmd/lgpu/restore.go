package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/checkpoint/criu"
	"github.com/lgpu/lgpu/checkpoint/image"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/internal/assets"
	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/internal/fence"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/policy/checkpoint"
)

func restoreCommand() *cobra.Command {
	var r restoring
	c := &cobra.Command{
		Use:   "restore [options] DIR",
		Short: "Start a program again from an image of lgpu checkpoint",
		Long: `Start the program that is in the image DIR where it was, in an lgpu with the
limits that it had, and wait for its end as lgpu run does: it has the standard
streams of this command, gets its signals, and gives it its exit status. The
image stays, and can be restored again when the program has ended: its processes
have the numbers that they had. A program that had a terminal has that of this
command, or what stands between its input and output where it has none.

An image that this machine did not sign is refused, as it is run as root. So is
one whose devices are not here, or whose libraries or files have changed. Where
the lgpu or the device has no room for the program, it is ended.

Exit status: that of the program; 128+N if signal N killed it, 2 if an option is
wrong, 1 if it was not restored.`,
		Example: `  lgpu restore /var/images/monday
  lgpu restore --device GPU-8c9b2f41 --name train-2 /var/images/monday`,
		DisableFlagsInUseLine: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("lgpu restore /var/images/monday", "restore: one image is to be named")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return r.run(c, args[0]) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringSliceVar(&r.devices, "device", nil, "devices in place of those that it had, each by index or `UUID`, in their order")
	f.StringVar(&r.name, "name", "", "`NAME` of the lgpu (default: the one that it had)")
	f.DurationVar(&r.timeout, "timeout", 10*time.Minute, "give up after this `TIME`")
	f.BoolVar(&r.phases, "phases", false, "say on standard error how long each phase took")
	f.BoolVar(&r.inTerminal, inTerminalOption, false, "")
	_ = f.MarkHidden(inTerminalOption) // it is there
	keyFlag(c, &r.key)
	f.BoolVar(&r.unsigned, "allow-unsigned", false, "also accept an image that nobody signed")
	f.BoolVar(&r.foreign, "allow-foreign", false, "also accept an image that another machine signed")
	socketFlag(c)
	return c
}

// restoring is one lgpu restore.
type restoring struct {
	devices           []string
	name, key         string
	timeout           time.Duration
	phases            bool
	unsigned, foreign bool
	inTerminal        bool

	line *progress.Line
}

func (r *restoring) run(c *cobra.Command, dir string) error {
	if r.timeout <= 0 {
		return usage("", "--timeout %v: it is not above 0", r.timeout)
	}
	if c.Flags().Changed("name") {
		if err := names.Check(r.name); err != nil {
			return usage("", "--name: %w", err)
		}
	}
	if os.Getenv(tenantEnvironment) != "" {
		return usage("restore it from outside", "this is inside an lgpu already")
	}
	program, err := installedCRIU(c.Context(), "restore")
	if err != nil {
		return err
	}
	trust, err := ownKey(r.key, image.Trust{Unsigned: r.unsigned, Foreign: r.foreign})
	if err != nil {
		return err
	}
	r.line = progress.Start(c.ErrOrStderr(), "restore "+harmless(dir))
	defer r.line.Done()
	s := &restoreStep{restoring: r, criu: program, phases: newPhases(), until: time.Now().Add(r.timeout)}
	defer s.close()
	ctx, stop := s.bounded(c.Context())
	err = s.read(ctx, dir, trust)
	if err != nil && !errors.Is(err, errTerminal) {
		err = s.late(ctx, failed(fmt.Errorf("restore %s: %w", harmless(dir), err)))
	}
	stop()
	if errors.Is(err, errTerminal) {
		r.line.Done()
		return r.again(c.CalledAs())
	} else if err != nil {
		return err
	}
	if err := s.attach(c); err != nil {
		return err
	}
	if err := s.bringNamed(c.Context()); err != nil {
		return err
	}
	one := &child{start: s.start}
	if _, err := runPrograms(s.path(), nil, []*child{one}, func(*child) {}); err != nil {
		var own *exit
		if errors.As(err, &own) {
			return err
		}
		return failed(fmt.Errorf("restore %s: %w", harmless(dir), err))
	}
	return &exit{status: one.status}
}

// restoreStep restores.
type restoreStep struct {
	*restoring
	criu   criu.Program
	phases *phases
	until  time.Time // when it is given up

	image    *image.Image  // until all of it has been read
	files    string        // CRIU's, checked, in a folder of this process
	hold     *os.File      // that folder, locked
	pages    []*criu.Pages // CRIU's files with memory of processes
	memory   *memoryFiles  // with what had left devices; nil if there are none
	named    namedMaker    // of the program's files in memory
	tty      *os.File      // what the program has in the place of its terminal; nil if it had none
	opened   []*os.File    // what of the program's is opened anew here
	program  *imaged
	like     *api.AttachRequest
	about    *image.About
	lgpu     *attached
	libs     assets.Libraries
	inside   *contain.Held // nil for a program that was not contained
	fenced   *fence.Fence
	conn     *api.Conn
	replaces map[string]string // devices that take the place of others
}

// path is that of the lgpu.
func (s *restoreStep) path() string { return s.lgpu.GetPath() }

func (s *restoreStep) close() {
	if s.inside != nil {
		s.inside.Close()
	}
	if s.fenced != nil {
		s.fenced.Close()
	}
	if s.lgpu != nil {
		s.lgpu.Close()
	}
	if s.conn != nil {
		s.conn.Close()
	}
	s.remove()
	s.named.undo()
	s.memory.close()
	for _, f := range s.opened {
		f.Close()
	}
	if s.image != nil {
		s.image.Close() // it has only been read
	}
}

// remove removes the files, which are needed no more once the processes are there.
func (s *restoreStep) remove() {
	_ = closePages(s.pages) // they have only been read
	s.pages = nil
	if s.files != "" {
		_ = os.RemoveAll(s.files) // what stays is the system's to remove, as other temporary files
		s.files = ""
		s.hold.Close()
	}
}

// copiesPrefix begins the names of the folders with copies of CRIU's files, which are as large as the program's memory.
const copiesPrefix = "lgpu-restore-"

// sweepCopies removes those that commands have left which were killed. They are this user's, nobody holds them, and they are not
// just being made.
func sweepCopies() {
	all, _ := os.ReadDir(os.TempDir()) // what cannot be read is left
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), copiesPrefix) {
			continue
		}
		path := filepath.Join(os.TempDir(), e.Name())
		fd, err := unix.Open(path, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && int(st.Uid) == os.Geteuid() && time.Since(time.Unix(st.Mtim.Unix())) > copiesMade &&
			unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(path) // likewise
		}
		unix.Close(fd)
	}
}

// copiesMade is how long a folder may be there before somebody holds it.
const copiesMade = time.Minute

// bounded ends when the time is over, or with a signal.
func (s *restoreStep) bounded(ctx context.Context) (context.Context, func()) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	ctx, cancel := context.WithDeadline(ctx, s.until)
	return ctx, func() { cancel(); stop() }
}

// read reads the image and checks it, all that can be without its lgpu.
func (s *restoreStep) read(ctx context.Context, dir string, trust image.Trust) (err error) {
	i, err := image.Open(dir, trust)
	if err != nil {
		return err
	}
	s.image, s.about = i, &i.About
	if s.program, s.like, err = readImaged(i); err != nil {
		return err
	}
	if err := s.findTTY(); err != nil {
		return err
	}
	if s.libs, err = assets.Install(); err != nil {
		return err
	}
	if s.program.Contained == nil {
		if err := s.program.check(""); err != nil {
			return err
		}
	}
	sweepCopies()
	if s.files, err = os.MkdirTemp("", copiesPrefix); err != nil { // for its owner alone
		return err
	}
	if s.hold, err = os.Open(s.files); err == nil {
		err = unix.Flock(int(s.hold.Fd()), unix.LOCK_SH)
	}
	if err != nil {
		return fmt.Errorf("hold the copies: %w", err)
	}
	if err := i.Extract(ctx, s.files); err != nil {
		return err
	}
	if s.pages, err = readPages(ctx, i, s.files, s.progress("read", s.program.processes(i))); err != nil {
		return err
	}
	s.phases.end("read")
	return nil
}

// attach makes the lgpu, and finds out which device takes the place of which.
func (s *restoreStep) attach(c *cobra.Command) error {
	sim := s.like.GetSim() != ""
	conn, err := connectFor(c, toChange, sim)
	if err != nil {
		return err
	}
	s.like.Path = s.program.Path
	if s.name != "" {
		s.like.Path = at(conn, s.name)
	}
	before := s.like.GetDevices()
	if len(s.restoring.devices) > 0 {
		s.like.Devices = s.restoring.devices
	}
	command, err := onDemand()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	options := api.Options{Socket: namedSocket(c), Private: sim, Change: true, Start: command}
	s.lgpu, err = attach(c.Context(), conn, s.like, options)
	if err != nil {
		return explainOptions(c, err)
	}
	if socket := s.lgpu.Environment[daemon.SocketEnvironment]; socket != s.program.Socket {
		return &exit{status: statusFailed, err: fmt.Errorf("restore: its program looks for the daemon at %s, and this one is at %s",
			s.program.Socket, socket), hint: "LGPU_RUNTIME_DIR=" + filepath.Dir(s.program.Socket) + " lgpu restore …"}
	}
	if s.conn, err = connectFor(c, toChange, sim); err != nil {
		return err
	}
	shown, err := s.conn.Snapshot(c.Context(), &api.SnapshotRequest{})
	if err != nil {
		return explain(err)
	}
	if err := s.match(before, devicesOf(shown, s.like.GetSim())); err != nil {
		return &exit{status: statusFailed, err: fmt.Errorf("restore: %w", err), hint: "lgpu devices lists those that are here; --device names others"}
	}
	if err := s.contain(); err != nil {
		return &exit{status: statusFailed, err: fmt.Errorf("restore: %w", err)}
	}
	s.phases.end("attached")
	return nil
}

// contain builds the namespace for a program that was contained.
func (s *restoreStep) contain() (err error) {
	if s.program.Contained == nil {
		return nil
	}
	f := containFlag{mode: containAuto, typed: func(string) bool { return false }}
	var files []string
	files, s.fenced = f.fenceOff(s.lgpu.Attachment, s.like.GetSim() != "")
	plan, err := contain.Make(contain.Options{
		Interposer: s.libs.Interposer, Dir: s.libs.Contained(), Environment: s.program.Contained.Environment,
		Stamp: s.lgpu.Environment, Hide: files,
	})
	if err == nil {
		s.inside, err = plan.Hold()
	}
	if err != nil {
		return fmt.Errorf("contain the program, as it was: %w", err)
	}
	return s.program.check(s.inside.Root())
}

// match finds out which device takes the place of which: those of the lgpu, in their order, and the others.
func (s *restoreStep) match(before []string, here []image.Device) (err error) {
	wanted := map[string]string{}
	if len(before) != len(s.lgpu.GetDevices()) {
		return fmt.Errorf("its program has %d devices, and the lgpu %d", len(before), len(s.lgpu.GetDevices()))
	}
	for i, d := range s.lgpu.GetDevices() {
		wanted[before[i]] = d.GetUuid()
	}
	if s.replaces, err = checkpoint.Devices(uuids(s.about.Topology), uuids(here), wanted); err != nil {
		return err
	}
	_, err = s.about.Match(here, s.replaces)
	return err
}

func uuids(devices []image.Device) (all []string) {
	for _, d := range devices {
		all = append(all, d.UUID)
	}
	return all
}

// start is the starter of the program: CRIU starts its processes, and the daemon lets them in.
func (s *restoreStep) start(string, []string, *os.ProcAttr) (*os.Process, func() error, error) {
	ctx, stop := s.bounded(context.Background())
	defer stop()
	stream, err := s.conn.Restore(ctx)
	if err == nil {
		err = ignoreEOF(stream.Send(&api.RestoreRequest{Path: s.path(), Clients: s.program.Clients, Devices: s.replaces,
			Files: wantedFiles(s.program.Files)}))
	}
	var reply *api.RestoreReply
	if err == nil {
		reply, err = stream.Recv()
	}
	if err != nil {
		return nil, nil, s.late(ctx, err)
	}
	s.line.Set(0, 0, "processes")
	loading, err := s.load(ctx, reply.GetFiles())
	if err != nil {
		return nil, nil, s.late(ctx, err)
	}
	defer loading.stop()
	root := ""
	if s.inside != nil {
		root = s.inside.Root()
	}
	streams, external, err := s.streams()
	if err == nil {
		err = criu.AllowGrown(s.files, root)
	}
	if err != nil {
		return nil, nil, s.late(ctx, failed(fmt.Errorf("restore: %w", err)))
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, failed(err)
	}
	r := criu.Restore{
		Dir: s.files, Inherit: streams, External: external, TTY: s.tty, Terminal: true,
		Keeper: append([]string{self}, keeperArguments...),
	}
	if s.inside != nil {
		r.Mounts, r.Cgroups = s.inside.PID(), s.fenced.Entries()
	}
	r.Ready = func() error {
		s.phases.end("processes")
		filled, err := fillProcesses(ctx, s.image, s.pages, s.progress("filled", s.program.processes(s.image)))
		if filled {
			s.phases.end("filled")
		}
		if err == nil { // else there is no use in it, and it is stopped
			err = loading.wait()
		}
		if s.memory != nil {
			s.phases.end("loaded")
		}
		return err
	}
	program, err := s.criu.Restore(ctx, r)
	if ended := (*criu.Ended)(nil); errors.As(err, &ended) {
		s.named.keep() // it may have used them
		return nil, nil, &exit{status: ended.Status}
	}
	if err != nil {
		return nil, nil, s.late(ctx, failed(err))
	}
	s.phases.end("started")
	if s.inTerminal { // it has the modes now that the program's own terminal had
		err = errors.Join(plain(s.tty), unix.Close(standInReady))
	}
	if err == nil {
		err = ignoreEOF(stream.Send(&api.RestoreRequest{}))
	}
	s.remove() // while the daemon has its part to do
	for err == nil {
		if reply, err = stream.Recv(); err == nil && reply.GetProgress().GetStage() == "" {
			s.phases.took(reply.GetProgress())
			break
		}
		s.line.Set(0, 0, reply.GetProgress().GetStage())
	}
	if err != nil {
		program.End()
		return nil, nil, s.late(ctx, err)
	}
	program.Commit()
	s.named.keep()
	s.line.Done()
	if s.restoring.phases {
		s.say()
	}
	return program.Process, nil, nil
}

// keeperArguments are those of the hidden command that sees to it that nothing is left of a program if lgpu restore is killed
// before it is in its lgpu.
var keeperArguments = []string{"image", "keeper"}

// keeperCommand is that.
func keeperCommand() *cobra.Command {
	return &cobra.Command{
		Use: keeperArguments[1], Hidden: true, DisableFlagParsing: true,
		Short: "End what a killed lgpu restore has left",
		RunE: func(_ *cobra.Command, args []string) error {
			if err := criu.Keep(args); err != nil {
				return failed(err)
			}
			return nil
		},
	}
}

// loading fills files with what had left devices, while CRIU starts the processes. None of these runs before it is over.
type loading struct {
	stop func() // returns when nothing is written to the files any more
	wait func() error
}

// load begins to fill the files that the daemon has made.
func (s *restoreStep) load(ctx context.Context, made []*api.MemoryFile) (l loading, err error) {
	if len(s.program.Files) == 0 {
		return loading{func() {}, func() error { return nil }}, nil
	}
	if s.memory, err = openFiles(s.image, s.program.Files, made); err != nil {
		return l, failed(err)
	}
	s.phases.end("made")
	progress := s.progress("loaded", s.image.Memory()-s.program.processes(s.image)-namedSize(s.program.Named))
	ctx, cancel := context.WithCancel(ctx)
	g := new(errgroup.Group)
	g.Go(func() error {
		defer s.memory.unmap()
		return s.image.Load(ctx, s.memory.to, progress)
	})
	return loading{stop: func() { cancel(); _ = g.Wait() }, wait: g.Wait}, nil // who stops it has another error
}

// progress shows how many of so many bytes are done.
func (s *restoreStep) progress(what string, of int64) func(bytes int64) {
	done := new(atomic.Int64)
	return func(bytes int64) { measure(s.line, done.Add(bytes), of, what) }
}

// late is err, or that the time is over, or that it is not wanted any more.
func (s *restoreStep) late(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return failed(fmt.Errorf("restore: not within %v; nothing of the program is left", s.timeout))
	case ctx.Err() != nil:
		return failed(errors.New("restore: broken off; nothing of the program is left"))
	}
	return explain(err)
}

// streams are those of this process in the place of those that the program had, and what else is opened anew for it.
func (s *restoreStep) streams() (inherit map[string]*os.File, external []string, err error) {
	own := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	inherit = map[string]*os.File{}
	if s.memory != nil {
		maps.Copy(inherit, s.memory.inherit)
	}
	positions, err := criu.Positions(s.files)
	if err != nil {
		return nil, nil, err
	}
	for _, stream := range s.program.Streams {
		switch {
		case stream.Key == "" || inherit[stream.Key] != nil:
		case stream.Path != "":
			if inherit[stream.Key], err = stream.Open(positions[stream.Key]); err != nil {
				return nil, nil, err
			}
			s.opened = append(s.opened, inherit[stream.Key])
		case stream.FD >= 0 && stream.FD < len(own):
			inherit[stream.Key] = own[stream.FD]
		}
	}
	return inherit, criu.External(s.program.Streams), nil
}

// errTerminal: the program had a terminal, and this command has none to give it.
var errTerminal = errors.New("its program had a terminal")

// findTTY finds what the program gets in the place of its terminal: that of this command, if this one has it wherever the
// program had it among its standard streams, or anywhere if it had it elsewhere.
func (s *restoreStep) findTTY() error {
	own := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	for _, stream := range s.program.Streams {
		if stream.Kind != criu.KindTerminal {
			continue
		}
		if s.inTerminal {
			unix.CloseOnExec(standInReady)
			s.tty = os.Stdin
			return nil
		}
		at := stream.FD
		if at < 0 || at >= len(own) {
			at = slices.IndexFunc(own, isTerminal)
		}
		if at < 0 || !isTerminal(own[at]) {
			return errTerminal
		}
		s.tty = own[at]
	}
	return nil
}

// again restores in a session that has a terminal, by another process of this command.
func (r *restoring) again(name string) error {
	self, err := os.Executable()
	if err != nil {
		return failed(err)
	}
	terminal, err := newStandIn(os.Stdin, os.Stdout)
	if err != nil {
		return failed(fmt.Errorf("make a terminal for the program: %w", err))
	}
	defer terminal.close()
	argv := slices.Insert(slices.Clone(os.Args), slices.Index(os.Args, name)+1, "--"+inTerminalOption)
	one := &child{start: terminal.start}
	if _, err := runPrograms(self, argv, []*child{one}, func(*child) {}); err != nil {
		return failed(err)
	}
	return &exit{status: one.status}
}

// inTerminalOption is hidden: it says that this command was started by itself, with a terminal as standard input.
const inTerminalOption = "in-terminal"

// say says how long each phase took.
func (s *restoreStep) say() {
	var b strings.Builder
	total, rest := s.phases.rest()
	fmt.Fprintf(&b, "lgpu: %s is restored\n", s.path())
	phaseTable(&b, s.phases.all, total, rest)
	fmt.Fprint(os.Stderr, b.String())
}
