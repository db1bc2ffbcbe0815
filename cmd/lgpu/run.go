package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lgpu/lgpu/assets"
	"github.com/lgpu/lgpu/gpu"
	"github.com/lgpu/lgpu/region"
)

func runCommand() *cobra.Command {
	var r run
	c := &cobra.Command{
		Use:   "run [options] [--] COMMAND [ARGUMENT...]",
		Short: "Run a program inside a logical GPU",
		Long: `Run a program inside a logical GPU, made for it or shared by name.

Limits hold for every process that the program starts, all together. Sizes are
such as 8GiB, 8G (the same) or 8GB (decimal). On several devices the limits are
those of each. The exit status is the program's; 128+N if signal N killed it,
127 if it was not found, 126 if it cannot be executed, 2 if an option is wrong,
1 if lgpu itself failed.`,
		Example: `  lgpu run --memory 8GiB --compute 25 -- python train.py
  lgpu run --name team --memory 16GiB -- ./serve & lgpu run --name team -- ./batch
  lgpu run --sim=2x16GiB,sms=32 --device 1 --memory 50% -- ./program`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage("lgpu run --memory 8GiB --compute 25 -- python train.py", "run: which command?")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return r.start(args) },
	}
	f := c.Flags()
	f.SortFlags = false
	f.SetInterspersed(false) // what follows the command is the command's
	r.flags.register(f)
	f.StringVar(&r.name, "name", "", "`NAME` of the lgpu; another run with the same name joins it")
	registerSim(f, &r.shape)
	return c
}

// run is one lgpu run.
type run struct {
	flags  limitFlags
	limits limits
	name   string
	sim    bool   // on a software GPU
	shape  string // of that
}

// start runs the program to its end. Everything is checked before anything is made.
func (r *run) start(argv []string) error {
	r.sim = r.flags.typed("sim")
	if r.flags.typed("name") {
		if err := region.CheckName(r.name); err != nil {
			return usage("", "--name: %w", err)
		}
	}
	var err error
	if r.limits, err = r.flags.parse(); err != nil {
		return err
	}
	if outer := os.Getenv("LGPU_REGION"); outer != "" {
		name := strings.TrimSuffix(filepath.Base(outer), region.Extension)
		return usage("an lgpu cannot lie inside another; to leave it: env -u LGPU_REGION -u LD_PRELOAD", "this is inside the lgpu %q already", name)
	}
	program, err := findProgram(argv[0])
	if err != nil {
		return r.explain(argv[0], err)
	}
	dir, err := region.Dir()
	if err != nil {
		return failed(err)
	}
	libs, err := assets.Install()
	if errors.Is(err, assets.ErrNotBuilt) {
		return failed(err)
	}
	if err != nil {
		return &exit{status: statusFailed, err: err, hint: "LGPU_LIBDIR names the folder for the libraries"}
	}
	m, err := r.machine(dir)
	if err != nil {
		return err
	}
	status, err := r.inside(dir, libs, m, program, argv)
	if closed := m.close(); closed != nil && err == nil {
		fmt.Fprintln(os.Stderr, "lgpu: warning:", closed)
	}
	if err != nil {
		return err
	}
	return &exit{status: status}
}

// machine returns the machine's own GPUs, or a software GPU.
func (r *run) machine(dir string) (*machine, error) {
	if r.sim {
		return openSim(dir, r.shape)
	}
	return openNvidia()
}

// inside makes or joins the lgpu and runs the program in it.
func (r *run) inside(dir string, libs assets.Libraries, m *machine, program string, argv []string) (int, error) {
	lgpu, err := r.lgpu(dir, m.devices, filepath.Base(program))
	if err != nil {
		return 0, err
	}
	status, err := runProgram(program, argv, tenantEnv(os.Environ(), libs, m, lgpu.Path()))
	if closed := lgpu.Close(); closed != nil {
		fmt.Fprintln(os.Stderr, "lgpu: warning:", closed)
	}
	return status, err
}

// lgpu returns the region to run in, with a lease on it.
func (r *run) lgpu(dir string, devices []gpu.Device, program string) (*region.Region, error) {
	spec, err := r.limits.spec(r.name, devices)
	if err != nil {
		return nil, err
	}
	if err := region.Collect(dir); err != nil {
		fmt.Fprintln(os.Stderr, "lgpu: warning:", err)
	}
	for attempt := 0; ; attempt++ {
		if r.name == "" {
			spec.Name = ownName(program, attempt)
		} else if joined, err := r.join(dir, spec, devices); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return joined, err
		}
		made, err := region.Create(region.Path(dir, spec.Name), spec)
		if errors.Is(err, fs.ErrExist) && attempt < 100 {
			continue // somebody was faster: join that one
		}
		if err != nil {
			return nil, failed(err)
		}
		return made, nil
	}
}

// join takes part in the lgpu of that name, if there is one with the limits that were asked for, or none were.
func (r *run) join(dir string, asked region.Spec, devices []gpu.Device) (*region.Region, error) {
	lgpu, err := region.Join(region.Path(dir, r.name))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, failed(err)
	}
	has := lgpu.Spec()
	if r.flags.given() {
		if difference := differ(has, asked); difference != "" {
			lgpu.Close()
			return nil, usage("leave the limits out to join it as it is, or choose another name", "lgpu %q exists with %s", r.name, difference)
		}
	}
	for _, d := range has.Devices {
		if !among(devices, d.UUID) {
			lgpu.Close()
			return nil, usage("give the same --sim as it was made with", "lgpu %q is on device %s, which is not among these", r.name, gpu.UUID(d.UUID))
		}
	}
	return lgpu, nil
}

func among(devices []gpu.Device, uuid gpu.UUID) bool {
	for _, d := range devices {
		if d.UUID == uuid {
			return true
		}
	}
	return false
}

// ownName is the name of an lgpu that was given none: program and process.
func ownName(program string, attempt int) string {
	base := strings.Map(func(c rune) rune {
		if region.CheckName("a"+string(c)) != nil {
			return '_'
		}
		return c
	}, strings.TrimLeft(program, ".-_"))
	name := fmt.Sprintf("%.40s-%d", base, os.Getpid())
	if region.CheckName(name) != nil {
		name = fmt.Sprintf("run-%d", os.Getpid())
	}
	if attempt > 0 {
		name += fmt.Sprintf("-%d", attempt+1)
	}
	return name
}

// tenantEnv is the program's environment: env, with what makes it a tenant.
func tenantEnv(env []string, libs assets.Libraries, m *machine, regionPath string) []string {
	values := map[string]string{"LGPU_REGION": regionPath, "LD_PRELOAD": prepend(libs.Interposer, lookup(env, "LD_PRELOAD"), ":")}
	for name, value := range m.env(libs, env) {
		values[name] = value
	}
	out := make([]string, 0, len(env)+len(values))
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		if _, ours := values[name]; !ours {
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

// explain adds a hint where a likely slip explains why a program was not found.
func (r *run) explain(name string, err error) error {
	var e *exit
	if errors.As(err, &e) && e.status == statusNotFound {
		if r.sim && isShape(name) {
			e.hint = fmt.Sprintf("a shape is written with an equals sign: --sim=%s", name)
		}
	}
	return err
}
