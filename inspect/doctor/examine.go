package doctor

import (
	"cmp"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/lgpu/lgpu/gpu/nvidia"
	"github.com/lgpu/lgpu/gpu/nvidia/ctxswitch"
	"github.com/lgpu/lgpu/internal/assets"
)

// Examine judges what Look found. It looks at nothing but m.
func Examine(m *Machine) Report {
	e := examination{m: m}
	for _, check := range []func(*examination){
		(*examination).driver, (*examination).nodes, (*examination).devices, (*examination).mps,
		(*examination).kernel, (*examination).cgroup, (*examination).fuse,
		(*examination).host, (*examination).library, (*examination).contain, (*examination).criu, (*examination).environment, (*examination).container,
		(*examination).runtime, (*examination).daemon, (*examination).sim, (*examination).programs,
	} {
		check(&e)
	}
	return e.report
}

type examination struct {
	m      *Machine
	report Report
}

func (e *examination) add(s Status, check, detail, remedy string) {
	e.report.Results = append(e.report.Results, Result{Check: check, Status: s, Detail: detail, Remedy: remedy})
}

func (e *examination) ok(check, format string, args ...any) {
	e.add(OK, check, fmt.Sprintf(format, args...), "")
}

func (e *examination) driver() {
	const check = "driver"
	d := &e.m.Driver
	switch {
	case d.Err == nil && len(d.Devices) == 0:
		e.add(Warn, check, "NVIDIA driver "+d.Version+" is loaded and sees no GPU",
			"look for the card with lspci -d 10de: and for its faults with dmesg; lgpu run --sim works meanwhile")
	case d.Err == nil && major(d.Version) != 0 && major(d.Version) < 470:
		e.add(Warn, check, "NVIDIA driver "+d.Version+" does not say how many compute units a GPU has",
			"install driver 470 or newer; until then limits by units are refused")
	case d.Err == nil:
		e.ok(check, "NVIDIA driver %s, NVML %s, %s", d.Version, d.NVML, number(len(d.Devices), "GPU"))
	case d.Module != "":
		e.add(Fail, check, fmt.Sprintf("the kernel module %s is loaded and NVML cannot use it: %v", d.Module, d.Err),
			"restart the machine, or unload and load the modules, so that module and libraries have one version; "+
				"in a container, mount the host's libraries")
	case errors.Is(d.Err, nvidia.ErrNoDriver):
		e.add(Warn, check, "no NVIDIA driver", "lgpu run --sim works without; for real GPUs install NVIDIA's driver")
	default:
		e.add(Fail, check, "NVML cannot be used: "+d.Err.Error(), "reinstall the driver's libraries")
	}
}

func (e *examination) nodes() {
	if len(e.m.Driver.Devices) == 0 && e.m.Driver.Module == "" {
		return // there is no device to have a file
	}
	const check = "driver.files"
	var missing, forbidden, usable []string
	var other []error
	for _, n := range e.m.Nodes {
		switch {
		case n.Err == nil:
			usable = append(usable, n.Path)
		case errors.Is(n.Err, fs.ErrNotExist):
			missing = append(missing, n.Path)
		case errors.Is(n.Err, fs.ErrPermission):
			forbidden = append(forbidden, n.Path)
		default:
			other = append(other, fmt.Errorf("%s: %w", n.Path, n.Err))
		}
	}
	switch {
	case len(missing) == 1 && missing[0] == uvm && len(forbidden)+len(other) == 0:
		e.add(Warn, check, uvm+" does not exist yet", "the first program makes it where nvidia-modprobe is installed; "+
			"by hand: nvidia-modprobe -c 0 -u")
	case len(missing) > 0:
		e.add(Fail, check, "missing: "+strings.Join(missing, ", "),
			"nvidia-modprobe -c 0 -u makes them; in a container, start it with the GPU (--gpus all, or CDI)")
	case len(forbidden) > 0:
		e.add(Fail, check, "user "+strconv.Itoa(e.m.User)+" may not use "+strings.Join(forbidden, ", "),
			"join the group that owns them (often video), or ask for NVreg_DeviceFileMode=0666 of the nvidia module")
	case len(other) > 0:
		e.add(Fail, check, errors.Join(other...).Error(), "look at dmesg")
	default:
		e.ok(check, "%s can be read and written", strings.Join(usable, ", "))
	}
}

// uvm is the one device file that the driver's first user, not its start, brings about.
const uvm = "/dev/nvidia-uvm"

func (e *examination) devices() {
	for i := range e.m.Driver.Devices {
		d := &e.m.Driver.Devices[i]
		check := "device." + strconv.Itoa(d.Index)
		if d.Err != nil {
			e.add(Fail, check, "it cannot be asked: "+d.Err.Error(),
				"it may have fallen off the bus: look for Xid in dmesg, then reset or restart")
			continue
		}
		before := len(e.report.Results)
		e.device(check, d)
		if len(e.report.Results) == before {
			mig := ""
			if d.MIG == On {
				mig = "; MIG is on: lgpus are made on its instances, each on one"
			}
			e.ok(check, "%s, ready for sharing%s", d.Name, mig)
		}
		e.about(check+".inventory", d)
		e.switches(check+".switches", &d.Switches)
	}
}

// about says what a device is like, and how it reaches the others.
func (e *examination) about(check string, d *Device) {
	if d.About == nil {
		return
	}
	text := cmp.Or(d.About.Architecture, "unknown architecture") + ", compute capability " + cmp.Or(d.About.Capability, "unknown")
	if d.About.NUMA >= 0 {
		text += ", NUMA node " + strconv.Itoa(d.About.NUMA)
	}
	for _, l := range d.About.Links {
		at := slices.IndexFunc(e.m.Driver.Devices, func(o Device) bool { return o.UUID == l.Peer })
		if at < 0 {
			continue
		}
		path := l.Path
		if l.NVLinks > 0 {
			path += strconv.Itoa(l.NVLinks)
		}
		text += fmt.Sprintf(", %s to GPU %d", path, e.m.Driver.Devices[at].Index)
	}
	if n := len(d.About.MIG); n > 0 {
		text += ", " + number(n, "MIG profile")
	}
	e.ok(check, "%s", text)
}

// device adds a result for each setting of d that is in the way.
func (e *examination) device(check string, d *Device) {
	index := strconv.Itoa(d.Index)
	switch d.Compute {
	case ModeExclusiveProcess, ModeExclusiveThread:
		e.add(Fail, check, "compute mode EXCLUSIVE_PROCESS lets one process at a time use it, so nothing can be shared",
			"nvidia-smi -i "+index+" -c DEFAULT")
	case ModeProhibited:
		e.add(Fail, check, "compute mode PROHIBITED lets no process use it", "nvidia-smi -i "+index+" -c DEFAULT")
	}
	if d.MIG != d.MIGAfterReset && d.MIG != Unknown && d.MIGAfterReset != Unknown {
		e.add(Warn, check, "MIG mode changes with the next reset", "nvidia-smi -i "+index+" --gpu-reset, when it is idle")
	}
	if d.Persistence == Off {
		e.add(Warn, check, "persistence mode is off: the driver starts the device anew for each first program",
			"systemctl enable --now nvidia-persistenced, or nvidia-smi -i "+index+" -pm 1")
	}
}

// switches says whether it is known whose work a device ran when, without which lgpus there have it in turns only.
func (e *examination) switches(check string, s *Switches) {
	const follows = "; without it lgpus take turns here, and none is a guest beside another"
	user := strconv.Itoa(e.m.User)
	var u *ctxswitch.UnsupportedError
	switch {
	case errors.As(s.Err, &u):
		e.add(Warn, check, "the driver's log of context switches cannot be read: "+u.Err.Error(), u.Advice+follows)
	case s.Err != nil:
		e.add(Warn, check, "the driver's log of context switches cannot be read: "+s.Err.Error(), "look at dmesg"+follows)
	case s.OwnUser:
		e.add(Warn, check, "the driver shows user "+user+" the context switches of its own programs only",
			"run the daemon as root; until then lgpus of other users take turns here, and none of theirs is a guest")
	default:
		e.ok(check, "the driver's log of context switches can be read, so lgpus can be guests beside others")
	}
}

func (e *examination) mps() {
	if len(e.m.Driver.Devices) == 0 {
		return
	}
	switch p := &e.m.MPS; {
	case p.Foreign != "":
		e.add(Warn, "mps", "somebody's MPS daemon listens at "+p.Foreign+
			"; its programs share one context and are timed as one",
			"echo quit | nvidia-cuda-mps-control; lgpu starts its own where the spatial mode is asked for")
	case p.Control == "":
		e.add(Warn, "mps", "nvidia-cuda-mps-control is not installed: no spatial mode",
			"install the driver's compute utilities (Debian: nvidia-cuda-mps; Ubuntu: nvidia-compute-utils); "+
				"the temporal mode needs nothing")
	default:
		e.ok("mps", "%s, for the spatial mode", p.Control)
	}
}

func (e *examination) kernel() {
	k := &e.m.Kernel
	for _, f := range []struct {
		check, works, lacks string
		err                 error
		status              Status
		remedy              string
	}{
		{"kernel.pidfd", "a process is never mistaken for a later one, and its end is seen",
			"the daemon could not see a process die", k.PIDFD, Fail, "Linux 5.3 or newer; in a container, allow pidfd_open"},
		{"kernel.seals", "limits can be sealed against their tenant",
			"limits could not be sealed against their tenant", k.FutureWrite, Fail, "Linux 5.1 or newer"},
		{"kernel.peer", "a connection says which process made it",
			"a process that connects is identified by its id and start time", k.PeerPIDFD, Warn,
			"nothing needs to be done; Linux 6.5 or newer closes the small gap when a process id is used again"},
	} {
		if f.err == nil {
			e.ok(f.check, "%s", f.works)
		} else {
			e.add(f.status, f.check, fmt.Sprintf("%s: %v (Linux %s)", f.lacks, f.err, k.Release), f.remedy)
		}
	}
}

func (e *examination) cgroup() {
	switch c := &e.m.CGroup; {
	case c.V2 != "" && c.V1:
		e.ok("cgroup", "version 2 at %s beside version 1", c.V2)
	case c.V2 != "":
		e.ok("cgroup", "version 2 at %s", c.V2)
	case c.V1:
		e.ok("cgroup", "version 1")
	default:
		e.add(Warn, "cgroup", "no cgroups are mounted: none can be bound to a group of limits",
			"mount -t cgroup2 none /sys/fs/cgroup; lgpu run knows its programs without")
	}
	switch d := &e.m.Dmem; {
	case d.Asked != "" && len(d.Regions) > 0:
		e.ok("cgroup.dmem", "the kernel bounds the device memory of lgpus by cgroups in %s (%s)", d.Asked, strings.Join(d.Regions, ", "))
	case d.Asked != "":
		e.add(Warn, "cgroup.dmem", "lgpud.conf asks for bounds by the kernel (dmem.cgroup), and no driver takes part in them",
			"Linux 6.14 or newer, and NVIDIA's driver r615 or newer; else leave dmem.cgroup out")
	case len(d.Regions) > 0:
		e.ok("cgroup.dmem", "the kernel can bound device memory by cgroup (%s); lgpud.conf does not ask for it (dmem.cgroup)",
			strings.Join(d.Regions, ", "))
	}
}

func (e *examination) fuse() {
	f := &e.m.FUSE
	switch {
	case errors.Is(f.Device, fs.ErrNotExist):
		e.add(Warn, "fuse", "/dev/fuse does not exist: the tree of limits cannot be seen as files",
			"modprobe fuse; in a container, --device /dev/fuse. lgpu set and lgpu show work without")
	case f.Device != nil:
		e.add(Warn, "fuse", "/dev/fuse cannot be opened: "+f.Device.Error(),
			"chmod 0666 /dev/fuse; in a container, --device /dev/fuse --cap-add SYS_ADMIN. lgpu set and lgpu show work without")
	case e.m.User != 0 && f.Mount == "":
		e.add(Warn, "fuse", "fusermount3 is not installed: only root can see the tree of limits as files",
			"install fuse3; lgpu set and lgpu show work without")
	default:
		e.ok("fuse", "the tree of limits can be mounted")
	}
}

func (e *examination) library() {
	l := &e.m.Library
	switch {
	case errors.Is(l.Err, assets.ErrNotBuilt):
		e.add(Fail, "library", "this lgpu was built without its C libraries", "build it with make build")
		return
	case l.Err != nil:
		e.add(Fail, "library", l.Err.Error(), "make the folder writable, or name another with LGPU_LIBDIR")
		return
	}
	e.ok("library", "%s", l.Interposer)
	switch {
	case l.Preload != nil:
		e.add(Fail, "library.preload", l.Preload.Error(),
			"move the libraries with LGPU_LIBDIR to a folder that is not mounted noexec and that all users may read")
	case l.LibC != "":
		e.ok("library.preload", "programs load it (%s)", l.LibC)
	default:
		e.ok("library.preload", "programs load it")
	}
}

func (e *examination) contain() {
	const check = "contain"
	const follows = "lgpu run works all the same, for programs that keep their LD_PRELOAD"
	off := slices.Contains(e.m.Environment, "LGPU_CONTAIN=off")
	switch c := &e.m.Contain; {
	case !c.Tried:
	case c.Err == nil && off:
		e.ok(check, "programs could be contained, and are not: LGPU_CONTAIN=off")
	case c.Err == nil && e.m.User != 0:
		e.ok(check, "programs are contained, in a user namespace: sudo and other set-uid programs need lgpu run --contain=off")
	case c.Err == nil:
		e.ok(check, "programs are contained, unless lgpu run --contain=off")
	case e.m.User != 0 && c.Forbid != "":
		e.add(Warn, check, "programs are not contained: "+c.Err.Error(), "user "+strconv.Itoa(e.m.User)+" may make no namespace, as "+
			c.Forbid+"; root can change that with sysctl, or run the programs. "+follows)
	default:
		e.add(Warn, check, "programs are not contained: "+c.Err.Error(), "in a container, --cap-add SYS_ADMIN, or user namespaces. "+follows)
	}
}

// hami lists the environment that HAMi's device plugin sets and liblgpu.so reads where lgpu run set nothing.
var hami = []string{
	"CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_MEMORY_SHARED_CACHE", "CUDA_OVERSUBSCRIBE",
	"GPU_CORE_UTILIZATION_POLICY", "CUDA_TASK_PRIORITY", "CUDA_DISABLE_CONTROL", "LIBVGPU_HOSTPID_BROKER",
}

func (e *examination) environment() {
	var limits []string
	preload := ""
	for _, assignment := range e.m.Environment {
		name, value, _ := strings.Cut(assignment, "=")
		for _, h := range hami {
			if name == h || strings.HasPrefix(name, h+"_") {
				limits = append(limits, name)
			}
		}
		if name == "LD_PRELOAD" {
			preload = value
		}
	}
	switch {
	case strings.Contains(e.m.LDPreload, "libvgpu.so"):
		e.add(Fail, "hami", "/etc/ld.so.preload puts HAMi's libvgpu.so into every program, where it and lgpu's library "+
			"would both limit", "take the line with libvgpu.so out of /etc/ld.so.preload")
	case strings.Contains(preload, "libvgpu.so"):
		e.add(Fail, "hami", "LD_PRELOAD names HAMi's libvgpu.so; it and lgpu's library would both limit programs",
			"unset LD_PRELOAD")
	case len(limits) > 0:
		e.add(Warn, "hami", "HAMi's limits are in the environment: "+strings.Join(limits, ", "),
			"unset them if they are left over; lgpu run has its own limits, and lgpu's library obeys them only without lgpu run")
	default:
		e.ok("hami", "nothing of HAMi is in the way")
	}
}

func (e *examination) container() {
	m := e.m
	switch {
	case m.ForeignPIDs && m.Container != "":
		e.add(Warn, "container", "in a container ("+m.Container+") with process ids of its own: NVML's per-process figures "+
			"cannot be matched with programs here", "run the daemon on the host, or the container with --pid host")
	case m.ForeignPIDs:
		e.add(Warn, "container", "in a PID namespace: NVML's per-process figures cannot be matched with programs here",
			"run the daemon outside of it")
	case m.Container != "":
		e.ok("container", "in a container (%s) with the host's process ids", m.Container)
	default:
		e.ok("container", "not in a container")
	}
}

func (e *examination) runtime() {
	r := &e.m.Runtime
	switch {
	case r.Err != nil:
		e.add(Fail, "runtime", r.Err.Error(),
			"own it yourself and let nobody else write to it, or name another with LGPU_RUNTIME_DIR")
	case errors.Is(r.Tree, syscall.ENOTCONN):
		e.add(Warn, "runtime", filepath.Join(r.Dir, "tree")+" is mounted and its daemon gone",
			"the next daemon mounts it anew; by hand: fusermount3 -uz "+filepath.Join(r.Dir, "tree"))
	default:
		e.ok("runtime", "%s", r.Dir)
	}
}

func (e *examination) daemon() {
	d := &e.m.Daemon
	switch {
	case d.Err == nil && d.Version != e.m.Version:
		e.add(Warn, "daemon", fmt.Sprintf("the daemon (process %d) is version %s and this lgpu %s", d.PID, d.Version,
			e.m.Version),
			"restart it: systemctl restart lgpud, or end it and let lgpu run start another; running programs go on")
	case d.Err == nil:
		e.ok("daemon", "process %d, version %s, at %s", d.PID, d.Version, d.Socket)
		e.shared(d.Shared)
	case errors.Is(d.Err, fs.ErrNotExist):
		e.ok("daemon", "none runs; lgpu run starts one when it is needed")
	case errors.Is(d.Err, syscall.ECONNREFUSED):
		e.add(Warn, "daemon", "the last daemon did not shut down cleanly and left "+d.Socket,
			"nothing needs to be done: the next one takes its place; lgpud.log in the runtime folder may say why")
	case errors.Is(d.Err, os.ErrPermission):
		e.add(Fail, "daemon", "user "+strconv.Itoa(e.m.User)+" may not ask the daemon at "+d.Socket,
			"join the group that owns the socket; a daemon of your own (LGPU_RUNTIME_DIR) has devices only where no system "+
				"daemon runs")
	default:
		e.add(Fail, "daemon", "the daemon at "+d.Socket+" does not answer: "+d.Err.Error(),
			"look at its log (journalctl -u lgpud, or lgpud.log in the runtime folder) and restart it")
	}
}

// shared says how lgpus share the daemon's devices at present.
func (e *examination) shared(devices []Shared) {
	for _, d := range devices {
		if d.Turns == "" {
			e.ok("daemon.guests", "%s: lgpus that pause are guests beside the one that has it", d.Device)
		} else {
			e.ok("daemon.guests", "%s: lgpus take turns: %s", d.Device, d.Turns)
		}
	}
}

func (e *examination) sim() {
	switch {
	case e.m.Sim == nil:
		e.ok("sim", "a software GPU starts and answers")
	default:
		e.add(Fail, "sim", "no software GPU: "+e.m.Sim.Error(), "lgpu sim --log debug shows what it does")
	}
}

func (e *examination) programs() {
	for i := range e.m.Programs {
		e.program(&e.m.Programs[i])
	}
}

func (e *examination) program(p *Program) {
	const check = "program"
	base := filepath.Base(p.Path)
	switch {
	case p.Err != nil:
		e.add(Fail, check, p.Err.Error(), "name a program file, or one that PATH finds")
	case p.Script != "":
		e.add(Warn, check, base+" is a script of "+p.Script+", which was not examined", "lgpu doctor "+p.Script)
	case p.Machine != machine():
		e.add(Fail, check, fmt.Sprintf("%s is for another processor (%s)", base, p.Machine), "use a build for this machine")
	case p.Setuid && e.m.User == 0 && e.m.Contain.Tried && e.m.Contain.Err == nil:
		e.ok(check, "%s can be limited, contained: it changes its rights when it starts, and ignores LD_PRELOAD", base)
	case p.Setuid:
		e.add(Fail, check, base+" changes its rights when it starts (setuid, setgid or file capabilities): the loader then "+
			"ignores LD_PRELOAD, and no limit would hold", "run it as root, where it is contained; or take the bits away: chmod ug-s, setcap -r")
	case p.Interpreter == "":
		e.add(Fail, check, base+" is static: it loads no libraries, so that no limit would hold",
			"link it dynamically against the C library; a static CUDA runtime is fine")
	case strings.Contains(filepath.Base(p.Interpreter), "musl"):
		e.add(Fail, check, base+" uses musl, where NVIDIA's driver and lgpu's library need glibc",
			"use a build for glibc (in Alpine: another base image)")
	default:
		e.ok(check, "%s can be limited", base)
	}
}

// machine is what programs of this machine have in their header.
func machine() elf.Machine {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}

// major is the first number of a version, 0 where there is none.
func major(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

func number(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}
