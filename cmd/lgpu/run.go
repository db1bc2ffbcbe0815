package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/assets"
	"github.com/lgpu/lgpu/internal/names"
	"github.com/lgpu/lgpu/internal/progress"
	"github.com/lgpu/lgpu/internal/units"
	"github.com/lgpu/lgpu/sim"
	"github.com/lgpu/lgpu/sim/wire"
)

// rootPath is that of the tree's root.
const rootPath = "/"

// tenantEnvironment is the variable that the programs of an lgpu have and others do not.
const tenantEnvironment = "LGPU_SOCKET"

func runCommand() *cobra.Command {
	var r run
	c := &cobra.Command{
		Use:   "run [options] [--] COMMAND [ARGUMENT...]",
		Short: "Run a program inside a logical GPU",
		Long: `Run a program inside a logical GPU: a new one, or an existing one by its name.

Limits hold for all processes that the program starts, together, also for those
that leave it by setsid, su or a changed environment. Sizes are such as 8GiB, 8G
(the same) or 8GB (decimal). With several devices the limits hold for each.
They can be changed while the program runs: see lgpu set.

A library in the program keeps the limits. Where the kernel permits it, the
program is contained: the library is there in the place of the driver's, for
all its processes and whatever their environment, and devices of others cannot
be opened. Else LD_PRELOAD names the library. For a user who is not root this
takes a user namespace, in which sudo and other set-uid programs do not work:
--contain=off, or LGPU_CONTAIN=off in the environment, does without.

--compute (compute.max) is a hard limit, which also holds when nobody else wants
the device. The rest of the time is shared by --weight (lgpu.weight). --min
(compute.min) is reserved, whatever the weights of others. --units limits time
as a number of compute units, which is also the number that the program sees.
All lgpus of one gang (--gang), and all devices of one lgpu, run at the same
time: programs that wait for each other across devices need this.

With --pes COUNT the command is started COUNT times, as the PEs of a job that
shares memory by lshmem. All PEs are in the same lgpu and see all its devices,
and each uses the next one. When one fails the others are ended. On several
machines, start lgpu run on each, with the same --pes-total and --bootstrap, and
the same secret in LSHMEM_BOOTSTRAP_TOKEN.

The daemon creates the lgpu, in the directory of the tree that the user has
there (/users/NAME), or in a group. Where a system daemon runs, all users'
programs go through it. Else lgpu run starts a daemon of the user, which ends
after a minute without work. When the daemon is restarted the program goes on
within its limits. If the program was refused memory, a line says so at the end.

Exit status: that of the program, or of the first of several to fail; 128+N if
signal N killed it, 127 if it was not found, 126 if it cannot be executed, 2 if
an option is wrong, 1 if lgpu itself failed.`,
		Example: `  lgpu run --memory 8GiB --compute 25 -- python train.py
  lgpu run --name team --memory 16GiB -- ./serve &
  lgpu run --name team -- ./batch
  lgpu run --group /research --weight 300 -- python train.py
  lgpu run --sim=2x16GiB,sms=32 --device 1 --memory 50% -- ./program
  lgpu run --device 0,1 --pes 2 -- python pair.py`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("lgpu run --memory 8GiB --compute 25 -- python train.py", "run: which command?")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return r.start(c, args) },
	}
	r.register(c.Flags())
	socketFlag(c)
	return c
}

// run is one lgpu run.
type run struct {
	flags       limitFlags
	pes         pesFlags
	contain     containFlag
	name, group string
	gang        string
	overcommit  bool
	strict      bool
	spatial     bool
	sim         bool   // on a software GPU
	shape       string // of that
}

// register makes the options.
func (r *run) register(f *pflag.FlagSet) {
	f.SortFlags = false
	f.SetInterspersed(false) // what follows the command is the command's
	r.flags.register(f)
	f.StringVar(&r.name, "name", "", "`NAME` of the lgpu; another run with the same name joins it")
	f.StringVar(&r.group, "group", "", "`PATH` of the group that the lgpu is in (default: your own directory; the root for\nadministrators)")
	f.StringVar(&r.gang, "gang", "", "`NAME` of a gang: its lgpus get their devices at the same time")
	f.BoolVar(&r.overcommit, "overcommit", false, "memory.overcommit=1: its memory may leave its devices, for others and by lgpu suspend")
	f.BoolVar(&r.strict, "strict", false, "copy all that leaves a device, even what seems not to have changed since it left last")
	f.BoolVar(&r.spatial, "spatial", false, "share devices by compute units, at the same time (MPS)")
	registerSim(f, &r.shape)
	r.pes.register(f)
	r.contain.register(f)
}

// start runs the program to its end. Everything is checked before anything is made.
func (r *run) start(c *cobra.Command, argv []string) error {
	request, err := r.request()
	if err != nil {
		return err
	}
	if os.Getenv(tenantEnvironment) != "" {
		return usage("start it from outside", "this is inside an lgpu already")
	}
	program, err := findProgram(argv[0])
	if err != nil {
		return r.slip(argv[0], err)
	}
	request.Program = filepath.Base(program)
	j, err := r.pes.job()
	if err != nil {
		return err
	}
	libs, err := assets.Install()
	if errors.Is(err, assets.ErrNotBuilt) {
		return failed(err)
	}
	if err != nil {
		return &exit{status: statusFailed, err: err, hint: "LGPU_LIBDIR names the folder for the libraries"}
	}
	conn, err := connectFor(c, toChange, r.sim)
	if err != nil {
		return err
	}
	locate(conn, request)
	command, err := onDemand()
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	if j != nil {
		if err := j.listen(c.Context()); err != nil {
			return errors.Join(err, conn.Close())
		}
		defer j.close()
	}
	line := progress.Start(c.ErrOrStderr(), "waiting for the lgpu") // with --spatial MPS may have to start
	h, err := attach(c.Context(), conn, request, api.Options{Socket: namedSocket(c), Private: r.sim, Change: true, Start: command})
	line.Done()
	if err != nil {
		return explainOptions(c, err)
	}
	defer func() {
		h.Close()
		if text := refusal(h.GetPath(), h.refused); text != "" {
			fmt.Fprintln(c.ErrOrStderr(), "lgpu:", text)
		}
	}()
	if r.strict {
		h.Environment[strictEnvironment] = "1"
	}
	p, err := r.contain.prepare(program, libs, h.Attachment, r.sim)
	if err != nil {
		return err
	}
	defer p.close()
	if j != nil {
		return j.run(program, argv, p.env, libs, len(h.Devices), p.start)
	}
	one := &child{env: p.env, files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, start: p.start}
	if _, err := runPrograms(program, argv, []*child{one}, func(*child) {}); err != nil {
		return err
	}
	return &exit{status: one.status}
}

// refusal says that programs in the lgpu at path were refused memory, by whose limit, and what to do; nothing if they were
// not.
func refusal(path string, r *api.Refusals) string {
	if r.GetCount() == 0 {
		return ""
	}
	what, file, option := "device memory", "memory.max", "--memory"
	if r.GetDevice() == "" {
		what, file, option = "page-locked host memory", "host.max", "--host-memory"
	}
	times := "once"
	if r.GetCount() > 1 {
		times = fmt.Sprintf("%d times", r.GetCount())
	}
	text := fmt.Sprintf("the program was refused %s %s, the last time %s, ", what, times, units.FormatSize(r.GetBytes()))
	if r.GetPath() == "" {
		return text + "since the device has no more"
	}
	text += fmt.Sprintf("by the limit of %s, %s", r.GetPath(), units.FormatSize(r.GetLimit()))
	switch {
	case r.GetMayRaise() && r.GetPath() == path:
		return text + "; " + option + " gives it more"
	case r.GetMayRaise():
		return text + fmt.Sprintf("; lgpu set %s %s=SIZE raises it", r.GetPath(), file)
	case r.GetRaiser() != "":
		return text + fmt.Sprintf(", which %s or an administrator can raise", r.GetRaiser())
	}
	return text + ", which an administrator can raise"
}

// request is what is asked of the daemon.
func (r *run) request() (*api.AttachRequest, error) {
	r.sim = r.flags.typed("sim")
	request, err := r.flags.parse()
	if err != nil {
		return nil, err
	}
	if err := r.contain.check(); err != nil {
		return nil, err
	}
	if request.MemoryOvercommit, err = r.overcommits(os.Getenv(oversubscribe)); err != nil {
		return nil, err
	}
	if r.strict && !request.MemoryOvercommit {
		return nil, usage("memory leaves a device only with --overcommit", "--strict: without --overcommit nothing is copied")
	}
	if r.group == "" && r.flags.typed("group") {
		return nil, usage("a group is such as /team; / is the root", "--group: PATH is empty")
	}
	request.Group, request.Devices, request.Gang, request.Spatial = r.group, r.flags.tokens(), r.gang, r.spatial
	if r.flags.typed("name") {
		if err := names.Check(r.name); err != nil {
			hint := ""
			if group := path.Dir(r.name); group != "." {
				hint = fmt.Sprintf("a path is said by two: --group %s --name %s", rooted(group), path.Base(r.name))
			}
			return nil, usage(hint, "--name: %w", err)
		}
		request.Path = r.name
	}
	if r.flags.typed("gang") {
		if err := names.Check(r.gang); err != nil {
			return nil, usage("", "--gang: %w", err)
		}
	}
	if r.sim {
		shape, err := sim.ParseShape(r.shape)
		if err != nil {
			return nil, usage("a shape is such as 2x16GiB,sms=32", "--sim: %w", err)
		}
		if most := request.GetLimits().GetMemoryMax(); most > shape.Memory {
			return nil, usage("", "--memory %s: each device of --sim=%s has %s", r.flags.memory, shape, units.FormatSize(shape.Memory))
		}
		request.Sim = shape.String()
	}
	return request, nil
}

// oversubscribe is the variable of HAMi's environment that asks for what --overcommit does.
const oversubscribe = "CUDA_OVERSUBSCRIBE"

// strictEnvironment has the program's library copy all that leaves a device (tenant/liblgpu/arena/clean.c).
const strictEnvironment = "LGPU_STRICT"

// overcommits says whether memory of the lgpu may leave its devices: by the option, or else as HAMi's environment says.
func (r *run) overcommits(environment string) (bool, error) {
	switch {
	case r.overcommit && r.spatial:
		return false, usage("leave one of them out", "--overcommit: with --spatial (MPS) memory cannot leave a device")
	case r.flags.typed("overcommit") || r.spatial:
		return r.overcommit, nil
	}
	return slices.Contains([]string{"true", "1"}, strings.ToLower(environment)), nil
}

// locate says where in the tree an lgpu is to be: what was typed is in the user's place, unless it has a leading slash.
// Nothing is left to the daemon, which may know of a better group for the process (its cgroup's).
func locate(conn *api.Conn, request *api.AttachRequest) {
	if request.GetGroup() != "" {
		request.Group = at(conn, request.GetGroup())
	}
	if name := request.GetPath(); name != "" && request.GetGroup() == "" {
		request.Path = at(conn, name)
	} else if name != "" {
		request.Path = path.Join(request.GetGroup(), name)
	}
}

// tenantEnv is the program's environment: env, with what makes it a tenant.
func tenantEnv(env []string, libs assets.Libraries, values map[string]string) []string {
	ours := map[string]string{"LD_PRELOAD": prepend(libs.Interposer, lookup(env, "LD_PRELOAD"), ":")}
	for name, value := range values {
		ours[name] = value
	}
	if _, simulated := values[wire.Environment]; simulated {
		ours["LD_LIBRARY_PATH"] = prepend(libs.SimDir, lookup(env, "LD_LIBRARY_PATH"), ":")
		ours["LGPU_REAL_LIBCUDA"] = filepath.Join(libs.SimDir, "libcuda.so.1")
		ours["LGPU_REAL_LIBNVML"] = filepath.Join(libs.SimDir, "libnvidia-ml.so.1")
	}
	return replace(env, ours)
}

// replace is env with other values for some variables.
func replace(env []string, values map[string]string) []string {
	out := make([]string, 0, len(env)+len(values))
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if _, replaced := values[name]; !replaced {
			out = append(out, v)
		}
	}
	for name, value := range values {
		out = append(out, name+"="+value)
	}
	return out
}

func lookup(env []string, name string) string {
	for _, v := range env {
		if n, value, _ := strings.Cut(v, "="); n == name {
			return value
		}
	}
	return ""
}

// prepend puts first before the entries of list.
func prepend(first, list, separator string) string {
	if list == "" {
		return first
	}
	return first + separator + list
}

// slip adds a hint where a likely slip explains why a program was not found.
func (r *run) slip(name string, err error) error {
	var e *exit
	if errors.As(err, &e) && e.status == statusNotFound && r.sim && isShape(name) {
		e.hint = fmt.Sprintf("a shape is written with an equals sign: --sim=%s", name)
	}
	return err
}
