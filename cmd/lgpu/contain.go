package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

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

// containFlag says whether programs get a mount namespace in which the driver's libraries are lgpu's.
type containFlag struct{ mode string }

func (f *containFlag) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.mode, "contain", containOff, "put lgpu's library in the place of the driver's: `WHEN` is on,\nauto (where it can) or off")
	flags.Lookup("contain").NoOptDefVal = containOn
}

func (f *containFlag) check() error {
	if slices.Contains([]string{containOn, containAuto, containOff}, f.mode) {
		return nil
	}
	return usage("lgpu run --contain=on -- ./program", "--contain %q: it is on, off or auto", f.mode)
}

// prepared is how programs of an lgpu are started.
type prepared struct {
	env   []string
	start starter
	close func()
}

// prepare decides how programs are started in the lgpu that this process is attached to.
func (f *containFlag) prepare(libs assets.Libraries, a *api.Attachment, sim bool) (*prepared, error) {
	env := tenantEnv(os.Environ(), libs, a.Environment)
	open := &prepared{env: env, start: os.StartProcess, close: func() {}}
	if f.mode == containOff {
		return open, nil
	}
	p, err := contained(withPreload(env, lookup(os.Environ(), "LD_PRELOAD")), libs, a, sim)
	switch {
	case err == nil:
		return p, nil
	case f.mode == containAuto:
		fmt.Fprintln(os.Stderr, "lgpu: warning: the program is not contained:", err)
		return open, nil
	}
	e := &exit{status: statusFailed, err: fmt.Errorf("--contain: %w", err), hint: "--contain=off runs the program without; lgpu doctor has more"}
	if reason := contain.Reason(); reason != "" && os.Geteuid() != 0 {
		e.hint = "this user may make no namespace, as " + reason + "; --contain=off runs the program without"
	}
	return nil, e
}

// contained prepares a namespace, and makes sure that it can be made.
func contained(env []string, libs assets.Libraries, a *api.Attachment, sim bool) (*prepared, error) {
	files, fenced := fenceOff(a, sim)
	plan, err := contain.Make(contain.Options{
		Interposer: libs.Interposer, Dir: containedDir(libs), Environment: env, Stamp: a.Environment,
		Hide: files, Join: fenced.Join,
	})
	if err == nil {
		err = plan.Try()
	}
	if err != nil {
		fenced.Close()
		return nil, err
	}
	return &prepared{env: plan.Environment(env), start: plan.Start, close: fenced.Close}, nil
}

// fenceOff returns the files of devices that are not the lgpu's, and as root a cgroup that may not open them, also
// under other names. What is not possible is said, and leaves the files to be used as without containment.
func fenceOff(a *api.Attachment, sim bool) ([]string, *fence.Fence) {
	var own []string
	if !sim {
		for _, d := range a.Devices {
			own = append(own, d.GetUuid())
		}
	}
	others, err := fence.Others(own)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lgpu: warning: device files of others stay as they are:", err)
	}
	files, devices := fence.Files(others)
	if len(devices) == 0 || os.Geteuid() != 0 {
		return files, &fence.Fence{}
	}
	fenced, err := fence.Make(devices)
	if err != nil {
		fmt.Fprintln(os.Stderr, "lgpu: warning: device files of others are hidden, and no cgroup forbids to open them:", err)
		return files, &fence.Fence{}
	}
	return files, fenced
}

// tryContain builds the namespace of a program on a software GPU, and returns why that is not possible.
func tryContain() error {
	libs, err := assets.Install()
	if err != nil {
		return err
	}
	plan, err := contain.Make(contain.Options{
		Interposer: libs.Interposer, Dir: containedDir(libs), Environment: []string{"LD_LIBRARY_PATH=" + libs.SimDir},
	})
	if err != nil {
		return err
	}
	return plan.Try()
}

// containedDir is where the libraries of contained programs are.
func containedDir(libs assets.Libraries) string { return filepath.Join(libs.Dir, "contained") }

// withPreload is env with another LD_PRELOAD, or without it.
func withPreload(env []string, list string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "LD_PRELOAD=") })
	if list == "" {
		return env
	}
	return append(env, "LD_PRELOAD="+list)
}

// stage becomes a contained program, or says why that is not possible and returns the status to end with.
func stage() int {
	err := contain.Stage()
	var not *contain.NotStarted
	switch {
	case err == nil:
		return 0
	case errors.As(err, &not):
		fmt.Fprintf(os.Stderr, "lgpu: error: %v\n", not)
		return statusNotExecutable
	}
	fmt.Fprintln(os.Stderr, "lgpu: error:", err)
	return statusFailed
}
