package doctor

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/lgpu/lgpu/internal/assets"
	"github.com/lgpu/lgpu/internal/contain"
	"github.com/lgpu/lgpu/internal/dmem"
	"github.com/lgpu/lgpu/internal/rundir"
	"github.com/lgpu/lgpu/sim"
)

// Options are what Look needs of the program that calls it.
type Options struct {
	Version string // of this lgpu
	// SimCommand becomes the hardware of a software GPU (sim.StartOptions.Command).
	SimCommand []string
	// Daemon asks the daemon who it is and starts none. Its error is judged as Daemon.Err says. It may fill Socket
	// beside an error.
	Daemon func(context.Context) (Daemon, error)
	// Contain builds the namespace of a contained program and returns why that is not possible. nil: it is not tried.
	Contain func() error
	// Dmem is the folder that lgpud.conf names for lgpus' cgroups (dmem.cgroup), empty if none.
	Dmem string
	// Programs are executable files to examine, as paths or as names that PATH finds.
	Programs []string
}

// patience bounds each thing that is tried by starting a process.
const patience = 10 * time.Second

// Look finds out about this machine. It starts short-lived processes, and a software GPU in a folder of its own; it
// changes nothing but that it installs lgpu's libraries and makes the runtime folder, as every lgpu run does. It takes
// a second or two; when ctx ends, what was not tried has ctx's error.
func Look(ctx context.Context, o Options) *Machine {
	m := &Machine{
		Version: o.Version, User: os.Geteuid(), Environment: os.Environ(),
		Driver: lookDriver(), MPS: lookMPS(), Kernel: lookKernel(), CGroup: lookCGroup(), FUSE: lookFUSE(),
		Host: lookHost(), Library: lookLibrary(ctx), Runtime: lookRuntime(),
		Container: lookContainer(), ForeignPIDs: foreignPIDs(),
	}
	m.Dmem = lookDmem(m.CGroup.V2, o.Dmem)
	m.CRIU = lookCRIU(ctx)
	m.Nodes = lookNodes(m.Driver.Devices)
	if text, err := os.ReadFile("/etc/ld.so.preload"); err == nil {
		m.LDPreload = string(text)
	}
	if o.Daemon != nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		d, err := o.Daemon(ctx)
		cancel()
		d.Err = err
		m.Daemon = d
	} else {
		m.Daemon.Err = fs.ErrNotExist
	}
	if o.Contain != nil {
		m.Contain = Contain{Tried: true, Err: o.Contain(), Forbid: contain.Reason()}
	}
	m.Sim = trySim(ctx, o.SimCommand)
	for _, name := range o.Programs {
		m.Programs = append(m.Programs, lookProgram(name))
	}
	return m
}

// lookNodes tries the device files of the driver and of devices, or where those are not known, of those that exist.
func lookNodes(devices []Device) []Node {
	paths := []string{"/dev/nvidiactl", uvm}
	for _, d := range devices {
		if d.Minor >= 0 {
			paths = append(paths, "/dev/nvidia"+strconv.Itoa(d.Minor))
		}
	}
	if len(devices) == 0 {
		// The pattern is well formed, which is all that Glob complains of.
		found, _ := filepath.Glob("/dev/nvidia[0-9]*")
		paths = append(paths, found...)
	}
	nodes := make([]Node, len(paths))
	for i, path := range paths {
		nodes[i] = Node{Path: path}
		// Asking does not open the device, which would start it.
		if err := unix.Faccessat(unix.AT_FDCWD, path, unix.R_OK|unix.W_OK, unix.AT_EACCESS); err != nil {
			nodes[i].Err = &fs.PathError{Op: "access", Path: path, Err: err}
		}
	}
	return nodes
}

func lookMPS() MPS {
	var m MPS
	if path, err := exec.LookPath("nvidia-cuda-mps-control"); err == nil {
		m.Control = path
	}
	dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY")
	if dir == "" {
		dir = "/tmp/nvidia-mps"
	}
	text, err := os.ReadFile(filepath.Join(dir, "nvidia-cuda-mps-control.pid"))
	if err != nil {
		return m
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil && pid > 0 && !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		m.Foreign = filepath.Join(dir, "control")
	}
	return m
}

func lookKernel() Kernel {
	return Kernel{Release: release(), PIDFD: tryPIDFD(), FutureWrite: trySeals(), PeerPIDFD: tryPeer()}
}

func release() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "?"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func tryPIDFD() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	return unix.Close(fd)
}

func trySeals() error {
	fd, err := unix.MemfdCreate("lgpu doctor", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
		return fmt.Errorf("F_SEAL_FUTURE_WRITE: %w", err)
	}
	return nil
}

func tryPeer() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socketpair: %w", err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	fd, err := unix.GetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return fmt.Errorf("SO_PEERPIDFD: %w", err)
	}
	return unix.Close(fd)
}

func lookCGroup() CGroup {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return CGroup{}
	}
	return cgroups(text)
}

// lookDmem reads what the controller dmem bounds. Only the root of the hierarchy, which is mounted at v2, has the file,
// and only where the kernel has the controller.
func lookDmem(v2, asked string) Dmem {
	d := Dmem{Asked: asked}
	if v2 == "" {
		return d
	}
	text, err := os.ReadFile(filepath.Join(v2, "dmem.capacity"))
	if err != nil {
		return d
	}
	for _, r := range dmem.ParseRegions(text) {
		d.Regions = append(d.Regions, r.Name)
	}
	return d
}

// cgroups reads which hierarchies a table of mounts has.
func cgroups(mounts []byte) CGroup {
	var c CGroup
	for line := range bytes.Lines(mounts) {
		fields := bytes.Fields(line)
		if len(fields) < 3 {
			continue
		}
		switch string(fields[2]) {
		case "cgroup":
			c.V1 = true
		case "cgroup2":
			if c.V2 == "" {
				c.V2 = string(fields[1])
			}
		}
	}
	return c
}

func lookFUSE() FUSE {
	var f FUSE
	device, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		err = device.Close()
	}
	f.Device = err
	if path, err := exec.LookPath("fusermount3"); err == nil {
		f.Mount = path
	}
	return f
}

func lookLibrary(ctx context.Context) Library {
	libraries, err := assets.Install()
	if err != nil {
		return Library{Err: err}
	}
	return Library{Interposer: libraries.Interposer, Preload: tryPreload(ctx, libraries.Interposer), LibC: libC()}
}

// tryPreload starts a program with the library and looks for the library in its address space.
func tryPreload(ctx context.Context, library string) error {
	cat, err := exec.LookPath("cat")
	if err != nil {
		return fmt.Errorf("no program to try it with: %w", err)
	}
	if p := lookProgram(cat); p.Err == nil && p.Script == "" && p.Interpreter == "" {
		return fmt.Errorf("no program to try it with: %s is static", cat)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var complaint bytes.Buffer
	c := exec.CommandContext(ctx, cat, "/proc/self/maps")
	c.Env = append(os.Environ(), "LD_PRELOAD="+library)
	c.Stderr = &complaint
	maps, err := c.Output()
	switch {
	case err != nil:
		return fmt.Errorf("%s with LD_PRELOAD=%s: %w", cat, library, err)
	case bytes.Contains(maps, []byte(filepath.Base(library))):
		return nil
	case complaint.Len() > 0:
		first, _, _ := strings.Cut(complaint.String(), "\n")
		return errors.New("the loader says: " + strings.TrimSpace(first))
	}
	return fmt.Errorf("%s started with LD_PRELOAD=%s did not load it", cat, library)
}

// libC names the C library that this machine's programs use, or is empty.
func libC() string {
	library, err := purego.Dlopen("libc.so.6", purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return ""
	}
	defer purego.Dlclose(library)
	symbol, err := purego.Dlsym(library, "gnu_get_libc_version")
	if err != nil {
		return ""
	}
	var version func() string
	purego.RegisterFunc(&version, symbol)
	return "glibc " + version()
}

func lookRuntime() Runtime {
	dir, err := rundir.Dir()
	if err != nil {
		return Runtime{Err: err}
	}
	_, err = os.Stat(filepath.Join(dir, "tree"))
	return Runtime{Dir: dir, Tree: err}
}

// lookContainer names what runs this container by the marks that each leaves.
func lookContainer() string {
	for _, mark := range []struct{ path, name string }{
		{"/run/.containerenv", "podman"}, {"/.dockerenv", "docker"},
	} {
		if _, err := os.Stat(mark.path); err == nil {
			return mark.name
		}
	}
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return "kubernetes"
	}
	return os.Getenv("container") // systemd-nspawn, lxc
}

// foreignPIDs reports whether the PID namespace is another than the machine's first, whose inode is fixed
// (PROC_PID_INIT_INO in the kernel).
func foreignPIDs() bool {
	var s unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &s) == nil && s.Ino != 0xEFFFFFFC
}

// trySim starts a small software GPU in a folder of its own and asks it for its device.
func trySim(ctx context.Context, command []string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "lgpu-doctor-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	shape, err := sim.ParseShape("1x256MiB,sms=1")
	if err != nil {
		return err
	}
	hardware, err := sim.Start(shape, sim.StartOptions{
		Dir: dir, Command: command, Idle: 10 * time.Millisecond, Timeout: patience,
	})
	if err != nil {
		return err
	}
	devices, err := hardware.Client.Devices()
	if err == nil && len(devices) != 1 {
		err = fmt.Errorf("it has %s in place of 1", number(len(devices), "device"))
	}
	return errors.Join(err, hardware.Close())
}

// lookProgram reads what the loader would read of a program.
func lookProgram(name string) Program {
	p := Program{Path: name}
	path, err := exec.LookPath(name)
	if err != nil {
		p.Err = err
		return p
	}
	p.Path = path
	if p.Err = p.read(); p.Err != nil {
		p.Err = fmt.Errorf("read %s: %w", path, p.Err)
	}
	return p
}

func (p *Program) read() error {
	f, err := os.Open(p.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = unix.Getxattr(p.Path, "security.capability", nil)
	p.Setuid = info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 || err == nil
	return p.parse(f)
}

// maxInterpreter is the longest path of a dynamic loader or script interpreter: PATH_MAX.
const maxInterpreter = 4096

// parse reads the first line of a script or the headers of an ELF file.
func (p *Program) parse(r io.ReaderAt) error {
	head := make([]byte, maxInterpreter)
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	head = head[:n]
	if script, is := bytes.CutPrefix(head, []byte("#!")); is {
		line, _, _ := bytes.Cut(script, []byte("\n"))
		fields := strings.Fields(string(line))
		if len(fields) == 0 {
			return errors.New("it is a script of nothing")
		}
		p.Script = fields[0]
		if filepath.Base(p.Script) == "env" && len(fields) > 1 {
			p.Script = fields[len(fields)-1]
		}
		return nil
	}
	file, err := elf.NewFile(r)
	if err != nil {
		return err
	}
	p.Machine = file.Machine
	for _, segment := range file.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		text := make([]byte, min(segment.Filesz, maxInterpreter))
		if _, err := segment.ReadAt(text, 0); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("its loader's name: %w", err)
		}
		name, _, _ := bytes.Cut(text, []byte{0})
		p.Interpreter = string(name)
	}
	return nil
}
