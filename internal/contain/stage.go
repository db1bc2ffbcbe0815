package contain

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// StageArgument is the first argument of this executable when Start starts it: it then calls Stage (see package early).
const StageArgument = "contained-stage"

// Staged reports whether this process was started to become a contained program.
func Staged() bool { return len(os.Args) == 3 && os.Args[1] == StageArgument }

// maxPlan bounds what the stage reads, and maxAnswer what it answers; a cache is most of a plan.
const (
	maxPlan   = 128 << 20
	maxAnswer = 64 << 10
)

// Impossible is why a namespace could not be built. Nothing of the program has run.
type Impossible struct{ Err error }

func (e *Impossible) Error() string { return e.Err.Error() }

// Unwrap returns what was in the way.
func (e *Impossible) Unwrap() error { return e.Err }

// Started is a program that is about to run in its namespace.
type Started struct {
	Process *os.Process

	answer *os.File
}

// answer is what the stage says.
type answer struct {
	ready bool
	built string        // why the namespace could not be built
	exec  syscall.Errno // why the program could not be executed
}

// What it says it in: a letter just before it becomes the program, and then the stream ends; or one and why it has not.
// There is no time to describe types, as the stream of the plan does, which is read while the stage begins.
const (
	sayReady = 'R'
	sayBuilt = 'B' // and a text
	sayExec  = 'X' // and a number, after sayReady
)

// readAnswer reads to the end, when the stage has become the program or has ended.
func readAnswer(r io.Reader) (a answer) {
	text, _ := io.ReadAll(io.LimitReader(r, maxAnswer)) // what cannot be read has not been said
	text, a.ready = bytes.CutPrefix(text, []byte{sayReady})
	if number, is := bytes.CutPrefix(text, []byte{sayExec}); is {
		n, _ := strconv.Atoi(string(number)) // the stage wrote it
		a.exec = syscall.Errno(n)
	}
	if why, is := bytes.CutPrefix(text, []byte{sayBuilt}); is {
		a.built = string(why)
	}
	return a
}

// Start starts the program, as os.StartProcess does, in a namespace of its own. The program has what this process has
// inherited, so also further open files. Confirm tells how it went, and must be called once.
func (p *Plan) Start(path string, argv []string, attr *os.ProcAttr) (*Started, error) {
	q := *p
	q.Program, q.Args, q.Env = path, argv, attr.Env
	if q.Env == nil {
		q.Env = os.Environ()
	}
	return q.start(attr)
}

// Try builds the namespace once and returns why that is not possible.
func (p *Plan) Try() error {
	q := *p
	q.Program, q.Cgroup, q.Tasks = "", "", ""
	s, err := q.start(&os.ProcAttr{})
	if err != nil {
		return err
	}
	if err := s.Confirm(); err != nil {
		return err
	}
	_, err = s.Process.Wait()
	return err
}

// Confirm returns nil when the program runs, and when a signal has ended it before. Else there is no process any more,
// and the error is *Impossible or what execve(2) returned.
func (s *Started) Confirm() error {
	defer s.answer.Close()
	last := readAnswer(s.answer)
	if last.ready && last.exec == 0 {
		return nil
	}
	if last.built == "" && last.exec == 0 {
		var info unix.Siginfo
		for unix.Waitid(unix.P_PID, s.Process.Pid, &info, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
		if info.Code != exited {
			return nil // as a program that is killed at its begin: whoever waits for it sees that
		}
		last.built = "it ended while its namespace was built"
	}
	if _, err := s.Process.Wait(); err != nil {
		return err
	}
	if last.exec != 0 {
		return last.exec
	}
	return &Impossible{errors.New(last.built)}
}

// exited is CLD_EXITED: a process that has ended by itself.
const exited = 1

// start starts the stage and sends it the plan.
func (p *Plan) start(attr *os.ProcAttr) (*Started, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, &Impossible{err}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, &Impossible{fmt.Errorf("make a pair of sockets: %w", err)}
	}
	ours := os.NewFile(uintptr(pair[0]), "stage")
	process, err := p.fork(self, pair[1], attr)
	if err != nil {
		ours.Close()
		return nil, &Impossible{fmt.Errorf("make a namespace: %w", err)}
	}
	// A stage that ends before it has read all says why, or its end does: the errors here add nothing.
	_ = gob.NewEncoder(ours).Encode(p)
	_ = unix.Shutdown(pair[0], unix.SHUT_WR)
	return &Started{process, ours}, nil
}

// fork starts the stage, in the plan's cgroup if the kernel can, with socket, which it closes here. The stage gets it at a
// number that is free in this process: all that this process has inherited and passes on stays where it is.
func (p *Plan) fork(self string, socket int, attr *os.ProcAttr) (*os.Process, error) {
	defer unix.Close(socket)
	a := *attr
	a.Env = []string{} // what the program's has for the loader and for Go is not for the stage
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
	forking.Lock() // else a stage would inherit the socket of another, and the other's stream would not end
	defer forking.Unlock()
	inherited, err := unix.FcntlInt(uintptr(socket), unix.F_DUPFD, max(len(a.Files), 3))
	if err != nil {
		return nil, err
	}
	defer unix.Close(inherited)
	argv := []string{"lgpu", StageArgument, strconv.Itoa(inherited)}
	if p.Cgroup == "" {
		return os.StartProcess(self, argv, &a)
	}
	cgroup, err := os.Open(p.Cgroup)
	if err != nil {
		return nil, err
	}
	defer cgroup.Close()
	sys.UseCgroupFD, sys.CgroupFD = true, int(cgroup.Fd())
	process, err := os.StartProcess(self, argv, &a)
	if err != nil { // such as by a kernel before 5.7, or a filter of system calls that does not know clone3
		sys.UseCgroupFD, p.Late = false, true
		return os.StartProcess(self, argv, &a)
	}
	return process, nil
}

var forking sync.Mutex

// Stage builds the namespace of the plan that Start sends, and becomes the program. It returns only after an error,
// which Start's caller is told, or with nil if there was nothing but to try.
func Stage() error {
	runtime.LockOSThread()
	n, err := strconv.Atoi(os.Args[2])
	if err != nil || n < 3 {
		return errors.New("this is a part of lgpu run, and not a command")
	}
	unix.CloseOnExec(n)
	socket := os.NewFile(uintptr(n), "stage")
	var p Plan
	if err := gob.NewDecoder(io.LimitReader(socket, maxPlan)).Decode(&p); err != nil {
		return fmt.Errorf("this is a part of lgpu run, and not a command: %w", err)
	}
	say := func(what rune, why string) error {
		_, err := socket.WriteString(string(what) + why)
		return err
	}
	if err := p.enter(); err != nil {
		return errors.Join(err, say(sayBuilt, err.Error()))
	}
	err = say(sayReady, "")
	if err == nil && p.Holds {
		socket.Close() // who started it has all that it waits for
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	if err != nil || p.Program == "" {
		return err // without who started it, nothing is started
	}
	err = unix.Exec(p.Program, p.Args, p.Env)
	errno := syscall.EINVAL
	errors.As(err, &errno)
	return errors.Join(err, say(sayExec, strconv.Itoa(int(errno))))
}

// enter does all that comes before the program.
func (p *Plan) enter() error {
	for _, path := range p.joins() {
		if err := os.WriteFile(path, []byte("0"), 0); err != nil {
			return fmt.Errorf("enter a cgroup: %w", err)
		}
	}
	if err := p.build(); err != nil {
		return err
	}
	return dropCapabilities()
}

// joins are the files in which the stage enters itself: with cgroup.procs the whole process, and with tasks this thread,
// which the program goes on as.
func (p *Plan) joins() (paths []string) {
	if p.Late {
		paths = append(paths, filepath.Join(p.Cgroup, "cgroup.procs"))
	}
	if p.Tasks != "" {
		paths = append(paths, p.Tasks)
	}
	return paths
}

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

// mountSource is what is said to be mounted where the folder in memory is.
const mountSource = "lgpu"

// build mounts everything, in this process's namespace.
func (p *Plan) build() error {
	defer unix.Umask(unix.Umask(0)) // every user of the program reads what is made here
	library, err := os.Open(p.Interposer)
	if err != nil {
		return fmt.Errorf("read the interposer: %w", err)
	}
	defer library.Close()
	// What is mounted outside later appears here too, and nothing of this outside.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	if err := mount(mountSource, p.Dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=64m"); err != nil {
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
func (p *Plan) place(library *os.File) error {
	if err := os.Mkdir(filepath.Join(p.Dir, "real"), 0o755); err != nil {
		return err
	}
	write := func(name string, data []byte, mode os.FileMode) error {
		return os.WriteFile(filepath.Join(p.Dir, name), data, mode)
	}
	if err := p.copyStamped(library, filepath.Join(p.Dir, "liblgpu.so")); err != nil {
		return err
	}
	if p.Cache != nil {
		if err := write("ld.so.cache", p.Cache, 0o644); err != nil {
			return err
		}
	}
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err == nil {
		err = write(noteFile, []byte(strings.Join(append([]string{own}, p.Kept...), "\x00")), 0o600)
	}
	if err != nil {
		return err
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

// copyStamped writes a stamped copy of the library. The kernel copies it: that much memory of a process that has just begun
// would take longer than the mounts.
func (p *Plan) copyStamped(library *os.File, path string) error {
	info, err := library.Stat()
	if err != nil {
		return err
	}
	at, text, err := stampFor(library, info.Size(), p.Stamp)
	if err != nil {
		return fmt.Errorf("stamp %s: %w", p.Interposer, err)
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, library)
	if err == nil {
		_, err = out.WriteAt(text, at)
	}
	return errors.Join(err, out.Close())
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
