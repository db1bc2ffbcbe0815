package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/internal/proc"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/policy/checkpoint"
)

func checkpointCommand() *cobra.Command {
	var k checkpointing
	c := &cobra.Command{
		Use:   "checkpoint --to DIR [--stop] [options] PATH",
		Short: "Write the programs of a logical GPU to an image on disk",
		Long: `Write the program of an lgpu to an image: the new folder DIR. Its processes
leave their devices as for lgpu suspend --release, CRIU writes them to files,
and they go on; with --stop they are ended once the image is whole. lgpu restore
DIR starts the program again where it was, on this machine.

It is for root, and for a program that one lgpu run has started, as root or with
--contain=off. Of an lgpu with --overcommit a second image takes only what has
changed on the devices. What leads out of the program, such as pipes and
connections to others, is refused by name before anything is done; its standard
streams are not. What fails, takes longer than --timeout, or is stopped by
Ctrl-C leaves the program running and no image.

Exit status: 0; 2 if there is no such lgpu, or its program cannot be written; 1
if it was not, or the daemon cannot be reached or refuses this user.`,
		Example: `  lgpu checkpoint --to /var/images/monday train
  lgpu checkpoint --stop --to /var/images/monday train && reboot`,
		DisableFlagsInUseLine: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage("lgpu checkpoint --to /var/images/monday train", "checkpoint: one PATH is to be named")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			if k.to == "" {
				return usage("lgpu checkpoint --to /var/images/monday "+args[0], "checkpoint: --to is missing: where is the image to be?")
			}
			if k.timeout <= 0 {
				return usage("", "--timeout %v: it is not above 0", k.timeout)
			}
			return talk(c, toCommand, func(conn *api.Conn) error { return k.run(c, conn, args[0]) })
		},
	}
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&k.to, "to", "", "write the image to the new folder `DIR`")
	f.BoolVar(&k.stop, "stop", false, "end the program once the image is whole")
	f.DurationVar(&k.timeout, "timeout", 10*time.Minute, "give up after this `TIME`")
	f.BoolVar(&k.json, "json", false, "print JSON")
	keyFlag(c, &k.key)
	socketFlag(c)
	return c
}

// checkpointing is one lgpu checkpoint.
type checkpointing struct {
	to, key string
	stop    bool
	timeout time.Duration
	json    bool
}

// imageTaken is what became of it. docs/checkpoint.md describes the JSON.
type imageTaken struct {
	Path      string          `json:"path"`
	Image     string          `json:"image"`
	State     string          `json:"state"` // running or ended
	Processes int             `json:"processes"`
	Phases    []releasedPhase `json:"phases"`
	Seconds   float64         `json:"seconds"`
	Rest      float64         `json:"rest"`    // of that, what is no phase's
	Paused    float64         `json:"paused"`  // how long a program that goes on was away from its devices
	Written   int64           `json:"written"` // bytes, to the disk
	Memory    int64           `json:"memory"`  // bytes that have left devices, of an lgpu with memory.overcommit
	Zero      int64           `json:"zero"`    // of that, not written since it is zero
	Shared    int64           `json:"shared"`  // of that, not written since this image or another one has it
}

// phases are timed one after the other.
type phases struct {
	begun, last time.Time
	all         []releasedPhase
}

func newPhases() *phases { return &phases{begun: time.Now(), last: time.Now()} }

// end notes that a phase is over.
func (p *phases) end(name string) {
	now := time.Now()
	p.all = append(p.all, releasedPhase{name, now.Sub(p.last).Seconds()})
	p.last = now
}

// took adds phases that the daemon has timed.
func (p *phases) took(r *api.ReleaseProgress) {
	p.all = append(p.all, phasesOf(r)...)
	p.last = time.Now()
}

// rest is what is no phase's, of all the time until now.
func (p *phases) rest() (all, rest float64) {
	all = time.Since(p.begun).Seconds()
	return all, restOf(all, p.all)
}

// phaseTable writes phases for people.
func phaseTable(b *strings.Builder, all []releasedPhase, total, rest float64) {
	phaseRows(b, all...)
	phaseRows(b, releasedPhase{"other", rest}, releasedPhase{"total", total})
}

// installedCRIU is the CRIU that there is, if it will do.
func installedCRIU(ctx context.Context, verb string) (criu.Program, error) {
	p, err := criu.Installed(ctx)
	if err == nil {
		return p, nil
	}
	hint := "lgpu doctor says what to do"
	if errors.Is(err, criu.ErrRights) {
		hint = "call it as root"
	}
	return p, &exit{status: statusFailed, err: fmt.Errorf("%s: %w", verb, err), hint: hint}
}

func (k *checkpointing) run(c *cobra.Command, conn *api.Conn, name string) (err error) {
	ctx, stop := signal.NotifyContext(c.Context(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	bounded, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	program, err := installedCRIU(bounded, "checkpoint")
	if err != nil {
		return err
	}
	path := at(conn, name)
	line := progress.Start(c.ErrOrStderr(), "checkpoint "+path)
	defer line.Done()
	s := &checkpointStep{criu: program, conn: conn, path: path, line: line, phases: newPhases(), stop: k.stop, keyFile: k.key}
	w, err := image.Create(k.to, image.Options{Progress: s.written})
	if err != nil {
		return failed(fmt.Errorf("checkpoint %s: %w", path, err))
	}
	defer func() { err = errors.Join(err, written(w.Abort())) }()
	s.writer = w
	done, err := s.take(bounded)
	line.Done()
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return &exit{status: statusFailed, err: fmt.Errorf("checkpoint %s: broken off; %s", path, s.now())}
	case expired(bounded):
		return &exit{status: statusFailed, err: fmt.Errorf("checkpoint %s: not within %v; %s", path, k.timeout, s.now())}
	default:
		return explainFiles(c, err)
	}
	if k.json {
		return sayJSON(c.OutOrStdout(), struct {
			Version int          `json:"version"`
			Results []imageTaken `json:"results"`
		}{1, []imageTaken{done}})
	}
	var b strings.Builder
	now := "goes on"
	if k.stop {
		now = "is ended"
	}
	fmt.Fprintf(&b, "%s is in %s (%s); its program %s\n", path, k.to, size(done.Written), now)
	if done.Memory > 0 {
		fmt.Fprintf(&b, "of %s from its devices, %s are zero and %s were there already\n", size(done.Memory), size(done.Zero), size(done.Shared))
	}
	phaseTable(&b, done.Phases, done.Seconds, done.Rest)
	return say(c.OutOrStdout(), b.String())
}

// checkpointStep takes a checkpoint.
type checkpointStep struct {
	criu    criu.Program
	conn    *api.Conn
	path    string
	writer  *image.Writer
	line    *progress.Line
	phases  *phases
	stop    bool
	keyFile string

	stream  api.Control_CheckpointClient
	found   *api.CheckpointFound
	root    proc.Status // the program's first process
	streams []criu.Stream
	program *imaged
	what    string       // is being written, in a word
	total   int64        // bytes of it
	done    atomic.Int64 // of them
	ended   bool         // the daemon was told to end the program
	adrift  bool         // it could not be told to have the program go on
}

// write begins to write so many bytes.
func (s *checkpointStep) write(what string, bytes int64) {
	s.what, s.total = what, bytes
	s.done.Store(0)
}

// written notes that more of them are in the image.
func (s *checkpointStep) written(bytes int64) {
	measure(s.line, s.done.Add(bytes), s.total, s.what)
}

// now says where a program is after a checkpoint that has failed.
func (s *checkpointStep) now() string {
	if s.ended {
		return "the image is whole, and its program is ended"
	}
	if s.adrift {
		return "there is no image, and its program may not be on its devices"
	}
	return "there is no image, and " + s.fate()
}

// fate is what has become of a program that was to go on: it may have been killed, or lost with CRIU.
func (s *checkpointStep) fate() string {
	if s.found == nil {
		return "its program goes on" // it has not been touched
	}
	if now, err := proc.Live(int(s.found.GetProcesses()[0])); errors.Is(err, os.ErrProcessDone) || err == nil && now.Start != s.root.Start {
		return "its program has ended"
	}
	return "its program goes on"
}

// take takes it. After an error there is no image, and the program goes on; or it has been ended, and there is one.
func (s *checkpointStep) take(ctx context.Context) (imageTaken, error) {
	done := imageTaken{Path: s.path, Image: s.writer.Path(), State: "running"}
	call, cut := context.WithCancel(context.WithoutCancel(ctx)) // the end of the call has the program go on
	defer cut()
	cutEarly := context.AfterFunc(ctx, cut)
	if err := s.begin(call); err != nil {
		return done, err
	}
	done.Processes = len(s.found.GetProcesses())
	s.phases.end("checked")
	paused := time.Now()
	left, err := s.step(api.CheckpointRequest_LEAVE)
	cutEarly() // from here on the daemon is told what becomes of the program
	if err != nil {
		return done, err
	}
	s.phases.took(left.GetProgress())
	if files := left.GetFiles(); len(files) > 0 {
		bytes := int64(0)
		for _, f := range files {
			bytes += int64(f.GetSize())
		}
		s.write("copied", bytes)
		if s.program.Files, err = writeMemory(ctx, s.writer, files); err != nil {
			return done, s.goOn(err)
		}
		s.phases.end("copied")
	}
	devices := s.writer.Stats()
	s.line.Set(0, 0, "dumped")
	if err := s.dump(ctx); err != nil {
		return done, s.goOn(err)
	}
	if !s.stop {
		s.phases.end("dumped")
		if err := s.goOn(nil); err != nil {
			return done, err
		}
		done.Paused = time.Since(paused).Seconds()
		s.phases.end("resumed")
		err = s.pages(ctx)
	}
	var stats image.Stats
	if err == nil {
		s.line.Set(0, 0, "written")
		stats, err = s.commit(ctx)
	}
	if err != nil && s.stop {
		return done, s.goOn(err)
	}
	if err != nil {
		return done, failed(fmt.Errorf("checkpoint %s: %w; %s", s.path, err, s.fate()))
	}
	s.phases.end("written")
	if s.stop {
		if err := s.end(); err != nil {
			return done, err
		}
		done.State = "ended"
		s.phases.end("ended")
	}
	done.Written, done.Memory, done.Zero, done.Shared = stats.Written, devices.Memory, devices.Zero, devices.Shared
	done.Phases = s.phases.all
	done.Seconds, done.Rest = s.phases.rest()
	return done, nil
}

// begin finds the program, and refuses what cannot be written.
func (s *checkpointStep) begin(ctx context.Context) error {
	stream, err := s.conn.Checkpoint(ctx)
	if err == nil {
		err = ignoreEOF(stream.Send(&api.CheckpointRequest{Path: s.path}))
	}
	var reply *api.CheckpointReply
	if err == nil {
		reply, err = stream.Recv()
	}
	if err != nil {
		return err
	}
	s.stream, s.found = stream, reply.GetFound()
	var pids []int
	for _, pid := range s.found.GetProcesses() {
		pids = append(pids, int(pid))
	}
	if len(pids) == 0 {
		return failed(fmt.Errorf("checkpoint %s: the daemon names no process", s.path))
	}
	var streams []criu.Stream
	s.root, err = proc.Live(pids[0])
	if err == nil {
		streams, err = criu.Streams(pids[0], s.root.Parent)
	}
	if err == nil {
		var inherited []criu.Stream
		inherited, err = criu.Inherited(pids, streams)
		streams = append(streams, inherited...)
	}
	if err != nil {
		return failed(fmt.Errorf("checkpoint %s: %w", s.path, err))
	}
	inside, err := contain.Of(pids[0])
	if err != nil {
		return failed(fmt.Errorf("checkpoint %s: %w", s.path, err))
	}
	outside, err := s.criu.Outside(ctx, criu.Within{Processes: pids, Streams: streams, Contained: inside != nil,
		Clients: s.found.GetClients()})
	if err == nil {
		err = checkpoint.Admit(nil, outside, nil)
	}
	if err != nil {
		return &exit{status: statusUsage, err: fmt.Errorf("checkpoint %s: %w", s.path, err), hint: "nothing has been done"}
	}
	p, err := describe(ctx, s.conn, s.path, pids, s.found.GetClients())
	if err != nil {
		return failed(fmt.Errorf("checkpoint %s: %w", s.path, err))
	}
	disk, err := roomFor(filepath.Dir(s.writer.Path()), s.path, pids, p.memory)
	if err == nil {
		err = checkpoint.Admit(nil, nil, []checkpoint.Room{disk})
	}
	if err != nil {
		return &exit{status: statusUsage, err: fmt.Errorf("checkpoint %s: %w", s.path, err),
			hint: "nothing has been done; what removed images have left there is removed by: lgpu image gc " + filepath.Dir(s.writer.Path())}
	}
	p.Streams, p.Contained, s.streams, s.program = streams, inside, streams, p
	return nil
}

// ignoreEOF is the error of a send, unless receiving has the reason.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// roomFor is what an image takes of the disk, but for what the devices' driver adds: the memory of processes and what they have
// on devices. Where an image of the same lgpu is there, what that has is not counted, since most of it will be shared. If it is
// not, and the disk becomes full, there is no image, and the program goes on.
func roomFor(folder, path string, pids []int, devices uint64) (checkpoint.Room, error) {
	room := checkpoint.Room{Of: "the disk of " + folder, Needed: devices}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
		if errors.Is(err, fs.ErrNotExist) { // it has just ended
			continue
		}
		var size, resident, shared uint64
		if err == nil {
			_, err = fmt.Sscan(string(text), &size, &resident, &shared)
		}
		if err != nil {
			return room, fmt.Errorf("memory of process %d: %w", pid, err)
		}
		room.Needed += (resident - min(shared, resident)) * uint64(os.Getpagesize())
	}
	var at unix.Statfs_t
	if err := unix.Statfs(folder, &at); err != nil {
		return room, fmt.Errorf("room on the disk of %s: %w", folder, err)
	}
	room.Free = at.Bavail * uint64(at.Bsize)
	if room.Needed <= room.Free {
		return room, nil
	}
	had, err := largest(folder, path)
	room.Needed -= min(room.Needed, had)
	return room, err
}

// largest is how many bytes the largest image of an lgpu in a folder has, uncompressed; 0 if there is none.
func largest(folder, path string) (bytes uint64, err error) {
	names, err := image.List(folder)
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		i, err := image.Open(filepath.Join(folder, name), anyone)
		if err != nil {
			continue // nothing is shared with what cannot be read
		}
		if p, _, err := readImaged(i); err == nil && p.Path == path {
			bytes = max(bytes, uint64(i.Size()))
		}
		i.Close() // it has only been read
	}
	return bytes, nil
}

// step asks the daemon for a step, and returns what it says at the end.
func (s *checkpointStep) step(step api.CheckpointRequest_Step) (*api.CheckpointReply, error) {
	if err := ignoreEOF(s.stream.Send(&api.CheckpointRequest{Step: step})); err != nil {
		return nil, err
	}
	for {
		reply, err := s.stream.Recv()
		if err != nil {
			return nil, err
		}
		if stage := reply.GetProgress().GetStage(); stage != "" {
			s.line.Set(0, 0, stage)
			continue
		}
		return reply, nil
	}
}

// goOn has the program go on. The error is why, with what became of it.
func (s *checkpointStep) goOn(why error) error {
	if _, err := s.step(api.CheckpointRequest_GO_ON); err != nil {
		s.adrift = true
		return errors.Join(why, fmt.Errorf("checkpoint %s: its program may not be on its devices: %w", s.path, err))
	}
	if why == nil {
		return nil
	}
	return failed(fmt.Errorf("checkpoint %s: %w; %s", s.path, why, s.fate()))
}

// dump has CRIU write the processes. What is to end is stopped then, until it is known that the image is whole, and its memory is
// in the image already. That takes longer than CRIU's own copy, for which a program that goes on is held.
func (s *checkpointStep) dump(ctx context.Context) error {
	hold, err := os.Open(s.found.GetLock())
	if err == nil {
		err = unix.Flock(int(hold.Fd()), unix.LOCK_SH)
	}
	if err != nil {
		return fmt.Errorf("hold the program: %w", err)
	}
	defer hold.Close()
	after := criu.Running
	if s.stop {
		after = criu.Stopped
	}
	external := criu.External(s.streams)
	for _, f := range s.program.Files {
		external = append(external, f.Key)
	}
	d := criu.Dump{
		PID: int(s.found.GetProcesses()[0]), Dir: s.writer.Files(), After: after, External: external, Terminal: true, Hold: hold,
	}
	if s.program.Contained != nil {
		d.Mounts = d.PID
	}
	d.Named = func(folder *os.File, names []string) (err error) {
		s.program.Named, err = writeNamed(ctx, s.writer, folder, names, func(bytes int64) { s.write("written", bytes) })
		return err
	}
	if s.stop {
		d.Still = func() error {
			s.phases.end("dumped")
			return s.pages(ctx)
		}
	}
	return s.criu.Dump(ctx, d)
}

// pages has the image have the processes' memory.
func (s *checkpointStep) pages(ctx context.Context) error {
	return writePages(ctx, s.writer, func(bytes int64) { s.write("written", bytes) })
}

// commit ends the image, with the key of this machine.
func (s *checkpointStep) commit(ctx context.Context) (image.Stats, error) {
	key, err := signingKey(s.keyFile)
	if err != nil {
		return image.Stats{}, err
	}
	about, err := s.program.about()
	if err != nil {
		return image.Stats{}, err
	}
	return s.writer.Commit(ctx, about, key)
}

// signingKey is the key in a file, or where that of this machine is. It is made where there is none.
func signingKey(file string) (ed25519.PrivateKey, error) {
	if file == "" {
		var err error
		if file, err = image.KeyFile(); err != nil {
			return nil, err
		}
	}
	return image.MakeKey(file)
}

// end has the daemon end the program. The image is there, whatever comes of it.
func (s *checkpointStep) end() error {
	s.ended = true
	err := ignoreEOF(s.stream.Send(&api.CheckpointRequest{Step: api.CheckpointRequest_END}))
	if err == nil {
		_, err = s.stream.Recv()
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		err = errors.New("the daemon does not end its call")
	}
	return failed(fmt.Errorf("checkpoint %s: the image is whole; its program may not have ended: %w", s.path, err))
}
