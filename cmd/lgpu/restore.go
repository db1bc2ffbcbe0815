package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/checkpoint/criu"
	"github.com/lgpu/lgpu/checkpoint/image"
	"github.com/lgpu/lgpu/daemon"
	"github.com/lgpu/lgpu/internal/assets"
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
have the numbers that they had.

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
	s := &restoreStep{restoring: r, criu: program, phases: newPhases()}
	defer s.close()
	if err := s.read(c.Context(), dir, trust); err != nil {
		return failed(fmt.Errorf("restore %s: %w", harmless(dir), err))
	}
	if err := s.attach(c); err != nil {
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

	image    *image.Image        // until all of it has been read
	files    string              // CRIU's, checked, in a folder of this process
	memory   map[string]*os.File // with what had left devices, by what CRIU calls them
	loaded   atomic.Int64        // bytes of that
	program  *imaged
	like     *api.AttachRequest
	about    *image.About
	lgpu     *attached
	conn     *api.Conn
	replaces map[string]string // devices that take the place of others
}

// path is that of the lgpu.
func (s *restoreStep) path() string { return s.lgpu.GetPath() }

func (s *restoreStep) close() {
	if s.lgpu != nil {
		s.lgpu.Close()
	}
	if s.conn != nil {
		s.conn.Close()
	}
	s.remove()
	closeFiles(s.memory)
	if s.image != nil {
		s.image.Close() // it has only been read
	}
}

// remove removes the files, which are needed no more once the processes are there.
func (s *restoreStep) remove() {
	if s.files != "" {
		_ = os.RemoveAll(s.files) // what stays is the system's to remove, as other temporary files
		s.files = ""
	}
}

// read reads the image and checks it, all that can be without its lgpu.
func (s *restoreStep) read(ctx context.Context, dir string, trust image.Trust) (err error) {
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	i, err := image.Open(dir, trust)
	if err != nil {
		return err
	}
	s.image, s.about = i, &i.About
	if s.program, s.like, err = readImaged(i); err != nil {
		return err
	}
	if _, err := assets.Install(); err != nil {
		return err
	}
	if err := s.program.check(); err != nil {
		return err
	}
	if s.files, err = os.MkdirTemp("", "lgpu-restore-"); err != nil { // for its owner alone
		return err
	}
	if err := i.Extract(ctx, s.files); err != nil {
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
	s.phases.end("attached")
	return nil
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
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	stream, err := s.conn.Restore(ctx)
	if err == nil {
		err = ignoreEOF(stream.Send(&api.RestoreRequest{Path: s.path(), Clients: s.program.Clients, Devices: s.replaces,
			Files: wantedFiles(s.program.Files)}))
	}
	var reply *api.RestoreReply
	if err == nil {
		reply, err = stream.Recv()
	}
	if err == nil {
		err = s.load(ctx, reply.GetFiles())
	}
	if err != nil {
		return nil, nil, s.late(ctx, err)
	}
	s.line.Set(0, 0, "processes")
	streams, external := s.streams()
	process, err := s.criu.Restore(ctx, criu.Restore{Dir: s.files, Inherit: streams, External: external, Terminal: true})
	s.remove()
	if err != nil {
		return nil, nil, s.late(ctx, failed(err))
	}
	s.phases.end("processes")
	err = ignoreEOF(stream.Send(&api.RestoreRequest{}))
	for err == nil {
		if reply, err = stream.Recv(); err == nil && reply.GetProgress().GetStage() == "" {
			s.phases.took(reply.GetProgress())
			break
		}
		s.line.Set(0, 0, reply.GetProgress().GetStage())
	}
	if err != nil {
		end(&child{process: process}, unix.SIGKILL)
		_, _ = process.Wait() // it is a child, and killed
		return nil, nil, s.late(ctx, err)
	}
	s.line.Done()
	if s.restoring.phases {
		s.say()
	}
	return process, nil, nil
}

// load fills the files that the daemon has made for what had left devices.
func (s *restoreStep) load(ctx context.Context, made []*api.MemoryFile) (err error) {
	if len(s.program.Files) == 0 {
		return nil
	}
	total := s.image.Memory()
	s.memory, err = readMemory(ctx, s.image, s.program.Files, made, func(bytes int64) {
		measure(s.line, s.loaded.Add(bytes), total, "loaded")
	})
	if err != nil {
		return failed(err)
	}
	s.phases.end("loaded")
	return nil
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

// streams are those of this process in the place of those that the program had.
func (s *restoreStep) streams() (inherit map[string]*os.File, external []string) {
	own := []*os.File{os.Stdin, os.Stdout, os.Stderr}
	inherit = map[string]*os.File{}
	maps.Copy(inherit, s.memory)
	for _, stream := range s.program.Streams {
		if stream.Key != "" && stream.FD >= 0 && stream.FD < len(own) && inherit[stream.Key] == nil {
			inherit[stream.Key] = own[stream.FD]
		}
	}
	return inherit, criu.External(s.program.Streams)
}

// say says how long each phase took.
func (s *restoreStep) say() {
	var b strings.Builder
	total, rest := s.phases.rest()
	fmt.Fprintf(&b, "lgpu: %s is restored\n", s.path())
	phaseTable(&b, s.phases.all, total, rest)
	fmt.Fprint(os.Stderr, b.String())
}
