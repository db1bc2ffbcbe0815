package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/api"
	"github.com/lgpu/lgpu/internal/assets"
	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/internal/fence"
)

// Values of --contain.
const (
	containOn   = "on"
	containAuto = "auto"
	containOff  = "off"
)

// containVariable is the environment's default for --contain.
const containVariable = "LGPU_CONTAIN"

// containFlag says whether programs get a mount namespace in which the driver's libraries are lgpu's.
type containFlag struct {
	mode  string
	typed func(name string) bool
}

func (f *containFlag) register(flags *pflag.FlagSet) {
	f.typed = flags.Changed
	flags.StringVar(&f.mode, "contain", containAuto, "put lgpu's library in the place of the driver's: `WHEN` is on,\nauto (where it can) or off")
	flags.Lookup("contain").NoOptDefVal = containOn
}

// check settles the mode, which the environment may say where no option does.
func (f *containFlag) check() error {
	from := "--contain"
	if mode := os.Getenv(containVariable); mode != "" && !f.typed("contain") {
		from, f.mode = containVariable, mode
	}
	if slices.Contains([]string{containOn, containAuto, containOff}, f.mode) {
		return nil
	}
	return usage("lgpu run --contain=on -- ./program", "%s %q: it is on, off or auto", from, f.mode)
}

// remark says something about containment that only who has asked for it wants to know: else each line of a script
// would say it again. lgpu doctor says it too.
func (f *containFlag) remark(text string, err error) {
	if f.typed("contain") || f.mode == containOn {
		fmt.Fprintln(os.Stderr, "lgpu: warning: "+text+":", err)
	}
}

// prepared is how programs of an lgpu are started.
type prepared struct {
	env   []string
	start starter
	close func()
}

// prepare decides how a program is started in the lgpu that this process is attached to.
func (f *containFlag) prepare(program string, libs assets.Libraries, a *api.Attachment, sim bool) (*prepared, error) {
	env := tenantEnv(os.Environ(), libs, a.Environment)
	plain := &prepared{env: env, start: startPlainly, close: func() {}}
	if f.mode == containOff {
		return plain, nil
	}
	var p *prepared
	err := losesRights(program)
	if err == nil || f.mode == containOn {
		p, err = f.contained(env, libs, a, sim)
	}
	switch {
	case err == nil:
		return p, nil
	case f.mode == containOn:
		return nil, cannotContain(err)
	}
	f.remark(notContained, err)
	return plain, nil
}

// notContained is what auto remarks.
const notContained = "the program is not contained"

// unstarted is the command's error where err, of a contained start, says that no namespace can be built; else it is err.
func unstarted(err error) error {
	var impossible *contain.Impossible
	if !errors.As(err, &impossible) {
		return err
	}
	return cannotContain(err)
}

func cannotContain(err error) error {
	e := &exit{status: statusFailed, err: fmt.Errorf("--contain: %w", err), hint: "--contain=off runs the program without; lgpu doctor has more"}
	if reason := contain.Reason(); reason != "" && os.Geteuid() != 0 {
		e.hint = "this user may make no namespace, as " + reason + "; --contain=off runs the program without"
	}
	return e
}

// losesRights says why a program cannot do its work in the user namespace of a user: it would not get the rights that its
// file gives, or lose those that its caller has. Those it starts are not looked at.
func losesRights(program string) error {
	if os.Geteuid() == 0 {
		return nil // there is no user namespace
	}
	var s unix.Stat_t
	if unix.Stat(program, &s) == nil && s.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		return fmt.Errorf("%s changes its user or group when it starts (set-uid)", program)
	}
	if n, err := unix.Getxattr(program, "security.capability", nil); err == nil && n > 0 {
		return fmt.Errorf("%s gets capabilities when it starts", program)
	}
	header, own := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if unix.Capget(&header, &own[0]) == nil && own[0].Effective|own[1].Effective != 0 {
		return errors.New("this user has capabilities, which a program in a user namespace would lose")
	}
	return nil
}

// contained prepares a namespace.
func (f *containFlag) contained(env []string, libs assets.Libraries, a *api.Attachment, sim bool) (*prepared, error) {
	preload := lookup(os.Environ(), "LD_PRELOAD")
	files, fenced := f.fenceOff(a, sim)
	plan, err := contain.Make(contain.Options{
		Interposer: libs.Interposer, Dir: libs.Contained(), Environment: withPreload(env, preload), Stamp: a.Environment,
		Hide: files, Cgroup: fenced.Cgroup, Tasks: fenced.Tasks,
	})
	if err != nil {
		fenced.Close()
		return nil, err
	}
	s := &containedStart{flag: f, plan: plan, preload: preload}
	return &prepared{env: env, start: s.start, close: fenced.Close}, nil
}

// containedStart starts the programs of one lgpu, all of them contained or none. The first shows whether the kernel permits
// it; those after it start at the same time.
type containedStart struct {
	flag    *containFlag
	plan    *contain.Plan
	preload string // what the caller has preloaded

	tried, plainly bool
}

func (s *containedStart) start(path string, argv []string, attr *os.ProcAttr) (*os.Process, func() error, error) {
	if s.plainly {
		return startPlainly(path, argv, attr)
	}
	inside := *attr
	inside.Env = s.plan.Environment(withPreload(attr.Env, s.preload))
	started, err := s.plan.Start(path, argv, &inside)
	if s.tried {
		if err != nil {
			return nil, nil, unstarted(err)
		}
		return started.Process, func() error { return unstarted(started.Confirm()) }, nil
	}
	s.tried = true
	if err == nil {
		err = started.Confirm()
	}
	var impossible *contain.Impossible
	switch {
	case err == nil:
		return started.Process, nil, nil
	case s.flag.mode == containOn || !errors.As(err, &impossible):
		return nil, nil, unstarted(err)
	}
	s.flag.remark(notContained, err)
	s.plainly = true
	return startPlainly(path, argv, attr)
}

// fenceOff returns the files of devices that are not the lgpu's, and as root a cgroup that may not open them, also
// under other names. What is not possible is said, and leaves the files to be used as without containment.
func (f *containFlag) fenceOff(a *api.Attachment, sim bool) ([]string, *fence.Fence) {
	var own []fence.Owned
	if !sim {
		own = owned(a.Devices)
	}
	others, err := fence.Others(own)
	if err != nil {
		f.remark("device files of others stay as they are", err)
	}
	files, devices := fence.Files(others)
	if len(devices) == 0 || os.Geteuid() != 0 {
		return files, &fence.Fence{}
	}
	fenced, err := fence.Make(devices)
	if err != nil {
		f.remark("device files of others are hidden, and no cgroup forbids to open them", err)
		return files, &fence.Fence{}
	}
	return files, fenced
}

// owned are devices as their files are found.
func owned(devices []*api.Device) (own []fence.Owned) {
	for _, d := range devices {
		o := fence.Owned{GPU: d.GetUuid()}
		if d.GetParent() != "" && d.GpuInstance != nil && d.ComputeInstance != nil {
			o = fence.Owned{GPU: d.GetParent(), Instance: &fence.Instance{GPU: d.GetGpuInstance(), Compute: d.GetComputeInstance()}}
		}
		own = append(own, o)
	}
	return own
}

// tryContain builds the namespace of a program on a software GPU, and returns why that is not possible.
func tryContain() error {
	libs, err := assets.Install()
	if err != nil {
		return err
	}
	plan, err := contain.Make(contain.Options{
		Interposer: libs.Interposer, Dir: libs.Contained(), Environment: []string{"LD_LIBRARY_PATH=" + libs.SimDir},
	})
	if err != nil {
		return err
	}
	return plan.Try()
}

// withPreload is env with another LD_PRELOAD, or without it.
func withPreload(env []string, list string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") })
	if list == "" {
		return env
	}
	return append(env, "LD_PRELOAD="+list)
}
