package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/assets"
	"github.com/lgpu/lgpu/shmem/bootstrap"
	"github.com/lgpu/lgpu/tenant/region"
)

// tokenVariable has the secret that the launchers of a job on several machines share. It is no option, since options are
// shown to every user of a machine.
const tokenVariable = "LSHMEM_BOOTSTRAP_TOKEN"

// pesFlags are what the user typed about PEs.
type pesFlags struct {
	typed     func(name string) bool
	count     string
	perDevice string
	first     string
	total     string
	bootstrap string
	label     bool
}

func (p *pesFlags) register(f *pflag.FlagSet) {
	p.typed = f.Changed
	f.StringVar(&p.count, "pes", "", "start the command `COUNT` times, as PEs of an lshmem job")
	f.StringVar(&p.perDevice, "pes-per-device", "", "instead of --pes: start the command `COUNT` times for each device")
	f.BoolVar(&p.label, "label", false, "begin each line of output with its PE, such as [2] (default: on a terminal)")
	f.StringVar(&p.first, "pes-first", "0", "on several machines: `NUMBER` of the first PE on this machine")
	f.StringVar(&p.total, "pes-total", "", "on several machines: `COUNT` of PEs on all machines")
	f.StringVar(&p.bootstrap, "bootstrap", "", "on several machines: `HOST:PORT` on the machine with PE 0, a free port")
}

// job is the PEs that one lgpu run starts, all in one lgpu. They see all its devices, not each its own: a program can
// ask for access to memory of another PE only if it sees that one's device, and many choose their own by cudaSetDevice. And
// in one lgpu they are not gated against each other, so that those that share a device can wait for each other.
type job struct {
	count     int // 0: perDevice times the number of devices
	perDevice int
	first     int
	total     int    // 0: count
	bootstrap string // HOST:PORT, empty on one machine
	token     string
	labels    bool

	root *bootstrap.Root // nil if it is elsewhere
	id   bootstrap.UniqueID
}

// job checks the options; nil means that there is one program and no job.
func (p *pesFlags) job() (*job, error) {
	if !p.typed("pes") && !p.typed("pes-per-device") {
		for _, name := range []string{"pes-first", "pes-total", "bootstrap", "label"} {
			if p.typed(name) {
				return nil, usage("lgpu run --pes 2 -- ./program", "--%s: it needs --pes or --pes-per-device", name)
			}
		}
		return nil, nil
	}
	if p.typed("pes") && p.typed("pes-per-device") {
		return nil, usage("", "--pes and --pes-per-device: only one of them can be used")
	}
	j := &job{bootstrap: p.bootstrap}
	var err error
	if p.typed("pes") {
		j.count, err = count("pes", p.count, 1, region.MaxClients)
	} else {
		j.perDevice, err = count("pes-per-device", p.perDevice, 1, region.MaxClients)
	}
	if err != nil {
		return nil, err
	}
	if j.first, err = count("pes-first", p.first, 0, bootstrap.MaxPEs-1); err != nil {
		return nil, err
	}
	if p.typed("pes-total") {
		if j.total, err = count("pes-total", p.total, 1, bootstrap.MaxPEs); err != nil {
			return nil, err
		}
	}
	if err := j.fits(); err != nil {
		return nil, err
	}
	switch {
	case p.typed("bootstrap") != p.typed("pes-total"), p.typed("pes-first") && !p.typed("bootstrap"):
		return nil, usage("on the second of two machines: lgpu run --pes 8 --pes-first 8 --pes-total 16 --bootstrap node1:18515 -- ./program",
			"a job on several machines needs --pes-total and --bootstrap, and --pes-first on all but one")
	case p.typed("bootstrap"):
		if j.token = os.Getenv(tokenVariable); j.token == "" {
			return nil, usage("set the same on all machines: export "+tokenVariable+"=$(openssl rand -hex 16)", "--bootstrap: "+tokenVariable+" is not set")
		}
	}
	j.labels = p.label || !p.typed("label") && isTerminal(os.Stdout)
	return j, nil
}

// count reads a number of an option.
func count(name, text string, least, most int) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, usage("", "--%s %q: it must be a number from %d to %d", name, text, least, most)
	}
	return n, nil
}

// fits checks that the PEs of this machine are among all, as far as their number is known.
func (j *job) fits() error {
	if j.total > 0 && j.first+max(j.count, 1) > j.total {
		return usage("", "--pes-total %d: the PEs of this machine are %s", j.total, pes(j.first, max(j.count, 1)))
	}
	return nil
}

// pes names n PEs from first.
func pes(first, n int) string {
	if n == 1 {
		return fmt.Sprintf("PE %d", first)
	}
	return fmt.Sprintf("PEs %d to %d", first, first+n-1)
}

// listen makes what the PEs meet at. It is closed by close.
func (j *job) listen(ctx context.Context) error {
	o := bootstrap.ListenOptions{Keep: true, Local: true}
	var err error
	switch {
	case j.bootstrap == "":
		j.root, err = bootstrap.Listen(ctx, o)
	case j.first == 0:
		j.root, err = bootstrap.ListenAt(ctx, j.bootstrap, j.token, o)
	default:
		j.id, err = bootstrap.TokenID(ctx, j.bootstrap, j.token)
	}
	if err != nil && j.bootstrap != "" {
		return usage("", "--bootstrap %s: %w", j.bootstrap, err)
	}
	if err != nil {
		return failed(err)
	}
	if j.root != nil {
		j.id = j.root.ID()
	}
	return nil
}

func (j *job) close() {
	if j.root != nil {
		j.root.Close()
	}
}

// run runs the PEs of this machine to their end.
func (j *job) run(program string, argv, env []string, libs assets.Libraries, devices int, start starter) error {
	devices = visible(env, devices)
	if j.perDevice > 0 {
		j.count = j.perDevice * devices
		if j.count > region.MaxClients {
			return usage("", "--pes-per-device %d: on %d devices these are %d PEs; an lgpu has at most %d processes",
				j.perDevice, devices, j.count, region.MaxClients)
		}
		if err := j.fits(); err != nil {
			return err
		}
	}
	if j.total == 0 {
		j.total = j.count
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return failed(err)
	}
	defer null.Close()
	var out labelled
	list := make([]*child, j.count)
	numbers := map[*child]int{}
	for i := range list {
		if list[i], err = j.child(i, j.env(env, libs, i, devices), null, &out); err != nil {
			out.close(list[:i])
			return failed(err)
		}
		list[i].start = start
		numbers[list[i]] = j.first + i
	}
	var first *child
	told, err := runPrograms(program, argv, list, func(c *child) {
		if c.status != 0 && first == nil {
			first = c
		}
		if j.root != nil && c.process != nil {
			j.root.Ended(numbers[c], "it "+how(c))
		}
	})
	out.close(list)
	if err != nil {
		return err
	}
	if first == nil {
		return &exit{}
	}
	if j.root != nil { // several may have ended at once, most of them because of one
		if at := j.root.Blamed() - j.first; at >= 0 && at < len(list) && list[at].status != 0 {
			first = list[at]
		}
	}
	e := &exit{status: first.status}
	if !told { // who interrupts a job knows why it ended
		e.err = fmt.Errorf("PE %d (process %d) %s", numbers[first], first.process.Pid, how(first))
	}
	return e
}

// child is PE i of this machine, before it is started. Only the first has this process's input.
func (j *job) child(i int, env []string, null *os.File, out *labelled) (c *child, err error) {
	c = &child{env: env, files: []*os.File{null, os.Stdout, os.Stderr}}
	if i == 0 {
		c.files[0] = os.Stdin
	}
	if !j.labels {
		return c, nil
	}
	prefix := fmt.Sprintf("[%d] ", j.first+i)
	for at, to := range []*os.File{os.Stdout, os.Stderr} {
		if c.files[1+at], err = out.pipe(prefix, to); err != nil {
			return nil, fmt.Errorf("pipe for the output of PE %d: %w", j.first+i, err)
		}
	}
	return c, nil
}

// how a program ended.
func how(c *child) string {
	if c.signal != 0 {
		return "was killed by " + unix.SignalName(c.signal)
	}
	return fmt.Sprintf("ended with status %d", c.status)
}

// visible is how many of an lgpu's devices a program sees that has an environment.
func visible(env []string, devices int) int {
	if list := lookup(env, "CUDA_VISIBLE_DEVICES"); list != "" {
		devices = min(devices, 1+strings.Count(list, ","))
	}
	return devices
}

// env is the environment of the i-th PE of this machine.
func (j *job) env(env []string, libs assets.Libraries, i, devices int) []string {
	ours := map[string]string{
		bootstrap.EnvPE:        strconv.Itoa(j.first + i),
		bootstrap.EnvPEs:       strconv.Itoa(j.total),
		bootstrap.EnvBootstrap: "uid:" + j.id.String(),
	}
	if lookup(env, "LSHMEM_DEVICE") == "" { // who exports one, such as none, means it for all PEs
		ours["LSHMEM_DEVICE"] = strconv.Itoa(i % max(devices, 1))
	}
	if home := libs.Lshmem; home != "" {
		ours["LSHMEM_HOME"] = home
		for _, list := range []string{"LD_LIBRARY_PATH", "PYTHONPATH"} {
			ours[list] = prepend(home, lookup(env, list), ":")
		}
	}
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, tokenVariable+"=") })
	return replace(env, ours)
}

// labelled copies the lines of programs' output, each with its PE in front. A line is written at once, so that lines of
// several PEs do not mix.
type labelled struct {
	mu      sync.Mutex
	copies  sync.WaitGroup
	readers []*os.File
	until   atomic.Pointer[time.Time] // nil while programs run; then when to stop at the latest
}

// longest is how much of a line without an end is kept back.
const longest = 64 << 10

// pipe returns a file whose lines go to another, behind a prefix.
func (l *labelled) pipe(prefix string, to io.Writer) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	l.readers = append(l.readers, r)
	l.copies.Go(func() { l.copy(prefix, r, to) })
	return w, nil
}

// copy copies until the last process with the pipe closes it, or close loses patience.
func (l *labelled) copy(prefix string, r *os.File, to io.Writer) {
	var line []byte // not written yet; begins with the prefix unless it is empty
	write := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		_, _ = to.Write(line) // as with a program that writes to a pipe nobody reads, there is nobody to tell
		line = line[:0]
	}
	buffer := make([]byte, 32<<10)
	for quiet := false; ; {
		n, err := r.Read(buffer)
		for rest := buffer[:n]; len(rest) > 0; {
			if len(line) == 0 {
				line = append(line, prefix...)
			}
			end := bytes.IndexByte(rest, '\n') + 1
			if end == 0 {
				line = append(line, rest...)
				if len(line) > longest {
					line = append(line, '\n')
					write()
				}
				break
			}
			line = append(line, rest[:end]...)
			rest = rest[end:]
			write()
		}
		until := l.until.Load()
		late := errors.Is(err, os.ErrDeadlineExceeded) && !quiet && time.Now().Before(*until)
		if err != nil && !late {
			if len(line) > 0 {
				line = append(line, '\n')
				write()
			}
			return
		}
		quiet = n == 0
		if until != nil {
			_ = r.SetReadDeadline(time.Now().Add(pause)) // it could be set before
		}
	}
}

// What programs that have ended left in the background may hold their pipes, and write: output is waited for as long as
// there is some in every pause, but not without end.
const (
	pause   = 50 * time.Millisecond
	patient = 5 * time.Second
)

// close waits until the output of programs that have ended is written.
func (l *labelled) close(list []*child) {
	for _, c := range list {
		for _, f := range c.files[1:] {
			if f != os.Stdout && f != os.Stderr {
				f.Close()
			}
		}
	}
	until := time.Now().Add(patient)
	l.until.Store(&until)
	for _, r := range l.readers {
		if r.SetReadDeadline(time.Now().Add(pause)) != nil {
			r.Close()
		}
	}
	l.copies.Wait()
	for _, r := range l.readers {
		r.Close()
	}
}
