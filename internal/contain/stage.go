package contain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// StageArgument is the first argument of this executable when Start starts it: its main function then calls Stage.
const StageArgument = "contained-stage"

// planFile is the descriptor with the plan, in the stage.
const planFile = 3

// maxPlan bounds what the stage reads; a cache is most of it.
const maxPlan = 128 << 20

// Start starts the program, as os.StartProcess does, in a namespace of its own. An error of building the namespace is
// the program's exit status 1, with a line on its standard error: use Try before.
func (p *Plan) Start(path string, argv []string, attr *os.ProcAttr) (*os.Process, error) {
	q := *p
	q.Program, q.Args = path, argv
	return q.start(attr)
}

// Try builds the namespace once and returns why that is not possible.
func (p *Plan) Try() error {
	q := *p
	q.Program, q.Join = "", nil
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	process, err := q.start(&os.ProcAttr{Files: []*os.File{nil, w, w}})
	w.Close()
	if err != nil {
		return fmt.Errorf("make a namespace: %w", err)
	}
	text, _ := io.ReadAll(io.LimitReader(r, 4096))
	state, err := process.Wait()
	if err != nil {
		return err
	}
	if !state.Success() {
		why := strings.TrimPrefix(strings.TrimSpace(string(text)), "lgpu: error: ")
		return errors.New(strings.ReplaceAll(why, "\n", "; "))
	}
	return nil
}

func (p *Plan) start(attr *os.ProcAttr) (*os.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file, err := p.file()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	a := *attr
	a.Files = append(append([]*os.File{}, attr.Files...), file)
	sys := syscall.SysProcAttr{}
	if attr.Sys != nil {
		sys = *attr.Sys
	}
	sys.Cloneflags |= syscall.CLONE_NEWNS
	if os.Geteuid() != 0 {
		// The same user and group inside as outside, and for the stage alone what it needs to mount.
		sys.Cloneflags |= syscall.CLONE_NEWUSER
		sys.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		sys.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		sys.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN}
	}
	a.Sys = &sys
	return os.StartProcess(self, []string{"lgpu", StageArgument}, &a)
}

// file returns a file in memory with the plan in it.
func (p *Plan) file() (*os.File, error) {
	fd, err := unix.MemfdCreate("lgpu plan", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "plan")
	if err := json.NewEncoder(f).Encode(p); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Stage builds the namespace that the plan on descriptor 3 describes, and becomes the program. It returns only after an
// error, which wraps *NotStarted if the program could not be executed, or with nil if there was nothing but to try.
func Stage() error {
	runtime.LockOSThread()
	f := os.NewFile(planFile, "plan")
	if f == nil {
		return errors.New("this is a part of lgpu run, and not a command")
	}
	var p Plan
	if err := json.NewDecoder(io.LimitReader(f, maxPlan)).Decode(&p); err != nil {
		return fmt.Errorf("read the plan of a contained program: %w", err)
	}
	f.Close()
	for _, path := range p.Join {
		if err := os.WriteFile(path, []byte("0"), 0); err != nil {
			return fmt.Errorf("enter a cgroup: %w", err)
		}
	}
	if err := p.build(); err != nil {
		return err
	}
	if p.Program == "" {
		return nil
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	return &NotStarted{p.Args[0], unix.Exec(p.Program, p.Args, os.Environ())}
}

// NotStarted is why a command could not be executed.
type NotStarted struct {
	Command string
	Err     error
}

func (e *NotStarted) Error() string {
	return fmt.Sprintf("command %q cannot be executed: %v", e.Command, e.Err)
}

// Unwrap returns the system's error.
func (e *NotStarted) Unwrap() error { return e.Err }

// dropCapabilities gives up what the stage alone needs. A user who is not root gets a program without capabilities.
func dropCapabilities() error {
	if os.Geteuid() == 0 {
		return nil // no user namespace was made: what the launcher has is the program's, as without containment
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return nil
}

// build mounts everything, in this process's namespace.
func (p *Plan) build() error {
	defer unix.Umask(unix.Umask(0)) // every user of the program reads what is made here
	library, err := os.ReadFile(p.Interposer)
	if err != nil {
		return fmt.Errorf("read the interposer: %w", err)
	}
	if library, err = stamp(library, p.Stamp); err != nil {
		return fmt.Errorf("stamp %s: %w", p.Interposer, err)
	}
	// What is mounted outside later appears here too, and nothing of this outside.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	if err := mount("lgpu", p.Dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=64m"); err != nil {
		return err
	}
	if err := p.place(library); err != nil {
		return fmt.Errorf("write the contained libraries: %w", err)
	}
	for soname, file := range p.Real { // before anything covers them
		if err := bind(file, p.real(soname)); err != nil {
			return err
		}
	}
	own := filepath.Join(p.Dir, "liblgpu.so")
	for _, file := range p.Covers {
		if err := bind(own, file); err != nil {
			return err
		}
	}
	if p.Cache != nil {
		if err := bind(filepath.Join(p.Dir, "ld.so.cache"), cachePath); err != nil {
			return err
		}
	}
	for _, file := range p.Hide {
		if err := shut(file); err != nil {
			return err
		}
	}
	return mount("", p.Dir, "", unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, "")
}

// place writes what the folder in memory has.
func (p *Plan) place(library []byte) error {
	if err := os.Mkdir(filepath.Join(p.Dir, "real"), 0o755); err != nil {
		return err
	}
	write := func(name string, data []byte, mode os.FileMode) error {
		return os.WriteFile(filepath.Join(p.Dir, name), data, mode)
	}
	if err := write("liblgpu.so", library, 0o755); err != nil {
		return err
	}
	if p.Cache != nil {
		if err := write("ld.so.cache", p.Cache, 0o644); err != nil {
			return err
		}
	}
	for soname := range p.Real {
		if err := os.Symlink("liblgpu.so", filepath.Join(p.Dir, soname)); err != nil {
			return err
		}
		if err := write(filepath.Join("real", soname), nil, 0o755); err != nil { // a place to mount on
			return err
		}
	}
	return nil
}

func mount(source, target, kind string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, kind, flags, data); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// bind puts a file in the place of another.
func bind(file, over string) error {
	if err := unix.Mount(file, over, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s over %s: %w", file, over, err)
	}
	return nil
}

// shut makes a device file one that cannot be opened (EACCES). That is what programs meet in a cgroup that may not use
// a device, and they take it for a device that is not theirs.
func shut(device string) error {
	if err := bind(device, device); err != nil {
		return err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(device, &s); err != nil {
		return fmt.Errorf("look at %s: %w", device, err)
	}
	// A mount from outside keeps the flags that it has: they cannot be taken away in a user namespace.
	const kept = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME | unix.MS_RELATIME
	flags := uintptr(s.Flags)&kept | unix.MS_BIND | unix.MS_REMOUNT | unix.MS_NODEV
	return mount("", device, "", flags, "")
}

// Reason says in a few words why a kernel does not permit a user namespace, from the settings that are known to forbid it;
// empty if they do not.
func Reason() string {
	for _, s := range []struct{ path, forbids, why string }{
		{"/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces is 0"},
		{"/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone is 0"},
		{"/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns is 1"},
	} {
		if text, err := os.ReadFile(s.path); err == nil && strings.TrimSpace(string(text)) == s.forbids {
			return s.why
		}
	}
	return ""
}
